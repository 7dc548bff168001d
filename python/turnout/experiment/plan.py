"""What an experiment is, and how large its fleet and its runs are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from turnout.experiment.arms import Arm, arm
from turnout.experiment.job import Job
from turnout.simulate.bounds import needs
from turnout.simulate.engines import engine
from turnout.simulate.loads import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from turnout.experiment.outcome import Claim, Outcome

WIN: Final = 1.1
"""What a policy that is expected to win must reach of another."""
NEAR: Final = 0.98
"""What must be reached of the best where no loss is expected."""
STEADY: Final = 0.97
"""What must be left when something is told wrongly."""
REACHED: Final = 0.95
"""What must be reached of a bound or a peak, and be left to the victim of a flood."""
CALM_LOAD: Final = 0.7
"""Up to this load nobody should be held."""
HIGH_LOAD: Final = 2.0
"""From this load on admission should pay."""

ENGINE: Final = "qwen3-8b-h200"
SCALE: Final = 8.0
"""Lengths, gaps and KV are divided by this: the same load on a fleet that is smaller and faster by that factor."""


class Size(NamedTuple):
    """How much is played.

    Attributes:
        name: `quick`, `normal` or `full`.
        seeds: Seeds of every run.
        replicas: Replicas of the fleet.
        duration: Factor on the duration of every run.
        thin: Whether coordinates and arms are thinned out: enough to see that everything works, too little to judge.
    """

    name: str
    seeds: tuple[int, ...]
    replicas: int
    duration: float
    thin: bool

    @property
    def kv_tokens(self) -> float:
        """KV capacity of a replica, tokens."""
        return engine(ENGINE).kv_tokens / SCALE

    def some(self, values: Sequence[Any], keep: Iterable[int]) -> list[Any]:
        """All values, or in a thin experiment those at the places `keep`."""
        return [values[at] for at in keep] if self.thin else list(values)


QUICK: Final = Size("quick", (0, 1), 1, 0.15, thin=True)
NORMAL: Final = Size("normal", (0, 1, 2), 4, 1.0, thin=False)
FULL: Final = Size("full", (0, 1, 2, 3, 4), 4, 3.0, thin=False)
SIZES: Final = {size.name: size for size in (QUICK, NORMAL, FULL)}


@dataclass(frozen=True, slots=True)
class Experiment:
    """A question, what is expected, the runs, and what they say.

    Attributes:
        name: Name on the command line.
        title: One line.
        about: What is played and compared, a few sentences.
        jobs: Makes the runs of a size.
        judge: Compares what came with what was expected.
        draw: Draws the pictures into a folder and gives their paths.
    """

    name: str
    title: str
    about: str
    jobs: Callable[[Size], list[Job]]
    judge: Callable[[Outcome], list[Claim]]
    draw: Callable[[Outcome, Path], list[Path]]


BASELINES: Final = (
    arm("open"),
    arm("round-robin"),
    arm("sticky-least-loaded"),
    arm("cache-aware"),
    arm("dynamo-cost"),
)
"""Routers that place and admit everybody."""

ADMITTING: Final = (
    arm("concur"),
    arm("lease-gate"),
    arm("session-admission"),
    arm("misa"),
    arm("misa-t"),
    arm("block-time"),
)
"""Policies that hold turns back."""


def caps(size: Size, numbers: Sequence[int]) -> list[Arm]:
    """Static caps on the sessions of a replica, to be swept."""
    return [arm(f"static-cap:{number}") for number in size.some(numbers, [len(numbers) // 2])]


def fleet(size: Size, duration_s: float, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of Setup
    """A setup of this size that plays its list again and again until the time is over."""
    return {
        "replicas": size.replicas,
        "kv_tokens": size.kv_tokens,
        "engine": ENGINE,
        "duration_s": max(round(duration_s * size.duration), 60),
        "repeat": True,
        **more,
    }


def filling(size: Size, name: str, arguments: dict[str, Any]) -> float:
    """How many sessions of a load fill the KV of the fleet: what the loads are multiples of."""
    found = needs(load(name, arguments, 0), engine(ENGINE), size.kv_tokens)
    return size.replicas * size.kv_tokens / found.context_tokens


def cross(  # noqa: PLR0913, PLR0917 - the coordinates of a run
    size: Size, arms: Iterable[Arm], name: str, arguments: dict[str, Any], setup: dict[str, Any], cell: dict[str, Any]
) -> list[Job]:
    """Every arm under every seed."""
    return [Job(chosen, name, arguments, seed, setup, cell) for chosen in arms for seed in size.seeds]


def outstanding(load_factor: float, fill: float) -> int:
    """Sessions outstanding at a multiple of what fills the KV."""
    return max(math.floor(load_factor * fill + 0.5), 1)
