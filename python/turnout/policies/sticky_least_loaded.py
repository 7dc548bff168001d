"""Sticky, least loaded: a session starts where least is going on and stays there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from turnout.policies.arguments import number
from turnout.policies.limits import Limits

if TYPE_CHECKING:
    from turnout.policies.view import FleetView

_ACCEPTED = "a finite number >= 0"


class StickyLeastLoaded:
    """The first turn of a session goes to the replica with the least load, its later turns stay; nothing is held back.

    load_e = turns * (turns in flight on e) + sessions * (sessions on e that have not ended). The rule of verl's load
    balancer (turns in flight, pinned by request id) and of `sticky_least_loaded` in the routers of trainers that tell
    when a session is finished (sessions held). Ties are drawn, never given to the first replica: that is how sessions
    pile up on one. End-of-session signals are given.

    Args:
        turns: Weight of a turn in flight.
        sessions: Weight of a session, running or between two turns.

    Raises:
        InvalidArgument: A weight is no finite number of at least 0.

    Example:
        >>> from turnout.policies import FleetView
        >>> StickyLeastLoaded().limits(FleetView.build(["r0"], ["agent"]), Limits()).placement_args
        {'turns': 0.0, 'sessions': 1.0}
    """

    def __init__(self, *, turns: float = 0.0, sessions: float = 1.0) -> None:
        """Store the weights."""
        self.turns = number("turns", turns, _ACCEPTED)
        self.sessions = number("sessions", sessions, _ACCEPTED)

    def limits(self, view: FleetView, last: Limits) -> Limits:  # noqa: ARG002 - the contract's signature
        """Set the placement and lift every limit, see `Policy.limits`."""
        return Limits(
            ceiling_tokens=np.inf,
            overflow_tokens=np.inf,
            placement="least_loaded",
            placement_args={"turns": self.turns, "sessions": self.sessions},
        )
