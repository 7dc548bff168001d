"""What `turnout serve` is told, checked before anything starts."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping  # noqa: TC003 - the file is read by the annotations
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from turnout import policies
from turnout.adapters.proxies import GatesConfig
from turnout.config import Workload
from turnout.errors import InvalidArgument, TurnoutError
from turnout.feeds import Engine, Timing
from turnout.server.proxy_config import ProxyConfig

if TYPE_CHECKING:
    from turnout.policies import Policy

LEAST_ROTATE_BYTES: Final = 1 << 16
MOST_PORT: Final = 65_535
LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]


def refuse(argument: str, value: object, accepted: str) -> InvalidArgument:
    """An error that names a setting, its value and what is accepted.

    Args:
        argument: The setting.
        value: What was given.
        accepted: What is accepted.

    Returns:
        The error, to be raised.
    """
    return InvalidArgument(f"{argument}: got {value!r}, accepted is {accepted}", argument, repr(value), accepted)


def located(error: TurnoutError, where: str) -> TurnoutError:
    """The same error, saying in which section it arose.

    Args:
        error: The error.
        where: The section.

    Returns:
        A new one.
    """
    argument = f"{where}.{error.argument}" if error.argument else where
    return type(error)(f"{where}.{error}", argument, error.value, error.accepted)


@dataclass(frozen=True, slots=True)
class StateConfig:
    """What survives the process, and where.

    Attributes:
        keep: Whether anything does.
        directory: Where; None = below `$STATE_DIRECTORY`, else `$XDG_STATE_HOME/turnout`, one for each port.
        rotate_bytes: Growth of the journal after which it begins anew with a snapshot, bytes, at least 65,536.
        fsync: Wait for the disk before anybody acts on a decision: it then survives the machine as well.
        standby: Wait until no other process writes the directory, and go on from there.
        reattach_s: After a restart, time within which callers must name their open turns, s.

    Raises:
        InvalidArgument: A value is out of range.

    Example:
        >>> StateConfig(keep=False).where(8077) is None
        True
    """

    keep: bool = True
    directory: Path | None = None
    rotate_bytes: int = 64 << 20
    fsync: bool = False
    standby: bool = False
    reattach_s: float = 120.0

    def __post_init__(self) -> None:
        """Check."""
        if self.rotate_bytes < LEAST_ROTATE_BYTES:
            raise refuse("rotate_bytes", self.rotate_bytes, f"bytes, {LEAST_ROTATE_BYTES} or more")
        if not 0 <= self.reattach_s < float("inf"):
            raise refuse("reattach_s", self.reattach_s, "a finite number of seconds, 0 or above")
        if not self.keep and self.directory is not None:
            raise refuse("directory", str(self.directory), "none where nothing is kept")
        if self.standby and self.directory is None:
            raise refuse("standby", self.standby, "false, or the directory of the server that it stands by for")

    def where(self, port: int) -> Path | None:
        """The directory of a server at this port.

        Args:
            port: Its port; 0 = any free one, and nothing to come back to: such a server keeps a state only where a
                directory is named.

        Returns:
            The directory; None where nothing is kept.
        """
        if not self.keep or (self.directory is None and port == 0):
            return None
        if self.directory is not None:
            return self.directory
        # systemd may give several, separated by colons: the first is the main one.
        given = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
        home = os.environ.get("XDG_STATE_HOME", "")
        base = Path(given) if given else (Path(home) if home else Path("~/.local/state").expanduser()) / "turnout"
        return base / f"port-{port}"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What is said on stderr.

    Attributes:
        format: `json`: one object per line; `text`: for people.
        level: The least that is said.

    Raises:
        InvalidArgument: A value is none of these.
    """

    format: LogFormat = "json"
    level: LogLevel = "info"

    def __post_init__(self) -> None:
        """Check."""
        for name, value, kind in (("log_format", self.format, LogFormat), ("log_level", self.level, LogLevel)):
            if value not in get_args(kind):
                raise refuse(name, value, " or ".join(get_args(kind)))


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Settings of the server.

    Attributes:
        engines: The engines to follow: addresses, for example `"http://10.0.0.1:8000"`, or `turnout.feeds.Engine`; more
            join by the API.
        workloads: Classes of sessions, each `name`, `name=target` or a `turnout.Workload`; none = one called `default`.
        policy: Name of the policy, see `turnout.policies.lookup`.
        policy_arguments: What its constructor is given, by name.
        host: Address to listen at.
        port: HTTP port; 0 = any free one.
        admin_port: Port of its own for whoever operates the server; None = all is at `port`.
        token: What callers must send as `Authorization: Bearer ...`; None = anybody may call.
        token_file: File that holds the token, instead of the token itself.
        allow_anybody: Listen at a public address without a token all the same.
        state: What survives the process.
        log: What is said.
        feeds: How often engines are looked at and how long a silent one is waited for.
        proxy: How requests are passed to the engines.
        gates: Where proxies that pass requests on themselves ask.

    Raises:
        InvalidArgument: A value is out of range, or the server would be open to everybody.
        UnknownPolicy: No policy has this name.

    Example:
        >>> ServeConfig(workloads=("agent=0.6", "chat=0.4")).workload_list()[0].target
        0.6
        >>> ServeConfig(host="0.0.0.0")
        Traceback (most recent call last):
        turnout.errors.InvalidArgument: host: got '0.0.0.0' without a token, accepted is a loopback address, or a token
    """

    engines: tuple[str | Engine, ...] = ()
    workloads: tuple[str | Workload, ...] = ()
    policy: str = "block-time"
    policy_arguments: Mapping[str, Any] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8077
    admin_port: int | None = None
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    allow_anybody: bool = False
    state: StateConfig = StateConfig()
    log: LogConfig = LogConfig()
    feeds: Timing = field(default_factory=Timing)
    proxy: ProxyConfig = field(default_factory=ProxyConfig)
    gates: GatesConfig = field(default_factory=GatesConfig)

    def __post_init__(self) -> None:
        """Check, and read the token."""
        for name in ("port", "admin_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= MOST_PORT:
                raise refuse(name, port, f"a port, 0..{MOST_PORT}")
        if self.admin_port == self.port != 0:
            raise refuse("admin_port", self.admin_port, "another port than that of the callers")
        if self.token_file is not None:
            if self.token is not None:
                raise InvalidArgument(
                    "token_file: got a token as well, accepted is one of the two",
                    "token_file",
                    str(self.token_file),
                    "a token or a file",
                )
            object.__setattr__(self, "token", _read_token(self.token_file))
        if self.token is not None and (not self.token.isascii() or not self.token.strip()):
            raise InvalidArgument("token: accepted are ASCII characters, at least one", "token", "", "ASCII characters")
        if self.token is None and not self.allow_anybody and not _is_loopback(self.host):
            accepted = "a loopback address, or a token"
            raise InvalidArgument(
                f"host: got {self.host!r} without a token, accepted is {accepted}", "host", self.host, accepted
            )
        self.workload_list()
        self.make_policy()

    def make_policy(self) -> Policy:
        """The policy, new.

        Returns:
            It.

        Raises:
            InvalidArgument: It does not take these arguments.
            UnknownPolicy: No policy has this name.
        """
        try:
            return policies.lookup(self.policy, self.policy_arguments)
        except InvalidArgument as error:
            raise located(error, "policy") from None

    def workload_list(self) -> list[Workload]:
        """The workloads as the router takes them.

        Returns:
            One for each, with its target where one was given.

        Raises:
            InvalidArgument: A target is no number.
        """
        return [each if isinstance(each, Workload) else _workload(each) for each in self.workloads]

    @property
    def directory(self) -> Path | None:
        """Where the state is kept; None where nothing is."""
        return self.state.where(self.port)


def _workload(text: str) -> Workload:
    name, given, target = text.partition("=")
    try:
        share = float(target) if given else None
    except ValueError:
        raise refuse("workload", text, "NAME or NAME=SHARE") from None
    return Workload(name) if share is None else Workload(name, target=share)


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        accepted = "a text file that can be read"
        message = f"token_file: got {str(path)!r} ({error}), accepted is {accepted}"
        raise InvalidArgument(message, "token_file", str(path), accepted) from None
    if not token:
        raise refuse("token_file", str(path), "a file with a token in it")
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
