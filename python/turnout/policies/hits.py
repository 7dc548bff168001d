"""What continuations find in the cache of what they should, by replica: the overload signal of adaptive caps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from turnout.policies.recall import Columns
    from turnout.policies.view import FleetView

EVIDENCE_TURNS: Final = 32
"""Continuations to hear before a replica is judged."""

FIRST: Final = {"turns": 0.0, "forecast": 0.0, "missing": 0.0, "lost": 0.0}
"""What a replica's window starts with: the counters when it opened, and what idle sessions lost since."""


class Heard(NamedTuple):
    """What continuations said since the last judgement.

    Attributes:
        enough: (R,) bool, whether enough of them spoke for a judgement; the window of those replicas starts anew.
        hit: (R,) the part of what they should have found that was there; 1 where nothing could be missed.
        window: The counters to keep, by the names of `FIRST`.
    """

    enough: NDArray[np.bool_]
    hit: NDArray[np.float64]
    window: Columns


def heard(view: FleetView, window: Columns) -> Heard:
    """Judge the replicas that enough continuations have spoken about.

    h = (forecast - missing) / (forecast + lost), all since the window opened: `lost` is what idle sessions lost to
    eviction before their next turn could find it, which its forecast leaves out. First turns, resumed and moved
    sessions do not count: they miss for reasons of their own.

    Args:
        view: The fleet as it is now; its cumulative counters and `lost_tokens` since the last step are read.
        window: The counters kept at the last step.

    Returns:
        The judgement and the counters to keep.

    Example:
        >>> from turnout.policies import FleetView
        >>> view = FleetView.build(
        ...     ["r0"], ["a"], reported_turns=40, forecast_tokens=900, missing_tokens=100, lost_tokens=100
        ... )
        >>> told = heard(view, {name: np.zeros(1) for name in FIRST})
        >>> told.enough, told.hit
        (array([ True]), array([0.8]))
    """
    # A replica that came back under its name counts from 0 again.
    anew = view.reported_turns < window["turns"]
    start = {name: np.where(anew, 0.0, values) for name, values in window.items()}
    lost = start["lost"] + view.lost_tokens
    forecast, missing = view.forecast_tokens - start["forecast"], view.missing_tokens - start["missing"]
    enough = view.reported_turns - start["turns"] >= EVIDENCE_TURNS
    hit = np.where(forecast + lost > 0, (forecast - missing) / np.maximum(forecast + lost, 1e-9), 1.0)
    return Heard(
        enough,
        hit,
        {
            "turns": np.where(enough, view.reported_turns, start["turns"]),
            "forecast": np.where(enough, view.forecast_tokens, start["forecast"]),
            "missing": np.where(enough, view.missing_tokens, start["missing"]),
            "lost": np.where(enough, 0.0, lost),
        },
    )
