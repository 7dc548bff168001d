"""The contract between the core and a policy: it reads a `FleetView` and returns `Limits`.

The core enforces limits; a policy computes limits. A policy is a pure function: the same view and the same last limits
give the same answer, and all it may remember travels in `Limits.memory`. It runs outside of every lock, and no Python
runs while the core decides.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from turnout.policies.limits import Limits, RawLimits
from turnout.policies.view import FleetView

__all__ = ["FleetView", "Limits", "Policy", "RawLimits"]


@runtime_checkable
class Policy(Protocol):
    """Anything with a method `limits(view, last)`.

    Example:
        >>> class HalfFull:
        ...     def limits(self, view, last):
        ...         return Limits(ceiling_tokens=0.5 * view.kv_tokens)
        >>> isinstance(HalfFull(), Policy)
        True
    """

    def limits(self, view: FleetView, last: Limits) -> Limits:
        """Compute the set-points that hold until the next control step.

        Args:
            view: The fleet as it is now.
            last: The limits now in force, `Limits()` at the first step; `last.memory` is what this policy kept.

        Returns:
            The new limits. A field left `None` takes its default, never its last value.
        """
        ...
