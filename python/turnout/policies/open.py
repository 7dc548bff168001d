"""No admission control: what a prefix-aware router does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from turnout.policies.limits import Limits

if TYPE_CHECKING:
    from turnout.policies.view import FleetView


class Open:
    """Place every turn at once, where its prefix and the load say; hold nothing.

    The baseline: past the fleet's KV capacity sessions evict each other's prefixes between their turns.

    Example:
        >>> from turnout.policies import FleetView
        >>> Open().limits(FleetView.build(["r0"], ["agent"]), Limits()).ceiling_tokens
        inf
    """

    def limits(self, view: FleetView, last: Limits) -> Limits:  # noqa: ARG002 - the contract's signature
        """Lift every limit, see `Policy.limits`."""
        return Limits(ceiling_tokens=np.inf, overflow_tokens=np.inf)
