"""Timing of single operations: the best of several rounds, and the bound that stands beside it."""

from __future__ import annotations

import gc
import time
from collections import deque
from dataclasses import asdict, dataclass
from itertools import repeat, starmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROUNDS = 9


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a benchmark.

    Attributes:
        operation: What was done.
        figure: How much it took, in `unit`.
        unit: `ns` per operation, or `B` per something that the operation names.
        bound: What the figure cannot go below; measured in the same run, or worked out where it says so.
        bound_figure: Its size, in `unit`.
    """

    operation: str
    figure: float
    unit: str
    bound: str
    bound_figure: float

    @property
    def ratio(self) -> float:
        """How many times the bound the figure is."""
        return self.figure / self.bound_figure

    def as_json(self) -> dict[str, object]:
        """The row as plain values, the ratio included."""
        return {**asdict(self), "ratio": self.ratio}


def best_ns(
    function: Callable[..., object], *arguments: object, calls: int, operations: int = 1, rounds: int = ROUNDS
) -> float:
    """Time of one operation, the best of some rounds: what is slower was disturbed.

    Args:
        function: What to time. The loop around it runs in C and adds about a nanosecond.
        *arguments: What to call it with, the same every time.
        calls: Calls in one round.
        operations: Operations in one call.
        rounds: Rounds.

    Returns:
        Nanoseconds for each operation.

    Example:
        >>> best_ns(len, [1, 2, 3], calls=100) > 0
        True
    """
    if arguments:
        return _best_ns(
            lambda: map(function, *(repeat(argument, calls) for argument in arguments)), calls * operations, rounds
        )
    return _best_ns(lambda: starmap(function, repeat((), calls)), calls * operations, rounds)


def best_of_each_ns(function: Callable[..., object], arguments: Iterable[object], *, rounds: int = ROUNDS) -> float:
    """As `best_ns`, with another argument in each call.

    Args:
        function: What to time.
        arguments: What to call it with, one after another.
        rounds: Rounds.

    Returns:
        Nanoseconds for each call.
    """
    given = list(arguments)
    return _best_ns(lambda: map(function, given), len(given), rounds)


def _best_ns(calls: Callable[[], Iterable[object]], operations: int, rounds: int) -> float:
    best = float("inf")
    enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            run = calls()
            start = time.perf_counter_ns()
            deque(run, maxlen=0)
            best = min(best, time.perf_counter_ns() - start)
    finally:
        if enabled:
            gc.enable()
    return best / operations
