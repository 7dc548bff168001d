"""Block-time: a ceiling on what sessions hold, leases by what a pause costs, and a ceiling that learns from misses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from turnout.errors import InvalidArgument
from turnout.policies.limits import Limits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from turnout.policies.view import FleetView

CEILING_SHARE: Final = 0.95
"""Share of a replica's KV that commits may fill."""
OVERFLOW_SHARE: Final = 0.98
"""Above this share of charge idle sessions go, whatever their lease."""
LEAST_CEILING: Final = 0.7
"""The ceiling is never cut below this part of itself."""
CUT: Final = 0.95
"""What a cut leaves of the ceiling."""
RAISE_PER_S: Final = 0.005 / 60
"""How fast it grows back while it binds, per second."""
MISSING_SHARE: Final = 0.05
"""Share of the forecast cached tokens whose absence means that the replica holds less than it is charged for."""
EVIDENCE_TURNS: Final = 32
"""Continuations to hear before a cut."""


class BlockTime:
    """A ceiling on tokens, with leases priced by ski rental; our own, the sum of what the quotas leave out.

    The ceiling of 0.95 B binds on what sessions hold and on the output that running turns are expected to produce. An
    idle session keeps its KV for kappa B / P seconds: to hold c of B tokens for
    B / P seconds keeps others out for as long as it takes to prefill c tokens again, so that is when holding has cost
    as much as a pause would. Workloads take turns in proportion to their target. Where more than 5 % of the cached
    tokens that were forecast for continuations are missing, the engine holds less than its books say: the ceiling is
    multiplied by 0.95, once the last cut has taken effect, and grows back by 0.5 % a minute while it binds.

    Args:
        kappa: Factor on the lease, above 0.
        reserve_growth: True also reserves what every session is expected to grow to (phi with the mean final growth L
            of its workload). It avoids pauses and keeps room free: on the loads measured so far it costs more than
            it saves.

    Raises:
        InvalidArgument: `kappa` is not a finite number above 0.

    Example:
        >>> from turnout.policies import FleetView
        >>> view = FleetView.build(["r0"], ["agent"], kv_tokens=1_000_000, prefill_tokens_per_s=20_000.0)
        >>> limits = BlockTime().limits(view, Limits())
        >>> limits.ceiling_tokens, limits.lease_s
        (array([950000.]), array([[50.]]))
    """

    def __init__(self, kappa: float = 1.0, *, reserve_growth: bool = False) -> None:
        """Store the factor, and whether growth is reserved."""
        if isinstance(kappa, bool) or not isinstance(kappa, int | float) or not 0 < kappa < float("inf"):
            raise InvalidArgument(f"kappa: got {kappa!r}, accepted is a finite number above 0")
        self.kappa = float(kappa)
        self.reserve_growth = reserve_growth

    def limits(self, view: FleetView, last: Limits) -> Limits:
        """Set ceilings, overflow, leases, growth, output and weights, see `Policy.limits`."""
        factor, memory = _learned(view, last)
        with np.errstate(invalid="ignore"):
            lease = np.where(np.isfinite(view.kv_tokens), self.kappa * view.kv_tokens / view.prefill_tokens_per_s, 0.0)
        known = ~np.isnan(view.target)
        # Whoever declares no target counts like the mean of those that do.
        target = np.where(known, view.target, view.target[known].mean() if known.any() else 1.0)
        return Limits(
            ceiling_tokens=CEILING_SHARE * factor * view.kv_tokens,
            overflow_tokens=OVERFLOW_SHARE * view.kv_tokens,
            growth_tokens=view.growth_tokens if self.reserve_growth else None,
            output_tokens=view.output_tokens,
            lease_s=np.repeat(lease[:, None], len(view.workloads), axis=1),
            weight=np.maximum(target, 1e-3),
            memory=memory,
        )


def _learned(view: FleetView, last: Limits) -> tuple[NDArray[np.float64], dict[str, NDArray[np.generic]]]:
    """The factor on every replica's ceiling, and the counters it was judged by, by the name of the replica."""
    names = np.array([*view.replicas, ""])[:-1]
    known = {name: at for at, name in enumerate(last.memory.get("names", np.array([])))}
    rows = np.array([known.get(name, -1) for name in view.replicas], np.int64)

    def before(key: str, default: float) -> NDArray[np.float64]:
        kept = np.append(last.memory.get(key, np.array([])).astype(np.float64), default)
        return kept[np.where(rows < 0, len(kept) - 1, rows)]

    factor = before("factor", 1.0)
    turns, forecast, missing = before("turns", 0.0), before("forecast", 0.0), before("missing", 0.0)
    # A replica that came back under its name counts from 0 again.
    anew = view.reported_turns < turns
    turns, forecast, missing = (np.where(anew, 0.0, kept) for kept in (turns, forecast, missing))
    heard = view.reported_turns - turns >= EVIDENCE_TURNS
    short = view.missing_tokens - missing > MISSING_SHARE * (view.forecast_tokens - forecast)
    effective = view.commit_tokens <= CEILING_SHARE * factor * view.kv_tokens
    binding = (view.held_new.sum() + view.held_paused.sum()) > 0
    cut = heard & short & effective
    grown = factor + (RAISE_PER_S * view.elapsed_s if binding else 0.0)
    factor = np.clip(np.where(cut, CUT * factor, np.where(heard & short, factor, grown)), LEAST_CEILING, 1.0)
    # What was judged is not judged again.
    return factor, {
        "names": names,
        "factor": factor,
        "turns": np.where(heard, view.reported_turns, turns),
        "forecast": np.where(heard, view.forecast_tokens, forecast),
        "missing": np.where(heard, view.missing_tokens, missing),
    }
