"""Cache-aware routing in two regimes, the default of SGLang's router and its forks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from turnout.policies.arguments import flag, number
from turnout.policies.limits import Limits

if TYPE_CHECKING:
    from turnout.policies.view import FleetView

_ACCEPTED = "a finite number >= 0"


class CacheAware:
    """Follow the longest cached prefix while the fleet is balanced, the shortest queue while it is not.

    With L_e turns in flight on replica e: if max L - min L > `balance_abs` and max L > `balance_rel` * min L, the
    replica with the fewest. Else the one with the longest cached prefix, if that covers more than `cache_threshold` of
    the prompt, and if not the one that has least in its cache. Nothing is held back. The rule and its defaults are
    those of `cache_aware.rs` in SGLang's router; ours matches tokens where the original matches characters, and knows
    what an engine evicted where the original guesses by the size of a tree.

    Args:
        cache_threshold: Part of the prompt, 0..1.
        balance_abs: Turns.
        balance_rel: Factor.
        sticky: False decides about every turn, as the original does. A match brings most turns back to their session's
            replica; out of balance they go elsewhere and are computed again.

    Raises:
        InvalidArgument: An argument is out of range.

    Example:
        >>> from turnout.policies import FleetView
        >>> CacheAware(balance_abs=8).limits(FleetView.build(["r0"], ["agent"]), Limits()).placement_args
        {'cache_threshold': 0.3, 'balance_abs': 8.0, 'balance_rel': 1.5, 'sticky': 0.0}
    """

    def __init__(
        self,
        *,
        cache_threshold: float = 0.3,
        balance_abs: float = 64.0,
        balance_rel: float = 1.5,
        sticky: bool = False,
    ) -> None:
        """Store the thresholds, and whether a session keeps its replica."""
        self.cache_threshold = number("cache_threshold", cache_threshold, "a number from 0 to 1", most=1.0)
        self.balance_abs = number("balance_abs", balance_abs, _ACCEPTED)
        self.balance_rel = number("balance_rel", balance_rel, _ACCEPTED)
        self.sticky = flag("sticky", sticky)

    def limits(self, view: FleetView, last: Limits) -> Limits:  # noqa: ARG002 - the contract's signature
        """Set the placement and lift every limit, see `Policy.limits`."""
        return Limits(
            ceiling_tokens=np.inf,
            overflow_tokens=np.inf,
            placement="cache_aware",
            placement_args={
                "cache_threshold": self.cache_threshold,
                "balance_abs": self.balance_abs,
                "balance_rel": self.balance_rel,
                "sticky": float(self.sticky),
            },
        )
