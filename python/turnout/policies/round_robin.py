"""Round robin: one replica after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from turnout.policies.arguments import flag
from turnout.policies.limits import Limits

if TYPE_CHECKING:
    from turnout.policies.view import FleetView


class RoundRobin:
    """Sessions go round the replicas in order of joining; nothing is held back.

    The rule of most trainers' own dispatchers, which choose a server once per trajectory.

    Args:
        sticky: False sends every turn to the next replica, as a proxy without sessions does: what the session's last
            replica has cached is found again by chance.

    Raises:
        InvalidArgument: `sticky` is neither True nor False.

    Example:
        >>> from turnout.policies import FleetView
        >>> limits = RoundRobin(sticky=False).limits(FleetView.build(["r0"], ["agent"]), Limits())
        >>> limits.placement, limits.placement_args
        ('round_robin', {'sticky': 0.0})
    """

    def __init__(self, *, sticky: bool = True) -> None:
        """Choose whether a session keeps its replica."""
        self.sticky = flag("sticky", sticky)

    def limits(self, view: FleetView, last: Limits) -> Limits:  # noqa: ARG002 - the contract's signature
        """Set the placement and lift every limit, see `Policy.limits`."""
        return Limits(
            ceiling_tokens=np.inf,
            overflow_tokens=np.inf,
            placement="round_robin",
            placement_args={"sticky": float(self.sticky)},
        )
