"""Session admission: as many sessions as fit at their final length, fewer while their cache is being lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from turnout.policies.arguments import flag, number
from turnout.policies.hits import FIRST as WINDOW
from turnout.policies.hits import heard
from turnout.policies.limits import Limits
from turnout.policies.recall import kept, recalled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from turnout.policies.recall import Columns
    from turnout.policies.view import FleetView

CEILING_SHARE: Final = 0.95
"""Share of a replica's KV that admission may fill, as in `Misa`."""
LEASE_S: Final = 600.0
"""An admitted session keeps its slot through its tool gaps: the longest lease that the core grants, s."""
CONFIRMED: Final = 2
"""Short judgements in a row before a cut; one is enough where a prefill queue says so too."""
QUEUE_S: Final = 10.0
"""Seconds of queued prefill that count as a queue."""
DEAD_BAND: Final = 0.05
"""The base cap moves only by more than this part of itself, and by more than `LEAST_MOVE` sessions."""
LEAST_MOVE: Final = 0.75
RECENT_RESIDENCIES: Final = 8
"""For so long a healthy hit fraction is the reference."""
UNKNOWN_RESIDENCY_S: Final = 60.0

_FIRST: Final = {**WINDOW, "smooth": 0.0, "base": 0.0, "factor": 1.0, "short": 0.0, "reference": 1.0, "since_s": 0.0}


