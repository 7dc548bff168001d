"""The laws of a policy as a function of views. Each is a function of a policy and a scenario that raises or returns.

Call one by hand to see whether a certain fleet breaks it; `check_policy` looks for fleets that do. The laws that need a
router are in `turnout.testing.running`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from turnout.config import Replica, Workload
from turnout.errors import PolicyError
from turnout.policies import FleetView, Limits
from turnout.router import Router
from turnout.testing.subject import PolicySource, Subject
from turnout.testing.tables import (
    LIMIT_SHAPES,
    alike,
    columns,
    difference,
    later,
    reordered,
    rescaled,
    where,
    with_empty_workload,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from turnout.policies.contract import RawLimits

REPEATS: Final = 30
"""Control steps on a fleet that stands still, after which limits must have settled."""

_REVERSALS: Final = 3
"""As many changes of direction in the second half of these are an oscillation, not an approach."""

_FACTOR: Final = 2
"""A power of two: the arithmetic of a policy without constants in tokens stays exact."""


def answers_can_be_enforced(policy: PolicySource, *, views: Sequence[FleetView]) -> None:
    """For every fleet the policy answers with limits that the core accepts.

    Right type, fields and shapes, no NaN, nothing negative, finite where it must be, overflow at least the ceiling;
    also for a fleet without replicas, one that nothing is known about, and one that changed since the last step.

    Source: the contract of `Limits` and `Router.set_limits`.

    Args:
        policy: The policy, or what makes one.
        views: Views that follow each other.
    """
    subject = Subject(policy, answers_can_be_enforced.__name__)
    asked, last = subject.fresh(), Limits()
    for view in views:
        last = subject.ask(asked, view, last)
        subject.spell(last, view)
        router = Router(
            [Replica(name, kv_tokens=float(size)) for name, size in zip(view.replicas, view.kv_tokens, strict=True)],
            [Workload(name) for name in view.workloads],
        )
        try:
            router.set_limits(last, view=router.view(now=0.0), now=0.0)
        except PolicyError as error:
            subject.breaks(str(error))


def is_a_pure_function(policy: PolicySource, *, views: Sequence[FleetView]) -> None:
    """The same view and the same last limits give the same answer, bit for bit, from this instance and from another.

    All that a policy remembers travels in `Limits.memory`: a counter in `self`, a clock or a random number breaks
    replay. The view and the last limits are not modified.

    Source: the contract of `Policy`.

    Args:
        policy: The policy, or what makes one.
        views: Views that follow each other.
    """
    subject = Subject(policy, is_a_pure_function.__name__)
    asked, last = subject.fresh(), Limits()
    for view in views:
        before = {name: array.copy() for name, array in columns(view).items()}
        kept, fields = {name: array.copy() for name, array in last.memory.items()}, _arrays(last)
        first = subject.ask(asked, view, last)
        for name, array in columns(view).items():
            if not np.array_equal(array, before[name], equal_nan=array.dtype.kind == "f"):
                subject.breaks(f"the policy changed view.{name}: {before[name].tolist()} became {array.tolist()}")
        unlike = _memory_difference(kept, last.memory) or _memory_difference(fields, _arrays(last))
        if unlike:
            subject.breaks(f"the policy changed its last limits: {unlike}")
        for who, other in (("asked again", asked), ("another instance", subject.fresh())):
            second = subject.ask(other, view, last)
            unlike = difference(
                subject.spell(first, view), subject.spell(second, view), view, exact=True
            ) or _memory_difference(first.memory, second.memory)
            if unlike:
                subject.breaks(f"{who}, the policy answers otherwise: {unlike}")
        last = first


def order_of_replicas_is_no_reason(policy: PolicySource, *, views: Sequence[FleetView], order: Sequence[int]) -> None:
    """The same fleet with its replicas in another order gets the same limits, in that order.

    Ties excepted: replicas that no number in the views tells apart may exchange their limits. Other ties (equal scores
    of unequal replicas) are to be broken by name: a tie that the first row wins always overloads the first replica.

    Source: I12 (same events, same decisions) for fleets that are listed in another order.

    Args:
        policy: The policy, or what makes one.
        views: Views that follow each other.
        order: The other order of the rows.
    """
    _order_is_no_reason(Subject(policy, order_of_replicas_is_no_reason.__name__), views, order, "R")


def order_of_workloads_is_no_reason(policy: PolicySource, *, views: Sequence[FleetView], order: Sequence[int]) -> None:
    """The same fleet with its workloads in another order gets the same limits, in that order.

    Ties excepted, as for replicas.

    Source: I12, as for replicas.

    Args:
        policy: The policy, or what makes one.
        views: Views that follow each other.
        order: The other order of the columns.
    """
    _order_is_no_reason(Subject(policy, order_of_workloads_is_no_reason.__name__), views, order, "W")


def _order_is_no_reason(subject: Subject, views: Sequence[FleetView], order: Sequence[int], axis: str) -> None:
    plain = subject.answers(views)
    moved = subject.answers([reordered(view, order, axis) for view in views])
    for view, one, other in zip(views, plain, moved, strict=True):
        back = {
            name: np.take(np.asarray(value), np.argsort(order), axis=LIMIT_SHAPES[name].index(axis))
            if axis in LIMIT_SHAPES[name]
            else value
            for name, value in other.items()
        }
        unlike = difference(one, _exchanged(one, back, views, axis), view)
        if unlike:
            names = view.replicas if axis == "R" else view.workloads
            subject.breaks(f"in the order {', '.join(names[i] for i in order)} the answer differs: {unlike}")


def _exchanged(one: RawLimits, other: RawLimits, views: Sequence[FleetView], axis: str) -> RawLimits:
    """`other` with the limits of indistinguishable rows given to each other, if that makes it `one`."""
    fields = [name for name in one if axis in LIMIT_SHAPES[name] and name in other]
    if not fields:
        return other

    def table(limits: RawLimits) -> NDArray[np.float64]:
        rows = [np.moveaxis(np.asarray(limits[name]), LIMIT_SHAPES[name].index(axis), 0) for name in fields]
        return np.concatenate([row.reshape(len(row), -1) for row in rows], axis=1)

    first, second = table(one), table(other)
    source = np.arange(len(first))
    for same in alike(views, axis):
        rows = np.array(same)
        source[rows[np.lexsort(first[rows].T)]] = rows[np.lexsort(second[rows].T)]
    return {
        name: np.take(np.asarray(value), source, axis=LIMIT_SHAPES[name].index(axis)) if name in fields else value
        for name, value in other.items()
    }


def stays_within_capacity(policy: PolicySource, *, view: FleetView) -> None:
    """No ceiling is above the capacity of its replica, where that is known.

    Above it the engine evicts or preempts what was admitted. Policies that admit by another measure than tokens
    (`Open`, `StaticCap`) are exempt on purpose.

    Source: I3, an admission leaves Commit_e <= ceiling_e, which protects the cache only while ceiling_e <= B_e.

    Args:
        policy: The policy, or what makes one.
        view: A view.
    """
    subject = Subject(policy, stays_within_capacity.__name__)
    raw = subject.answers([view])[0]
    ceiling = np.broadcast_to(raw.get("ceiling_tokens", view.kv_tokens), view.kv_tokens.shape)
    for name, allowed, size in zip(view.replicas, ceiling, view.kv_tokens, strict=True):
        if allowed > size:
            subject.breaks(f"ceiling_tokens[{name}] is {allowed:.17g}, the replica has {size:.17g}")


def settles(policy: PolicySource, *, view: FleetView) -> None:
    """On a fleet that stands still the limits settle: they do not go up and down for ever.

    Asked 30 times about the same state, a second apart, no limit may change its direction three times in the second
    half without getting closer. A drift in one direction and a damped approach are fine.

    Source: control stability (caps admit in an instant and shrink only as sessions end, so an oscillation acts by its
    maximum).

    Args:
        policy: The policy, or what makes one.
        view: The state.
    """
    subject = Subject(policy, settles.__name__)
    answers = subject.answers([later(view, at) for at in range(REPEATS)])
    for name in sorted(set[str]().union(*answers)):
        if not all(name in answer for answer in answers):
            subject.breaks(f"limits.{name} is set at some steps and not at others on a fleet that stands still")
        # Infinity as a number: leaving it and returning is a change of direction too.
        told = np.nan_to_num(np.array([np.asarray(answer[name]) for answer in answers]), posinf=1e300)
        for at in np.ndindex(told.shape[1:]):
            course = told[(slice(None), *at)]
            if _oscillates(course):
                shown = ", ".join(f"{value:g}" for value in course[-6:])
                subject.breaks(f"{where(name, at, view)} goes up and down on a fleet that stands still: ..., {shown}")


def _oscillates(course: NDArray[np.float64]) -> bool:
    """Whether a sequence still changes its direction in its second half, and by as much as in its first."""
    half = len(course) // 2
    first, second = course[:half], course[half:]
    moves = np.diff(second)
    moves = moves[np.abs(moves) > 1e-9 * max(float(np.abs(second).max()), 1.0)]
    reversals = int((np.sign(moves[1:]) != np.sign(moves[:-1])).sum())
    return reversals >= _REVERSALS and float(np.ptp(second)) >= 0.5 * float(np.ptp(first))


def unit_of_tokens_is_no_reason(policy: PolicySource, *, view: FleetView) -> None:
    """A fleet whose every number of tokens is twice as large gets limits in tokens twice as large, and the same caps.

    A policy that is clean in its dimensions works on every model and engine; a constant in tokens does not. `weight`
    and `price` only compare workloads, so they may change by one common factor.

    Source: dimensional analysis; exempt a policy that has constants in tokens on purpose.

    Args:
        policy: The policy, or what makes one.
        view: A view.
    """
    subject = Subject(policy, unit_of_tokens_is_no_reason.__name__)
    plain, scaled = subject.answers([view])[0], subject.answers([rescaled(view, _FACTOR)])[0]
    expected, got = {}, {}
    for name, value in plain.items():
        relative = name in {"weight", "price"} and np.max(value) > 0
        expected[name] = np.divide(value, np.max(value)) if relative else value
        if "token" in name:
            expected[name] = np.multiply(value, _FACTOR)
    for name, value in scaled.items():
        relative = name in {"weight", "price"} and np.max(value) > 0
        got[name] = np.divide(value, np.max(value)) if relative else value
    unlike = difference(expected, got, view)
    if unlike:
        subject.breaks(f"with every number of tokens times {_FACTOR} (expected once, got then): {unlike}")


def an_empty_workload_changes_nothing(policy: PolicySource, *, views: Sequence[FleetView], estimate: int) -> None:
    """One more workload without sessions and without anybody waiting leaves the limits of the others as they are.

    Its name comes last, so that ties broken by name stay as they are. A policy that divides a fleet into fixed parts by
    the number of workloads is exempt on purpose.

    Source: isolation (I12 of the amendments): who asks for nothing takes nothing.

    Args:
        policy: The policy, or what makes one.
        views: Views that follow each other.
        estimate: What its estimates say; 0 = unknown.
    """
    subject = Subject(policy, an_empty_workload_changes_nothing.__name__)
    plain = subject.answers(views)
    wider = subject.answers([with_empty_workload(view, "~empty", estimate) for view in views])
    for view, one, other in zip(views, plain, wider, strict=True):
        cut = {
            name: np.asarray(value)[..., :-1] if "W" in LIMIT_SHAPES[name] else value for name, value in other.items()
        }
        unlike = difference(one, cut, view)
        if unlike:
            subject.breaks(f"without and with a workload that asks for nothing: {unlike}")


def _arrays(limits: Limits) -> dict[str, NDArray[np.generic]]:
    """The fields of limits that are arrays, and so could be changed in place, copied."""
    values = ((name, getattr(limits, name, None)) for name in LIMIT_SHAPES)
    return {name: value.copy() for name, value in values if isinstance(value, np.ndarray)}


def _memory_difference(first: dict[str, NDArray[np.generic]], second: dict[str, NDArray[np.generic]]) -> str | None:
    if first.keys() != second.keys():
        return f"it keeps {sorted(first)} and {sorted(second)}"
    for name, kept in first.items():
        other = second[name]
        if kept.dtype != other.dtype or not np.array_equal(kept, other, equal_nan=kept.dtype.kind in "fc"):
            return f"{name} is {kept.tolist()} once and {other.tolist()} then"
    return None
