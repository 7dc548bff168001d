"""What the runs of an experiment say: means over seeds with confidence intervals, paired comparisons, claims."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from turnout.experiment.job import Job

_T95: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom."""
_T95_MANY: Final = 2.1


class Estimate(NamedTuple):
    """A mean and half its 95 % confidence interval; NaN half where one seed was played."""

    mean: float
    half: float

    def show(self, form: str = ",.0f") -> str:
        """The mean, with its half interval where there is one."""
        if math.isnan(self.mean):
            return "-"
        return format(self.mean, form) + ("" if math.isnan(self.half) else f" ± {format(self.half, form)}")


class Claim(NamedTuple):
    """Something expected before the run, and what came of it.

    Attributes:
        expected: The expectation.
        came: What was measured.
        holds: Whether it does.
    """

    expected: str
    came: str
    holds: bool


def estimate(values: Sequence[float] | NDArray[np.float64]) -> Estimate:
    """Mean and half the 95 % confidence interval over seeds.

    Args:
        values: One value per seed.

    Returns:
        The estimate; NaN throughout for no value.

    Example:
        >>> estimate([1.0, 2.0, 3.0]).show(".2f")
        '2.00 ± 2.48'
    """
    found = np.asarray(values, dtype=np.float64)
    if not found.size:
        return Estimate(math.nan, math.nan)
    mean = float(found.mean())
    if found.size == 1:
        return Estimate(mean, math.nan)
    t = _T95[found.size - 2] if found.size - 2 < len(_T95) else _T95_MANY
    return Estimate(mean, float(t * found.std(ddof=1) / math.sqrt(found.size)))


def part(value: float, whole: float) -> float:
    """Share of a whole; NaN of nothing.

    Example:
        >>> part(1.0, 4.0)
        0.25
    """
    return value / whole if whole else math.nan


class Outcome:
    """The runs of one experiment, by arm, cell and seed.

    Args:
        jobs: The jobs.
        results: Their results, in the same order.
    """

    def __init__(self, jobs: Sequence[Job], results: Sequence[dict[str, Any]]) -> None:
        """Store the runs."""
        self.jobs, self.results = list(jobs), list(results)

    @property
    def arms(self) -> list[str]:
        """Names of the arms, in the order of the jobs."""
        return list(dict.fromkeys(job.arm.name for job in self.jobs))

    def axis(self, name: str) -> list[Any]:
        """Values of one coordinate of the cells, in the order of the jobs."""
        return list(dict.fromkeys(job.cell[name] for job in self.jobs if name in job.cell))

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The cells, in the order of the jobs."""
        return list({tuple(job.cell.items()): job.cell for job in self.jobs}.values())

    def picked(self, arm: str, cell: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Results of an arm in a cell, by seed."""
        want = (cell or {}).items()
        found = [
            (job.seed, result)
            for job, result in zip(self.jobs, self.results, strict=True)
            if job.arm.name == arm and want <= job.cell.items()
        ]
        return [result for _, result in sorted(found, key=lambda pair: pair[0])]

    def values(self, arm: str, *path: str, cell: dict[str, Any] | None = None) -> NDArray[np.float64]:
        """The number at `path` of the records of an arm in a cell, one per seed; runs without it are left out."""
        found: list[float] = []
        for result in self.picked(arm, cell):
            value: Any = result["record"]
            for key in path:
                value = value[key]
            if value is not None:
                found.append(float(value))
        return np.array(found)

    def mean(self, arm: str, *path: str, cell: dict[str, Any] | None = None) -> float:
        """Mean over seeds of the number at `path`; NaN where there is none."""
        return estimate(self.values(arm, *path, cell=cell)).mean

    def ratio(
        self, arm: str, other: str, *path: str, cell: dict[str, Any] | None = None, under: dict[str, Any] | None = None
    ) -> Estimate:
        """Ratio of an arm to another, seed by seed; `under` is the cell of the other where it is a different one."""
        mine = self.values(arm, *path, cell=cell)
        theirs = self.values(other, *path, cell=cell if under is None else under)
        if mine.size != theirs.size or not theirs.all():
            return Estimate(math.nan, math.nan)
        return estimate(mine / theirs)

    def best(self, *path: str, cell: dict[str, Any] | None = None, among: Sequence[str] | None = None) -> str:
        """The arm with the largest mean."""
        arms = [name for name in (among or self.arms) if self.values(name, *path, cell=cell).size]
        return max(arms, key=lambda name: self.mean(name, *path, cell=cell))


