"""What `turnout serve` is told, checked before anything starts."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnout.adapters.proxies import HOLD_S
from turnout.config import Workload
from turnout.errors import InvalidArgument

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Settings of the server.

    Attributes:
        engines: Addresses of the engines to follow, for example `"http://10.0.0.1:8000"`; more join by the API.
        workloads: Classes of sessions, each `name` or `name=target`; none = one called `default`.
        policy: Name of the policy, see `turnout.policies.lookup`.
        host: Address to listen at.
        port: HTTP port; 0 = any free one.
        token: What callers must send as `Authorization: Bearer ...`; None = anybody may call.
        allow_anybody: Listen at a public address without a token all the same.
        journal: File that keeps the state; one that exists is gone on from. None = nothing survives the process.
        reattach_s: After such a restart, time within which callers must name their open turns, s.
        ext_proc_port: Port of Envoy's external processing; 0 = any free one, None = none.
        spoe_port: Port of HAProxy's agent; 0 = any free one, None = none.
        gate_hold_s: How long a request of a proxy may be held, s.

    Raises:
        InvalidArgument: A value is out of range, or the server would be open to everybody.

    Example:
        >>> ServeConfig(workloads=("agent=0.6", "chat=0.4")).workload_list()[0].target
        0.6
        >>> ServeConfig(host="0.0.0.0")
        Traceback (most recent call last):
        turnout.errors.InvalidArgument: host: got '0.0.0.0' without a token, accepted is a loopback address, or a token
    """

    engines: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    policy: str = "block-time"
    host: str = "127.0.0.1"
    port: int = 8077
    token: str | None = None
    allow_anybody: bool = False
    journal: Path | None = None
    reattach_s: float = 120.0
    ext_proc_port: int | None = None
    spoe_port: int | None = None
    gate_hold_s: float = HOLD_S

    def __post_init__(self) -> None:
        """Check."""
        for name in ("port", "ext_proc_port", "spoe_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= 65_535:  # noqa: PLR2004 - the range of a port
                raise InvalidArgument(f"{name}: got {port}, accepted is 0..65535", name, str(port), "a port, 0..65535")
        if not 0 < self.gate_hold_s < math.inf:
            message = f"gate_hold_s: got {self.gate_hold_s}, accepted is a positive number of seconds"
            raise InvalidArgument(message, "gate_hold_s", str(self.gate_hold_s), "seconds, > 0")
        if self.token is not None and (not self.token.isascii() or not self.token.strip()):
            raise InvalidArgument("token: accepted are ASCII characters, at least one", "token", "", "ASCII characters")
        if self.token is None and not self.allow_anybody and not _is_loopback(self.host):
            accepted = "a loopback address, or a token"
            raise InvalidArgument(
                f"host: got {self.host!r} without a token, accepted is {accepted}", "host", self.host, accepted
            )
        self.workload_list()

    def workload_list(self) -> list[Workload]:
        """The workloads as the router takes them.

        Returns:
            One for each, with its target where one was given.

        Raises:
            InvalidArgument: A target is no number.
        """
        found = []
        for text in self.workloads:
            name, given, target = text.partition("=")
            try:
                share = float(target) if given else None
            except ValueError:
                raise InvalidArgument(
                    f"workload: got {text!r}, accepted is NAME or NAME=SHARE", "workload", text, "NAME or NAME=SHARE"
                ) from None
            found.append(Workload(name) if share is None else Workload(name, target=share))
        return found


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
