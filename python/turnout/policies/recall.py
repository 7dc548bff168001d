"""What a policy remembers of every replica, kept by name: rows come and go, names stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from turnout.policies.limits import Limits
    from turnout.policies.view import FleetView

Columns = dict[str, "NDArray[np.float64]"]


def recalled(view: FleetView, last: Limits, policy: str, first: Mapping[str, float]) -> Columns:
    """What was kept of the replicas in the view.

    Args:
        view: The fleet as it is now.
        last: The last limits, whose memory was made by `kept`.
        policy: A word that sets this policy's entries apart from those of another in the same memory.
        first: By entry, what holds for a replica that was not there before.

    Returns:
        By entry of `first`, (R,) values in the order of the view.

    Example:
        >>> from turnout.policies import FleetView, Limits
        >>> before = FleetView.build(["r0", "r1"], [])
        >>> last = Limits(memory=kept(before, "aimd", {"cap": np.array([3.0, 5.0])}))
        >>> recalled(FleetView.build(["r1", "r2"], []), last, "aimd", {"cap": 8.0})
        {'cap': array([5., 8.])}
    """
    rows = {name: at for at, name in enumerate(last.memory.get(f"{policy}.replicas", np.array([])).tolist())}
    at = np.array([rows.get(name, -1) for name in view.replicas], np.int64)
    told = {}
    for entry, default in first.items():
        values = np.append(last.memory.get(f"{policy}.{entry}", np.array([])).astype(np.float64), default)
        told[entry] = values[np.where(at < 0, len(values) - 1, at)]
    return told


def kept(view: FleetView, policy: str, columns: Columns) -> dict[str, NDArray[np.generic]]:
    """The memory from which `recalled` reads.

    Args:
        view: The fleet as it is now.
        policy: As in `recalled`.
        columns: By entry, (R,) values in the order of the view.

    Returns:
        Arrays for `Limits.memory`.
    """
    names = np.array([*view.replicas, ""])[:-1]  # the empty one makes it text where there are no replicas
    return {f"{policy}.replicas": names, **{f"{policy}.{entry}": values for entry, values in columns.items()}}
