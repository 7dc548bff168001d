"""What `turnout serve` is told, checked before anything starts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from turnout.config import Workload
from turnout.errors import InvalidArgument
from turnout.server.proxy_config import ProxyConfig

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
        proxy: How requests are passed to the engines.

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
    proxy: ProxyConfig = field(default_factory=ProxyConfig)

    def __post_init__(self) -> None:
        """Check."""
        if not 0 <= self.port <= 65_535:  # noqa: PLR2004 - the range of a port
            raise InvalidArgument(
                f"port: got {self.port}, accepted is 0..65535", "port", str(self.port), "a port, 0..65535"
            )
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