class SessionAdmission:
    """An adaptive `session_cap`: a base from the length of finished sessions, cut while hits are confirmed low.

    Step 1 of MISA-T (arXiv 2608.11152). Base cap of replica e: ceiling_e / f, ceiling_e = 0.95 B_e, f = the recent
    length at the end of finished sessions, averaged over the workloads by their unfinished sessions. With h the hit
    fraction of continuations (see `turnout.policies.hits`) and h* its recent healthy reference, the gap is
    G = max(0, h* - h). G above `gap` in two judgements of 32 continuations, or in one while prefill queues for 10 s
    too, cuts the cap to `cut` of what is admitted. One session per half residency is added back while the cap binds
    and nothing is short, up to `most` times the base. The signal and the base are the source's, the update law is
    ours; `gap`, `cut` and `most` are those of a sweep on the embedded mixture.

    Five laws keep it stable: the base is smoothed over half a residency and has a dead band of 5 % and 0.75 sessions
    (noise in a cap acts by its maximum); it is cut again only once the admitted count has come down to the last cut;
    it is raised only while it binds; only continuations of charged sessions are evidence; what was judged is not
    judged again.

    Args:
        gap: How far the hit fraction must lie below its reference to count as short, 0..1.
        cut: What a cut leaves, above 0 and below 1.
        most: Upper bound of the cap as a multiple of its base, above 0: a session is shorter than its final length
            for most of its life, and the ceiling on tokens binds beside the cap.
        guarded: False leaves the five laws out: the cap then ratchets up with noise and winds down with every
            judgement. For comparison.

    Raises:
        InvalidArgument: An argument is out of range.

    Example:
        >>> from turnout.policies import FleetView
        >>> view = FleetView.build(["r0"], ["agent"], kv_tokens=1_000_000, held_new=40, final_tokens=50_000)
        >>> SessionAdmission(most=1.0).limits(view, Limits()).session_cap
        array([19.])
    """

    def __init__(self, *, gap: float = 0.2, cut: float = 0.9, most: float = 3.0, guarded: bool = True) -> None:
        """Store the parameters."""
        self.gap = number("gap", gap, "a number from 0 to 1", most=1.0)
        self.cut = number("cut", cut, "a number above 0 and below 1", least=1e-9, most=1 - 1e-9)
        self.most = number("most", most, "a finite number above 0", least=1e-9)
        self.guarded = flag("guarded", guarded)

    def limits(self, view: FleetView, last: Limits) -> Limits:
        """Set `session_cap` (R,), a ceiling of 0.95 B and the longest lease, see `Policy.limits`."""
        cap, memory = self.cap(view, last)
        return Limits(session_cap=cap, ceiling_tokens=CEILING_SHARE * view.kv_tokens, lease_s=LEASE_S, memory=memory)

    def cap(self, view: FleetView, last: Limits) -> tuple[NDArray[np.float64], dict[str, NDArray[np.generic]]]:
        """The cap by replica, for policies that set it beside their own limits, and what to remember.

        Args:
            view: The fleet as it is now.
            last: The last limits.

        Returns:
            (R,) whole numbers of at least 1, inf where nothing is known; entries for `Limits.memory`.
        """
        state = recalled(view, last, "admission", _FIRST)
        half_residency_s = max(_mean(view, view.residency_s), UNKNOWN_RESIDENCY_S / 10) / 2
        pace = view.elapsed_s / (view.elapsed_s + half_residency_s)
        base, smooth = self._base(view, state, pace)
        told = heard(view, {name: state[name] for name in WINDOW})
        sessions = view.sessions.sum(axis=1).astype(np.float64)
        factor = np.minimum(state["factor"], self.most)
        cap = np.where(base > 0, np.maximum(factor * base, 1.0), np.inf)

        short = told.enough & (state["reference"] - told.hit > self.gap)
        queued = view.backlog_tokens > QUEUE_S * view.prefill_tokens_per_s
        run = np.where(told.enough, np.where(short, state["short"] + 1, 0.0), state["short"])
        confirmed = short & ((run >= CONFIRMED) | queued)
        binds = (sessions >= np.floor(cap)) & (view.held_new.sum() + view.held_paused.sum() > 0)
        cuts = (confirmed & (sessions <= np.floor(cap))) if self.guarded else short
        grows = (binds & (run == 0)) if self.guarded else ~short
        with np.errstate(divide="ignore", invalid="ignore"):
            after = np.minimum(factor, np.maximum(sessions, 1.0) / base) if self.guarded else factor
            raised = factor + view.elapsed_s / half_residency_s / base
            factor = np.where(base > 0, np.where(cuts, self.cut * after, np.where(grows, raised, factor)), self.most)
            factor = np.minimum(np.where(base > 0, np.maximum(factor, 1.0 / base), factor), self.most)
        cap = np.where(base > 0, np.maximum(np.floor(factor * base + 1e-9), 1.0), np.inf)
        # The reference rises at once and fades slowly: what is slowly lost is noticed, and a workload whose hits are
        # low by nature is not cut for ever.
        since_s = state["since_s"] + view.elapsed_s
        fade = since_s / (since_s + 2 * RECENT_RESIDENCIES * half_residency_s)
        weight = np.where(told.enough, np.where(told.hit > state["reference"], 1.0, fade), 0.0)
        reference = state["reference"] + weight * (told.hit - state["reference"])
        columns = {
            **told.window,
            "smooth": smooth,
            "base": base,
            "factor": factor,
            "short": np.where(cuts, 0.0, run),
            "reference": reference,
            "since_s": np.where(told.enough, 0.0, since_s),
        }
        return cap, kept(view, "admission", columns)

    def _base(self, view: FleetView, state: Columns, pace: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Ceiling / final length by replica, 0 = unknown; and its smoothed value."""
        # Before anybody has finished, what sessions hold on average stands for their end.
        length = _mean(view, np.where(view.final_tokens > 0, view.final_tokens, view.context_tokens))
        finite = np.isfinite(view.kv_tokens)
        raw = np.where(finite, CEILING_SHARE * view.kv_tokens / length, 0.0) if length > 0 else 0.0 * state["base"]
        if not self.guarded:
            return raw, raw
        known = (state["smooth"] > 0) & (raw > 0)
        smooth = np.where(known, state["smooth"] + pace * (raw - state["smooth"]), raw)
        still = np.abs(smooth - state["base"]) < np.maximum(LEAST_MOVE, DEAD_BAND * state["base"])
        return np.where(known & still, state["base"], smooth), smooth


def _mean(view: FleetView, values: NDArray[np.float64]) -> float:
    """Mean of what is known (above 0) of the workloads, by their unfinished sessions; 0 = nothing is."""
    sessions = view.sessions.sum(axis=0) + view.held_new + view.paused
    weight = np.where(values > 0, sessions, 0)
    total = weight.sum()
    # Sums in sorted order: the order of the workloads is no reason for another last bit.
    return float(np.sort(weight * values).sum() / total) if total > 0 else 0.0
