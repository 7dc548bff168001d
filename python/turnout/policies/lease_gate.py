"""A lease on idle sessions and nothing else: the gate that session-aware routers use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from turnout.errors import InvalidArgument
from turnout.policies.limits import Limits

if TYPE_CHECKING:
    from turnout.policies.view import FleetView

LONGEST_S: Final = 600.0
"""The longest lease that the core grants, s."""


class LeaseGate:
    """Admit while the KV of charged sessions fits; an idle session may be put aside once its lease is over.

    Ceiling and overflow are the capacity B, nothing is reserved for growth, and turns that fit pass those that do not.
    As in the public lease gates, but for their forced resume after half an hour: nothing here is ever admitted past
    the ceiling.

    Args:
        lease_s: How long an idle session is protected, 0..600 s.

    Raises:
        InvalidArgument: `lease_s` is out of range.

    Example:
        >>> from turnout.policies import FleetView
        >>> limits = LeaseGate().limits(FleetView.build(["r0"], ["agent"], kv_tokens=1_000), Limits())
        >>> limits.ceiling_tokens, limits.lease_s, limits.bypass
        (array([1000.]), 30.0, inf)
    """

    def __init__(self, lease_s: float = 30.0) -> None:
        """Store the lease."""
        if isinstance(lease_s, bool) or not isinstance(lease_s, int | float) or not 0 <= lease_s <= LONGEST_S:
            raise InvalidArgument(f"lease_s: got {lease_s!r}, accepted is a number from 0 to {LONGEST_S:g}")
        self.lease_s = float(lease_s)

    def limits(self, view: FleetView, last: Limits) -> Limits:  # noqa: ARG002 - the contract's signature
        """Set ceiling, overflow, lease and bypass, see `Policy.limits`."""
        return Limits(
            ceiling_tokens=view.kv_tokens, overflow_tokens=view.kv_tokens, lease_s=self.lease_s, bypass=np.inf
        )
