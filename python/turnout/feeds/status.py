"""What a fleet says about itself, for a dashboard or a page of metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from turnout.feeds.shortfall import Shortfall

State = Literal["joining", "up", "stale", "draining", "dead", "back", "restarted"]
FeedState = Literal["off", "connecting", "partial", "whole", "stale", "unreadable"]


@dataclass(frozen=True, slots=True)
class RankStatus:
    """The cache events of one data-parallel rank; counts since the engine was added.

    Attributes:
        rank: The rank.
        endpoint: Where it publishes.
        replayable: Whether missed batches can be asked for.
        connected: Whether the connection stands now.
        next_sequence: Number of the next batch; None before the first.
        batches: Batches applied.
        gaps: Times that batches were missing.
        replays: Times that missing batches were asked for.
        replayed: Batches that came by replay.
        resets: Times that the feed was started anew because they could not be had.
        restarts: Times that the numbers began anew.
        unreadable: Messages that could not be read.
        age_s: Time since the last batch, s; None before the first.
    """

    rank: int
    endpoint: str
    replayable: bool
    connected: bool
    next_sequence: int | None
    batches: int
    gaps: int
    replays: int
    replayed: int
    resets: int
    restarts: int
    unreadable: int
    age_s: float | None


@dataclass(frozen=True, slots=True)
class FeedStatus:
    """The cache events of one engine.

    Attributes:
        state: `off` (none are followed), `connecting` (no batch yet), `partial` (own decisions count as well), `whole`
            (the events alone say what is cached), `stale` or `unreadable` (own decisions alone say it).
        reason: Why, in words.
        ranks: By data-parallel rank.
    """

    state: FeedState
    reason: str
    ranks: tuple[RankStatus, ...]


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine.

    Attributes:
        name: Name of the replica.
        url: Its HTTP server.
        kind: `vllm`, `sglang`, or `auto` while unknown.
        version: As it says; empty = unknown.
        state: `joining` (never reached), `up`, `stale` (silent for a while), `draining`, `dead` (out of the router),
            `back` and `restarted` (up again a short while ago; `restarted` = with an empty cache).
        reason: Why, in words.
        since_s: Time in this state, s.
        seen_s: Time since the last sign of life, s; None before the first.
        kv_tokens: Capacity that the router uses, tokens; None = unknown.
        block_tokens: Tokens per KV block; None = unknown.
        prefix_caching: Whether the engine keeps its cache for later prompts; None = unknown.
        kv_fraction: Share of the cache in use by running requests, 0..1.
        running: Requests that run there.
        waiting: Requests that wait there.
        metrics_age_s: Time since the numbers above were heard, s; None before the first.
        deaths: Times that it was lost.
        restarts: Times that it was found restarted.
        feed: Its cache events.
        shortfall: What turns found in its cache against what was forecast.
    """

    name: str
    url: str
    kind: str
    version: str
    state: State
    reason: str
    since_s: float
    seen_s: float | None
    kv_tokens: float | None
    block_tokens: int | None
    prefix_caching: bool | None
    kv_fraction: float | None
    running: int | None
    waiting: int | None
    metrics_age_s: float | None
    deaths: int
    restarts: int
    feed: FeedStatus
    shortfall: Shortfall


@dataclass(frozen=True, slots=True)
class FleetStatus:
    """All engines, in the order in which they were added."""

    engines: tuple[EngineStatus, ...]

    def __getitem__(self, name: str) -> EngineStatus:
        for engine in self.engines:
            if engine.name == name:
                return engine
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {engine.name: asdict(engine) for engine in self.engines}
