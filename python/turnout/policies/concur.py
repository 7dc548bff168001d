"""CONCUR: a window on active agents per replica, steered like a TCP sender by cache usage and hits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from turnout.policies.arguments import flag, number
from turnout.policies.hits import FIRST as WINDOW
from turnout.policies.hits import heard
from turnout.policies.limits import Limits
from turnout.policies.recall import kept, recalled

if TYPE_CHECKING:
    from turnout.policies.view import FleetView

LEASE_S: Final = 600.0
"""An active agent keeps its place through its tool gaps: the longest lease that the core grants, s."""

_SHARE: Final = "a number from 0 to 1"
_ABOVE: Final = "a finite number above 0"


class Concur:
    """An AIMD window on the sessions of every replica; those outside of it pause at the end of their turn.

    CONCUR (arXiv 2601.22705). With U the share of the replica's KV that its sessions hold and H the hit fraction of
    continuations since the last decision, every `period_s`: W += `step` if U < `low`; W *= `cut` if U > `high` and
    H < `hit`; else W stays. The window counts active agents, running or in a tool; whoever is outside is paused when
    its turn ends, the one that came last first (`shed`). The shape of the rule is the paper's; H is read as in
    `turnout.policies.hits`, and the thresholds are those of a sweep on the embedded mixture.

    As in `SessionAdmission`, the window is cut again only once the admitted count has come down to it, and raised only
    while it binds.

    Args:
        low: Usage below which the window grows.
        high: Usage above which low hits cut it.
        hit: Hit fraction below which they do.
        step: Sessions by which it grows.
        cut: What a cut leaves, above 0 and below 1.
        first: The window to start with, sessions.
        period_s: Least time between two changes, s.
        guarded: False cuts and raises whatever is admitted, as plain AIMD does. For comparison.

    Raises:
        InvalidArgument: An argument is out of range.

    Example:
        >>> from turnout.policies import FleetView
        >>> view = FleetView.build(["r0"], ["agent"], kv_tokens=1_000, sessions_idle=8, held_new=5, elapsed_s=10.0)
        >>> Concur().limits(view, Limits()).session_cap
        array([10.])
    """

    def __init__(  # noqa: PLR0913 - one parameter per number of the rule
        self,
        *,
        low: float = 0.9,
        high: float = 0.95,
        hit: float = 0.5,
        step: float = 2.0,
        cut: float = 0.8,
        first: float = 8.0,
        period_s: float = 10.0,
        guarded: bool = True,
    ) -> None:
        """Store the parameters."""
        self.low = number("low", low, _SHARE, most=1.0)
        self.high = number("high", high, _SHARE, most=1.0)
        self.hit = number("hit", hit, _SHARE, most=1.0)
        self.step = number("step", step, _ABOVE, least=1e-9)
        self.cut = number("cut", cut, "a number above 0 and below 1", least=1e-9, most=1 - 1e-9)
        self.first = number("first", first, "a finite number >= 1", least=1.0)
        self.period_s = number("period_s", period_s, _ABOVE, least=1e-9)
        self.guarded = flag("guarded", guarded)

    def limits(self, view: FleetView, last: Limits) -> Limits:
        """Set `session_cap` (R,) and `shed`, see `Policy.limits`."""
        state = recalled(view, last, "concur", {**WINDOW, "window": self.first, "rest_s": 0.0, "low_hits": 0.0})
        told = heard(view, {name: state[name] for name in WINDOW})
        window, rest_s = state["window"], state["rest_s"] - view.elapsed_s
        low_hits = np.where(told.enough, told.hit < self.hit, state["low_hits"] > 0)
        usage = view.charge_tokens / np.maximum(view.kv_tokens, 1.0)
        sessions = view.sessions.sum(axis=1)
        waiting = view.held_new.sum() + view.held_paused.sum() > 0
        due = rest_s <= 0
        shrinks = due & (usage > self.high) & low_hits
        grows = due & (usage < self.low)
        if self.guarded:
            shrinks &= sessions <= np.floor(window)
            grows &= (sessions >= np.floor(window)) & waiting
        # A window of less than one session is closed for ever: nobody would be heard again.
        window = np.where(shrinks, np.maximum(self.cut * window, 1.0), np.where(grows, window + self.step, window))
        changed = shrinks | grows
        columns = {
            **told.window,
            "window": window,
            "rest_s": np.where(changed, self.period_s, np.maximum(rest_s, 0.0)),
            # What led to a cut is not judged again.
            "low_hits": np.where(shrinks, 0.0, low_hits.astype(np.float64)),
        }
        return Limits(
            session_cap=np.floor(window + 1e-9),
            ceiling_tokens=np.inf,
            overflow_tokens=np.inf,
            lease_s=LEASE_S,
            shed=True,
            memory=kept(view, "concur", columns),
        )
