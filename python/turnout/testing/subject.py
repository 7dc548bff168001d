"""The policy under test: made anew for every scenario, asked, and blamed by name of the law."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from turnout.errors import InvalidArgument, PolicyError
from turnout.policies import FleetView, Limits, Policy
from turnout.testing.tables import numbers
from turnout.testing.violation import PolicyViolation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnout.policies.contract import RawLimits

PolicySource = Any
"""A policy, or a class or function that makes one without arguments."""


class Subject:
    """A policy while one law looks at it.

    Args:
        given: A policy, or a class or function that makes one without arguments. A policy is copied before it is asked
            anything, so that no scenario sees what another one left in it.
        law: Name of the law.
    """

    def __init__(self, given: PolicySource, law: str) -> None:
        self.given = given
        self.law = law

    def fresh(self) -> Policy:
        """A policy that was never asked.

        Raises:
            InvalidArgument: What was given makes no policy, or cannot be copied.
        """
        makes = isinstance(self.given, type) or (callable(self.given) and not hasattr(self.given, "limits"))
        make: Callable[[], object] = self.given if makes else lambda: copy.deepcopy(self.given)
        try:
            policy = make()
        except TypeError as error:
            raise InvalidArgument(
                f"policy: {self.given!r} cannot be {'called' if makes else 'copied'} ({error}), "
                "accepted is a policy, or what makes one without arguments"
            ) from error
        if not isinstance(policy, Policy):
            raise InvalidArgument(f"policy: got {type(policy).__name__}, accepted is a class with limits(view, last)")
        return policy

    def ask(self, policy: Policy, view: FleetView, last: Limits) -> Limits:
        """One call of the policy, under the law's name if it fails.

        NumPy's warnings are silenced: whether they are errors is the business of the caller's own tests.
        """
        try:
            with np.errstate(all="ignore"):
                limits: object = policy.limits(view, last)
        except Exception as error:  # noqa: BLE001 - whatever a policy raises is the finding
            self.breaks(f"the policy raised {type(error).__name__}: {error}")
        if not isinstance(limits, Limits):
            self.breaks(f"the policy returned {type(limits).__name__}, accepted is Limits")
        return limits

    def spell(self, limits: Limits, view: FleetView) -> RawLimits:
        """The limits as they would be sent to the core, as numbers."""
        try:
            return numbers(limits.to_raw(view))
        except PolicyError as error:
            self.breaks(str(error))

    def answers(self, views: Sequence[FleetView]) -> list[RawLimits]:
        """What a fresh policy says to views that follow each other; what it remembers takes part."""
        policy, last, told = self.fresh(), Limits(), []
        for view in views:
            last = self.ask(policy, view, last)
            told.append(self.spell(last, view))
        return told

    def breaks(self, numbers: str) -> NoReturn:
        """Raise the violation."""
        raise PolicyViolation(self.law, numbers)
