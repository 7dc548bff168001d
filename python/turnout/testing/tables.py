"""Views and limits as tables: permute their rows, change their unit, add to them, compare them.

Shapes are read off from `FleetView` and `Limits` themselves, so a column that is added there takes part here.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from turnout.policies import FleetView, Limits
from turnout.policies.limits import ORDERS, PLACEMENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from turnout.policies.contract import RawLimits

_PROBE: Final = FleetView.build(["", ""], ["", "", ""], kv_tokens=1.0)
_LETTERS: Final = {(): "", (2,): "R", (3,): "W", (2, 3): "RW"}

VIEW_SHAPES: Final[dict[str, str]] = {
    entry.name: _LETTERS[value.shape]
    for entry in dataclasses.fields(FleetView)
    if isinstance(value := getattr(_PROBE, entry.name), np.ndarray)
}
"""By column of `FleetView`: `R`, `W` or `RW`."""


def _shape_of(field: str) -> str:
    one: dict[str, Any] = {field: 1.0}
    return _LETTERS[np.shape(Limits(**one).to_raw(_PROBE)[field])]


_NO_NUMBERS: Final = {"memory", "order", "placement", "placement_args", "shed"}
_CHOICES: Final = ["placement", "shed", "placement_args.sticky"]
_PARAMETERS: Final = [f"placement_args.{name}" for own in PLACEMENTS.values() for name in own]

LIMIT_SHAPES: Final[dict[str, str]] = (
    {entry.name: _shape_of(entry.name) for entry in dataclasses.fields(Limits) if entry.name not in _NO_NUMBERS}
    | dict.fromkeys([*_CHOICES, *_PARAMETERS], "")
    | {"order": "W"}
)
"""By field of `Limits`, as `numbers` names them: `""`, `R`, `W` or `RW`."""

_RELATIVE: Final = 1e-9
"""Sums in another order differ in their last bits; anything more is another answer."""


def numbers(raw: RawLimits) -> RawLimits:
    """Spelled-out limits as numbers alone: names by their places in the lists, each parameter by itself.

    Example:
        >>> numbers({"placement": "round_robin", "placement_args": {"sticky": 0}, "shed": True})
        {'placement': 1.0, 'placement_args.sticky': 0.0, 'shed': 1.0}
    """
    told: RawLimits = {}
    for name, value in raw.items():
        if name == "placement_args":
            told.update({f"{name}.{parameter}": float(value[parameter]) for parameter in sorted(value)})
        elif name == "order":
            told[name] = np.array([float(ORDERS.index(order)) for order in value])
        elif name == "placement":
            told[name] = float(list(PLACEMENTS).index(value))
        else:
            told[name] = float(value) if isinstance(value, bool) else value
    return told


def columns(view: FleetView) -> dict[str, NDArray[Any]]:
    """The columns of a view by name."""
    return {name: getattr(view, name) for name in VIEW_SHAPES}


def rebuilt(view: FleetView, changed: dict[str, Any], **names: Sequence[str]) -> FleetView:
    """A view with other columns and, where given, other `replicas` or `workloads`."""
    return FleetView.build(
        names.get("replicas", view.replicas),
        names.get("workloads", view.workloads),
        step=view.step,
        now_s=view.now_s,
        elapsed_s=view.elapsed_s,
        **changed,
    )


def reordered(view: FleetView, order: Sequence[int], axis: str) -> FleetView:
    """The same fleet with its rows (`axis` R) or its columns (W) in another order; names move with their numbers.

    Example:
        >>> view = FleetView.build(["r0"], ["a", "b"], held_new=[1, 2])
        >>> other = reordered(view, [1, 0], "W")
        >>> other.workloads, other.held_new
        (('b', 'a'), array([2, 1]))
    """
    at = list(order)
    changed = {
        name: np.take(array, at, axis=VIEW_SHAPES[name].index(axis)) if axis in VIEW_SHAPES[name] else array
        for name, array in columns(view).items()
    }
    if axis == "R":
        return rebuilt(view, changed, replicas=[view.replicas[i] for i in at])
    return rebuilt(view, changed, workloads=[view.workloads[i] for i in at])


def rescaled(view: FleetView, factor: int) -> FleetView:
    """The same fleet with everything that is measured in tokens multiplied; counts and seconds stay."""
    scaled = {name: array * factor if "token" in name else array for name, array in columns(view).items()}
    return rebuilt(view, scaled)


def with_empty_workload(view: FleetView, name: str, estimate: float) -> FleetView:
    """The same fleet with one more workload, last, that has no session and nobody waiting.

    Args:
        view: The view.
        name: Its name.
        estimate: What its estimates of size, growth, output and residency say; 0 = unknown.
    """
    estimates = {"context_tokens", "growth_tokens", "final_tokens", "output_tokens", "residency_s"}
    empty = columns(FleetView.build(view.replicas, [name]))
    changed = {}
    for column, array in columns(view).items():
        extra = np.full_like(empty[column], estimate) if column in estimates else empty[column]
        changed[column] = np.concatenate([array, extra], axis=-1) if "W" in VIEW_SHAPES[column] else array
    changed["token_seconds"][-1] = estimate * estimate
    return rebuilt(view, changed, workloads=[*view.workloads, name])


def later(view: FleetView, steps: int) -> FleetView:
    """The same fleet some control steps of one second later, nothing else changed."""
    return dataclasses.replace(view, step=view.step + steps, now_s=view.now_s + steps)


def alike(views: Sequence[FleetView], axis: str) -> list[list[int]]:
    """Rows (R) or columns (W) that no number in any of the views tells apart; their names do not count."""
    tables = [
        np.moveaxis(array, VIEW_SHAPES[name].index(axis), 0).astype(np.float64)
        for view in views
        for name, array in columns(view).items()
        if axis in VIEW_SHAPES[name]
    ]
    table = np.concatenate([part.reshape(len(part), -1) for part in tables], axis=1)
    _, classes = np.unique(np.nan_to_num(table, nan=-1.0), axis=0, return_inverse=True)
    return [np.flatnonzero(classes.ravel() == at).tolist() for at in range(int(classes.max(initial=-1)) + 1)]


def where(name: str, at: Sequence[int], view: FleetView) -> str:
    """A cell of a field or column in words, `session_cap[r0]`."""
    axes = {"R": view.replicas, "W": view.workloads}
    shape = (VIEW_SHAPES | LIMIT_SHAPES)[name]
    return name + (f"[{', '.join(axes[axis][i] for axis, i in zip(shape, at, strict=True))}]" if shape else "")


def difference(first: RawLimits, second: RawLimits, view: FleetView, *, exact: bool = False) -> str | None:
    """The first cell in which two sets of limits differ, in words; None where they are the same.

    Args:
        first: Limits, spelled out.
        second: Other limits.
        view: Names of the rows of both.
        exact: False: sums in another order may differ in their last bits.
    """
    if first.keys() != second.keys():
        return f"sets {', '.join(sorted(first)) or 'nothing'} once and {', '.join(sorted(second)) or 'nothing'} then"
    for name, value in first.items():
        a, b = np.asarray(value), np.asarray(second[name])
        bad = np.argwhere(~np.isclose(a, b, rtol=0.0 if exact else _RELATIVE, atol=0.0))
        if len(bad):
            at = tuple(int(i) for i in bad[0])
            return f"{where(name, at, view)} is {a[at]:.17g} once and {b[at]:.17g} then"
    return None
