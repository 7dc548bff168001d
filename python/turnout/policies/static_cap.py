"""A fixed number of sessions per replica: the usual hand-tuned baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from turnout.errors import InvalidArgument
from turnout.policies.limits import Limits

if TYPE_CHECKING:
    from turnout.policies.view import FleetView


LEASE_S: Final = 600.0
"""A session keeps its slot through its tool gaps: the longest lease that the core grants, s."""


class StaticCap:
    """At most `sessions` charged sessions on each replica, whatever they weigh; no ceiling on tokens.

    Args:
        sessions: The cap, at least 1. The right value depends on the workload and is found by a sweep.

    Raises:
        InvalidArgument: `sessions` is not a whole number >= 1.

    Example:
        >>> from turnout.policies import FleetView
        >>> StaticCap(24).limits(FleetView.build(["r0"], ["agent"]), Limits()).session_cap
        24
    """

    def __init__(self, sessions: int = 16) -> None:
        """Store the cap."""
        if isinstance(sessions, bool) or not isinstance(sessions, int) or sessions < 1:
            raise InvalidArgument(f"sessions: got {sessions!r}, accepted is a whole number >= 1")
        self.sessions = sessions

    def limits(self, view: FleetView, last: Limits) -> Limits:  # noqa: ARG002 - the contract's signature
        """Set `session_cap` and the longest lease, see `Policy.limits`."""
        return Limits(session_cap=self.sessions, ceiling_tokens=np.inf, overflow_tokens=np.inf, lease_s=LEASE_S)
