"""Do turns find in the cache what was forecast? Says when they do not, and the likely cause in words."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

WINDOW_TURNS = 256
MIN_TURNS = 32
MIN_TOKENS = 4_096
THRESHOLD = 0.25
DEVIATIONS = 2.0
SNAPSHOTS = 64


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What the latest turns of a replica found in its cache, against what was forecast when they were placed.

    Attributes:
        turns: Turns that said what they found.
        expected_tokens: Tokens that were forecast to be cached.
        missing_tokens: The part of those that was not.
        share: missing / expected, 0..1; 0 without a forecast.
        wrong: The books are wrong: `turns >= 32`, `expected_tokens >= 4096`, and with s = share, n = turns:
            `s - 2 sqrt(s (1 - s) / n) > 0.25`.
        cause: The likely cause, in words; empty when nothing is wrong.
    """

    turns: int = 0
    expected_tokens: float = 0.0
    missing_tokens: float = 0.0
    share: float = 0.0
    wrong: bool = False
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What else is known of an engine whose turns find less than was forecast.

    Attributes:
        prefix_caching: Whether the engine says that it keeps its cache.
        engine_hit_share: Share of prompt tokens that the engine itself counts as cached, 0..1; None = unknown.
        exact: The feed of cache events is whole.
        kv_told: The capacity was told by hand, not by the engine.
    """

    prefix_caching: bool | None = None
    engine_hit_share: float | None = None
    exact: bool = False
    kv_told: bool = False


@dataclass(slots=True)
class HitMonitor:
    """Compares forecast with found, over a window of the latest turns of one replica. Bounded memory.

    Feed it totals since any start (`totals`, as `FleetView.reported_turns`, `forecast_tokens`, `missing_tokens` have
    them) or single turns (`note`).

    Example:
        >>> monitor = HitMonitor()
        >>> for _ in range(40):
        ...     monitor.note(expected_tokens=1_000, reported_tokens=0)
        >>> found = monitor.judge(Evidence(prefix_caching=False))
        >>> found.wrong, found.cause[:27]
        (True, 'prefix caching is off in th')
    """

    _now: tuple[int, float, float] = (0, 0.0, 0.0)
    _before: deque[tuple[int, float, float]] = field(default_factory=lambda: deque([(0, 0.0, 0.0)], maxlen=SNAPSHOTS))

    def note(self, *, expected_tokens: int, reported_tokens: int) -> None:
        """Take in one turn.

        Args:
            expected_tokens: `Decision.cached_tokens` at its placement.
            reported_tokens: `cached_tokens` at its completion.
        """
        turns, expected, missing = self._now
        short = max(0, expected_tokens - reported_tokens)
        self.totals(turns + 1, expected + expected_tokens, missing + short)

    def totals(self, turns: int, expected_tokens: float, missing_tokens: float) -> None:
        """Take in counts since any start; counts that fall back start a new window.

        Args:
            turns: Turns that said what they found.
            expected_tokens: Forecast of those, tokens.
            missing_tokens: The part that was not there, tokens.
        """
        if turns < self._now[0]:
            self._before.clear()
            self._before.append((0, 0.0, 0.0))
        # Coarse snapshots bound the memory; the window is at most one step of them too long.
        elif turns - self._before[-1][0] >= WINDOW_TURNS // (SNAPSHOTS // 2):
            self._before.append((turns, expected_tokens, missing_tokens))
        self._now = (turns, expected_tokens, missing_tokens)
        while len(self._before) > 1 and turns - self._before[1][0] >= WINDOW_TURNS:
            self._before.popleft()

    def judge(self, evidence: Evidence) -> Shortfall:
        """Say whether the books are wrong.

        Args:
            evidence: What else is known of the engine.
        """
        turns, expected, missing = (now - old for now, old in zip(self._now, self._before[0], strict=True))
        share = missing / expected if expected > 0 else 0.0
        doubt = DEVIATIONS * math.sqrt(max(0.0, share * (1 - share)) / turns) if turns else 0.0
        wrong = turns >= MIN_TURNS and expected >= MIN_TOKENS and share - doubt > THRESHOLD
        return Shortfall(int(turns), expected, missing, share, wrong, _cause(share, evidence) if wrong else "")


NOTHING = 0.98
"""Share missing from which on turns count as finding nothing at all."""
FOUND = 0.05
"""Share of prompt tokens that an engine finds by its own count, from which on its cache works."""


def _cause(share: float, evidence: Evidence) -> str:
    if evidence.prefix_caching is False:
        return (
            "prefix caching is off in the engine: start vLLM with --enable-prefix-caching, SGLang without "
            "--disable-radix-cache"
        )
    hits = evidence.engine_hit_share
    if share >= NOTHING and hits is not None and hits >= FOUND:
        return (
            f"the engine counts {hits:.0%} of its prompt tokens as cached, but turns report none: the answers lack "
            "cached_tokens (vLLM: --enable-prompt-tokens-details) or the caller passes 0"
        )
    if share >= NOTHING:
        return (
            "no turn finds anything: requests go to other replicas than decided, prefix caching is off, or the prompts "
            "that are sent differ from those that are routed (chat template, first token, cache salt)"
        )
    if evidence.exact:
        return (
            "the engine's own events say that the blocks are there, yet turns miss them: requests go to other replicas "
            "than decided, or the prompts that are sent differ from those that are routed"
        )
    if evidence.kv_told:
        return (
            "the engine evicts earlier than judged: kv_tokens was given by hand and may be too large; "
            "turn its cache events on"
        )
    return "the engine evicts earlier than judged: turn its cache events on, or others than this router use it"
