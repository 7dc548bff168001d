"""From what a simulation counted to the record that is reported, units in the names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from turnout.policies.view import FleetView

Record = dict[str, Any]


def record(policy: str, seed: int, result: Mapping[str, Any], targets: Mapping[str, float]) -> Record:
    """One run, as it stands under `runs` in the JSON file.

    Args:
        policy: Name of the policy, as the user gave it.
        seed: Seed of the run.
        result: `Simulation.result()`.
        targets: Wanted share of finished sessions by workload; NaN = unset.

    Returns:
        Plain numbers, strings and dicts; `None` where a number does not exist (a share of nothing).
    """
    workloads = result["workloads"]
    finished = [workloads[name]["finished_sessions"] for name in targets]
    return {
        "policy": policy,
        "seed": seed,
        **_totals(result, result["now_s"]),
        "mixture_tv_points": tv_points(finished, list(targets.values())),
        "workloads": {name: _totals(workloads[name], result["now_s"]) for name in targets},
    }


def _totals(counted: Mapping[str, Any], elapsed_s: float) -> Record:
    """The numbers that exist for the whole run and for one workload alike."""
    return {
        "finished_sessions": counted["finished_sessions"],
        "finished_sessions_per_hour": _ratio(3600.0 * counted["finished_sessions"], elapsed_s),
        "turns": counted["turns"],
        "output_tokens_per_s": _ratio(counted["output_tokens"], elapsed_s),
        "prefix_hit_share": _ratio(counted["cached_tokens"], counted["prompt_tokens"]),
        "reprefill_tokens": counted["reprefill_tokens"],
        "hold_s": quantiles(counted["hold_s"]),
        "pauses": counted["pauses"],
        "moves": counted["moves"],
        "preemptions": counted["preemptions"],
        "makespan_s": round(counted["last_finish_s"], 3),
        "submitted_turns": counted["submitted_turns"],
        "placed_turns": counted["placed_turns"],
        "held_turns": counted["held_turns_now"],
        "aborted_turns": counted["aborted_turns"],
        "lost_turns": counted["lost_turns"],
    }


def bounds(result: Mapping[str, Any], view: FleetView, fleet_tokens: float, replicas: int) -> Record:
    """What the run is to be compared with: nobody can do better, or an exact router would do exactly this.

    Args:
        result: `Simulation.result()`.
        view: The fleet at the end of the run.
        fleet_tokens: KV tokens of the whole fleet.
        replicas: Number of replicas at full strength.

    Returns:
        `unevicted_hit_share`: the prefix hits had no session's own tokens been computed twice.
        `least_gpu_share`: the part of the fleet's time that the completed turns need at least, in full batches and with
        nothing computed twice: 1 = no more turns of this kind can be served.
        `little_sessions_per_hour`: what Little's law allows: KV capacity over the mean token-seconds of the sessions,
        in the mixture that finished. Sessions that are charged while they hold nothing can exceed it.
        `jain_virtual_time`: Jain's index over the virtual times of the workloads: 1 = all alike, 1/W = one took all.
        `forecast_missing_share`: the part of the cached tokens forecast for continuations that was not in the engines.
    """
    finished = view.finished.astype(np.float64)
    token_seconds = float(finished @ view.token_seconds)
    return {
        "unevicted_hit_share": _ratio(result["cached_tokens"] + result["reprefill_tokens"], result["prompt_tokens"]),
        "least_gpu_share": _ratio(result["least_gpu_s"], replicas * result["now_s"]),
        "little_sessions_per_hour": _ratio(3600.0 * fleet_tokens * float(finished.sum()), token_seconds),
        "jain_virtual_time": jain(view.virtual_time),
        "forecast_missing_share": _ratio(float(view.missing_tokens.sum()), float(view.forecast_tokens.sum())),
    }


def jain(values: ArrayLike) -> float | None:
    """Jain's fairness index.

    Args:
        values: What each one got, at least 0.

    Returns:
        (sum)^2 / (n sum of squares): 1 when all are equal, 1/n when one has everything; None when nobody has anything.

    Example:
        >>> jain([1, 1]), jain([4, 0])
        (1.0, 0.5)
    """
    shares = np.asarray(values, dtype=np.float64)
    return _ratio(float(shares.sum()) ** 2, shares.size * float((shares**2).sum()))


def _ratio(part: float, whole: float) -> float | None:
    """Divide part by whole, to six places, or None when there is no whole."""
    return round(part / whole, 6) if whole > 0 else None


def quantiles(waits_s: ArrayLike | Mapping[str, float]) -> dict[str, float]:
    """p50, p99 and maximum of waiting times.

    Args:
        waits_s: One wait per submitted turn, s, zeros and those that still wait included; or the three numbers.

    Returns:
        `{"p50", "p99", "max"}` in s, all 0 when nothing was submitted. A quantile is one of the waits, none in between.

    Example:
        >>> quantiles([0, 0, 0, 8])
        {'p50': 0.0, 'p99': 8.0, 'max': 8.0}
    """
    if isinstance(waits_s, Mapping):
        return {name: round(float(waits_s[name]), 3) for name in ("p50", "p99", "max")}
    waits = np.asarray(waits_s, dtype=np.float64)
    if waits.size == 0:
        return {"p50": 0.0, "p99": 0.0, "max": 0.0}
    values = np.quantile(waits, [0.5, 0.99, 1.0], method="inverted_cdf")
    return dict(zip(("p50", "p99", "max"), np.round(values, 3).tolist(), strict=True))


def tv_points(finished: Sequence[int], targets: Sequence[float]) -> float | None:
    """Distance between the mixture that finished and the one that was wanted.

    Args:
        finished: Finished sessions per workload.
        targets: Wanted shares, in the same order.

    Returns:
        100 times the total variation distance: 0 = as wanted, 100 = disjoint. None when a target is unset or nothing
        has finished.

    Example:
        >>> tv_points([50, 50], [0.75, 0.25])
        25.0
    """
    total, wanted = sum(finished), sum(targets)
    if total == 0 or not wanted > 0 or math.isnan(wanted):
        return None
    gaps = (abs(count / total - target / wanted) for count, target in zip(finished, targets, strict=True))
    return round(50.0 * sum(gaps), 3)


def to_json(document: Mapping[str, Any]) -> str:
    """Spell a report as JSON: the same numbers give the same bytes; a number that does not exist is an error.

    Args:
        document: `{"config", "runs", "wall_clock"}`.

    Returns:
        The text, ending with a newline.
    """
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def mean(records: Sequence[Mapping[str, Any]], *path: str) -> float | None:
    """Mean over records of the number at `path`; None if one of them has none.

    Args:
        records: At least one record.
        *path: Keys, outermost first.

    Returns:
        The mean.
    """
    values: list[Any] = list(records)
    for key in path:
        values = [value[key] for value in values]
    numbers: NDArray[np.float64] | None = None if None in values else np.array(values, dtype=np.float64)
    return None if numbers is None else float(numbers.mean())
