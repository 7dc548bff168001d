"""The view of the fleet as messages."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.server.schema import ReplicaState, View, finite

if TYPE_CHECKING:
    from turnout.policies import FleetView


def column(array: np.ndarray[Any, Any]) -> list[Any]:
    """A column as lists, null for NaN and the infinities.

    Args:
        array: (R,), (W,) or (R, W).

    Returns:
        Numbers and truth values of Python.

    Example:
        >>> column(np.array([1.0, np.inf]))
        [1.0, None]
    """
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return list(array.tolist())
    shown = array.astype(object)
    shown[~np.isfinite(array)] = None
    return list(shown.tolist())


def view_of(view: FleetView) -> View:
    """A view as a message.

    Args:
        view: The view.

    Returns:
        All of its columns by name.
    """
    names = [field.name for field in dataclasses.fields(view)]
    columns = {name: column(getattr(view, name)) for name in names if isinstance(getattr(view, name), np.ndarray)}
    return View(
        step=view.step,
        now_s=view.now_s,
        elapsed_s=view.elapsed_s,
        replicas=list(view.replicas),
        workloads=list(view.workloads),
        columns=columns,
    )


def replicas_of(view: FleetView) -> list[ReplicaState]:
    """The replicas of a view.

    Args:
        view: The view.

    Returns:
        One state per replica, in row order.
    """
    return [
        ReplicaState(
            name=name,
            accepting=bool(view.accepting[row]),
            exact=bool(view.exact[row]),
            weight_version=int(view.weight_version[row]),
            kv_tokens=finite(float(view.kv_tokens[row])),
            charge_tokens=float(view.charge_tokens[row]),
            commit_tokens=float(view.commit_tokens[row]),
            idle_tokens=float(view.idle_tokens[row]),
            running_turns=int(view.running_turns[row]),
            hit_fraction=finite(float(view.hit_fraction[row])),
        )
        for row, name in enumerate(view.replicas)
    ]
