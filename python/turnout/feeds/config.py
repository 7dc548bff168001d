"""Which engines to follow, where they publish, and how patient to be."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Literal, get_args
from urllib.parse import urlsplit

from turnout.config import Replica  # noqa: TC001 - a type of a public field, for those who resolve it
from turnout.errors import InvalidArgument

Kind = Literal["auto", "vllm", "sglang"]
KvEvents = Literal["auto", "off"]


def _refuse(argument: str, value: object, accepted: str) -> InvalidArgument:
    return InvalidArgument(f"{argument}: got {value!r}, accepted is {accepted}", argument, repr(value), accepted)


@dataclass(frozen=True, slots=True)
class KvSource:
    """Where one data-parallel rank publishes its cache events.

    Attributes:
        endpoint: ZMQ address of the publisher, for example `"tcp://10.0.0.1:5557"`.
        replay_endpoint: ZMQ address that sends missed batches again; None = a gap cannot be closed.
        rank: Data-parallel rank, at least 0.
        topic: Prefix of the topics to listen to; empty = all.

    Raises:
        InvalidArgument: An address has no scheme, or the rank is negative.

    Example:
        >>> KvSource("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558").rank
        0
    """

    endpoint: str
    replay_endpoint: str | None = None
    rank: int = 0
    topic: str = ""

    def __post_init__(self) -> None:
        for name in ("endpoint", "replay_endpoint"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and "://" in value):
                raise _refuse(name, value, "a ZMQ address such as 'tcp://10.0.0.1:5557'")
        if self.rank < 0:
            raise _refuse("rank", self.rank, "0 or above")


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine server to follow; the router's replica has its name.

    Attributes:
        name: Name of the replica.
        url: Address of its HTTP server, for example `"http://10.0.0.1:8000"`.
        kind: `"auto"` asks the engine.
        kv_events: `"auto"` asks the engine where it publishes; `"off"` leaves residency to own decisions; or the
            endpoints, one per rank.
        kv_tokens: KV capacity, tokens; None = as the engine says, inf until it does.
        rank: Follow this data-parallel rank of the server alone; None = all of them are one replica.
        replica: What else the router should know of the replica (rates); its name and capacity are not used.

    Raises:
        InvalidArgument: A value is out of range.

    Example:
        >>> Engine("r0", "http://10.0.0.1:8000/").url
        'http://10.0.0.1:8000'
    """

    name: str
    url: str
    kind: Kind = "auto"
    kv_events: KvEvents | tuple[KvSource, ...] = "auto"
    kv_tokens: float | None = None
    rank: int | None = None
    replica: Replica | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise _refuse("name", self.name, "a name of at least one character")
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise _refuse("url", self.url, "an address such as 'http://10.0.0.1:8000'")
        object.__setattr__(self, "url", self.url.rstrip("/"))
        if self.kind not in get_args(Kind):
            raise _refuse("kind", self.kind, "'auto', 'vllm' or 'sglang'")
        if isinstance(self.kv_events, str) and self.kv_events not in get_args(KvEvents):
            raise _refuse("kv_events", self.kv_events, "'auto', 'off' or a tuple of KvSource")
        if self.kv_tokens is not None and not self.kv_tokens >= 1:
            raise _refuse("kv_tokens", self.kv_tokens, "tokens above 0, or None")
        if self.rank is not None and self.rank < 0:
            raise _refuse("rank", self.rank, "0 or above, or None")

    @property
    def host(self) -> str:
        """The worker's own host, which stands in for wildcards in published addresses."""
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True, slots=True)
class Timing:
    """How often to look, and how long to wait before an engine counts as gone. Times in seconds.

    Attributes:
        health_period_s: Between two questions to `/health`.
        metrics_period_s: Between two pages of metrics.
        request_timeout_s: For one HTTP answer.
        stale_after_s: No sign of life for so long: the engine is stale, own decisions say what it holds.
        dead_after_s: Connections refused for so long, three times at least: the engine is dead.
        lost_after_s: No sign of life for so long: the engine is dead, whatever the reason.
        feed_stale_after_s: Prompts were computed, and no event came for so long: the feed is stale.
        settle_s: So long an engine that came back is shown as `back` or `restarted`.
        replay_timeout_s: For each batch of a replay.
        replay_retry_s: After three replays without an answer the next one is tried after this time.
        queue_batches: Most batches that wait in one socket; what exceeds it is dropped and shows as a gap.
        body_bytes: Most bytes of an HTTP answer that are read.

    Raises:
        InvalidArgument: A value is not above 0, or the times to stale, dead and lost do not follow each other.

    Example:
        >>> Timing(dead_after_s=5.0).lost_after_s
        30.0
    """

    health_period_s: float = 1.0
    metrics_period_s: float = 1.0
    request_timeout_s: float = 3.0
    stale_after_s: float = 5.0
    dead_after_s: float = 10.0
    lost_after_s: float = 30.0
    feed_stale_after_s: float = 10.0
    settle_s: float = 30.0
    replay_timeout_s: float = 5.0
    replay_retry_s: float = 60.0
    queue_batches: int = 10_000
    body_bytes: int = field(default=8 << 20)

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not (value > 0 and math.isfinite(value)):
                raise _refuse(each.name, value, "a finite number above 0")
        if self.stale_after_s > self.lost_after_s:
            raise _refuse("lost_after_s", self.lost_after_s, f"at least stale_after_s ({self.stale_after_s:g})")
