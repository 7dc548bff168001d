"""The cost of Dynamo's KV router."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from turnout.policies.arguments import flag, number
from turnout.policies.limits import Limits

if TYPE_CHECKING:
    from turnout.policies.view import FleetView

_ACCEPTED = "a finite number >= 0"


class DynamoCost:
    """Place where `overlap_weight * prefill blocks + decode blocks` is least; nothing is held back.

    Prefill blocks: what the replica would have to prefill with the turn, its queue included; decode blocks: what would
    be held there with it. At a temperature above 0 the replica is drawn with odds exp(-(logit / range) / temperature).
    The formula and the defaults are those of `DefaultWorkerSelector` in Dynamo's KV router.

    Args:
        overlap_weight: Weight of the prefill.
        temperature: 0 takes the least cost; higher values spread.
        sticky: False decides about every turn, as the original does, and counts as held only what turns in flight
            hold. True keeps a session on its replica and counts what it holds between its turns.

    Raises:
        InvalidArgument: An argument is out of range.

    Example:
        >>> from turnout.policies import FleetView
        >>> DynamoCost(overlap_weight=2).limits(FleetView.build(["r0"], ["agent"]), Limits()).placement_args
        {'overlap_weight': 2.0, 'temperature': 0.0, 'sticky': 0.0}
    """

    def __init__(self, *, overlap_weight: float = 1.0, temperature: float = 0.0, sticky: bool = False) -> None:
        """Store the parameters, and whether a session keeps its replica."""
        self.overlap_weight = number("overlap_weight", overlap_weight, _ACCEPTED)
        self.temperature = number("temperature", temperature, _ACCEPTED)
        self.sticky = flag("sticky", sticky)

    def limits(self, view: FleetView, last: Limits) -> Limits:  # noqa: ARG002 - the contract's signature
        """Set the placement and lift every limit, see `Policy.limits`."""
        return Limits(
            ceiling_tokens=np.inf,
            overflow_tokens=np.inf,
            placement="dynamo",
            placement_args={
                "overlap_weight": self.overlap_weight,
                "temperature": self.temperature,
                "sticky": float(self.sticky),
            },
        )
