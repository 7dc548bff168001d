"""Whether an engine lives, from what was heard of it and when. Pure: times come in, a state goes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from turnout.feeds.config import Timing

Life = Literal["joining", "up", "stale", "dead"]
REFUSALS = 3
"""Connections that must have failed in a row before an engine counts as dead: one may fail for any reason."""


@dataclass(slots=True)
class Health:
    """What was heard of one engine.

    joining: no good answer yet. up: a sign of life within `stale_after_s`. stale: none for that long. dead: connections
    refused at least three times and for `dead_after_s`, or no sign of life for `lost_after_s`. A good answer makes
    it up again from any state. A cache event or a load report is a sign of life, but does not outweigh refused
    connections: where nobody can connect, no request can be sent.

    Example:
        >>> from turnout.feeds import Timing
        >>> health = Health(Timing(), began_s=0.0)
        >>> health.good(1.0)
        >>> health.life(2.0), health.life(7.0), health.life(31.0)
        ('up', 'stale', 'dead')
    """

    timing: Timing
    began_s: float
    alive_s: float | None = None
    refusals: int = 0
    refused_since_s: float = 0.0
    reached: bool = False
    says: str = ""

    def good(self, now: float) -> None:
        """The engine answered."""
        self.alive_s = now
        self.reached = True
        self.refusals = 0
        self.says = ""

    def sign(self, now: float) -> None:
        """The engine published something."""
        self.alive_s = now

    def refused(self, now: float, says: str) -> None:
        """No connection, or the server says that its engine is dead."""
        if self.refusals == 0:
            self.refused_since_s = now
        self.refusals += 1
        self.says = says

    def silent(self, says: str) -> None:
        """No answer in time: a busy engine may be slow, so only the time without any sign of life counts."""
        self.says = says

    def life(self, now: float) -> Life:
        """The state at a time."""
        refused_s = now - self.refused_since_s if self.refusals >= REFUSALS else 0.0
        quiet_s = now - (self.began_s if self.alive_s is None else self.alive_s)
        if refused_s >= self.timing.dead_after_s or quiet_s >= self.timing.lost_after_s:
            return "dead"
        if not self.reached:
            return "joining"
        return "stale" if quiet_s >= self.timing.stale_after_s else "up"