class Bounds(NamedTuple):
    """Sessions per hour that nobody exceeds, by what limits them; `kept` only as long as no session is paused."""

    gpu: float
    kept: float
    path: float

    @property
    def least(self) -> float:
        """The bound that binds: GPU work or the critical path."""
        return min(self.gpu, self.path)


def bounds(outcome: Outcome, cell: dict[str, Any] | None = None) -> Bounds:
    """The bounds in a cell.

    Args:
        outcome: The runs.
        cell: The cell.

    Returns:
        Means over the seeds. The work per session is that of the arm that finished most, whose end cuts
        off the least.
    """
    best = outcome.best("sessions_per_hour", cell=cell)
    names = ("gpu_sessions_per_hour", "little_kept_per_hour", "critical_path_per_hour")
    return Bounds(*(outcome.mean(best, name, cell=cell) for name in names))


MEASURES: Final[tuple[tuple[str, tuple[str, ...], float, str], ...]] = (
    ("sessions/h", ("sessions_per_hour",), 1, ",.0f"),
    ("finished", ("finished_sessions",), 1, ",.0f"),
    ("makespan s", ("makespan_s",), 1, ",.0f"),
    ("group p50 s", ("group_s_p50",), 1, ",.1f"),
    ("group p99 s", ("group_s_p99",), 1, ",.1f"),
    ("from cache %", ("prefix_hit_share",), 100, ".1f"),
    ("infinite cache %", ("unevicted_hit_share",), 100, ".1f"),
    ("computed again per session", ("reprefill_per_session",), 1, ",.0f"),
    ("from the mixture, points", ("steady_tv_points",), 1, ".1f"),
    ("hold p50 s", ("hold_s", "p50"), 1, ",.1f"),
    ("hold p99 s", ("hold_s", "p99"), 1, ",.0f"),
    ("hold max s", ("hold_s", "max"), 1, ",.0f"),
    ("pauses", ("pauses",), 1, ",.0f"),
    ("moves", ("moves",), 1, ",.0f"),
    ("preempted", ("preemptions",), 1, ",.0f"),
    ("Jain V", ("jain_virtual_time",), 1, ".2f"),
    ("GPU work %", ("least_gpu_share",), 100, ".0f"),
    ("forecast missing %", ("forecast_missing_share",), 100, ".1f"),
)
"""Columns of the tables: heading, path into a record, factor, format."""


def table(outcome: Outcome, cell: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The arms of a cell, a row each: every measure with its interval, then the workloads.

    Args:
        outcome: The runs.
        cell: The cell.

    Returns:
        Headings, and rows of the same length; measures that nobody has, or in which all are 0, are left out.
    """
    arms = [name for name in outcome.arms if outcome.picked(name, cell)]
    workloads = list(outcome.picked(arms[0], cell)[0]["record"]["steady_by_workload"])
    measures = [
        entry
        for entry in MEASURES
        if any(entry[1][0] in result["record"] for result in outcome.picked(arms[0], cell))
        and any(outcome.values(name, *entry[1], cell=cell).any() for name in arms)
    ]
    if len(workloads) > 1:
        measures += [(f"{name}/h", ("steady_by_workload", name), 1, ",.0f") for name in workloads]
    rows = []
    for name in arms:
        cells = [
            estimate(outcome.values(name, *path, cell=cell) * factor).show(form) for _, path, factor, form in measures
        ]
        rows.append([name, *cells])
    return ["arm", *(entry[0] for entry in measures)], rows
