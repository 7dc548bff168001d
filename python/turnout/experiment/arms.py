"""The policies that experiments compare, with their parameters, and ways to mislead them."""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from turnout.errors import InvalidArgument
from turnout.policies.misa import Misa, MisaT
from turnout.policies.registry import POLICIES, lookup
from turnout.policies.session_admission import SessionAdmission

if TYPE_CHECKING:
    from turnout.policies.contract import Policy
    from turnout.policies.limits import Limits
    from turnout.policies.view import FleetView

ESTIMATES: Final = (
    "context_tokens", "growth_tokens", "final_tokens", "output_tokens", "residency_s", "token_seconds",
)  # fmt: skip
"""What is estimated from sessions, by workload."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy as plain data.

    Attributes:
        name: Name in tables.
        policy: Name of the policy, see `policies.lookup`.
        args: Its arguments; `session_cap: true` gives the quotas the cap of `SessionAdmission`.
        factor: Factor on every estimate that it reads: estimators that are wrong for good.
        noise: Standard deviation of the logarithm of a factor drawn anew for each estimate and step.
        stale_steps: It reads the fleet as it was so many control steps ago.
        guarantee: Share of the fleet's KV by workload that its limits guarantee.
    """

    name: str
    policy: str
    args: dict[str, Any] = field(default_factory=dict)
    factor: float = 1.0
    noise: float = 0.0
    stale_steps: int = 0
    guarantee: dict[str, float] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """What decides its limits."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "name"}


def arm(policy: str, name: str | None = None, **args: Any) -> Arm:  # noqa: ANN401 - arguments of the policy
    """A policy with its arguments under a name."""
    shown = ", ".join(f"{key}={value}" for key, value in args.items())
    return Arm(name or (f"{policy}({shown})" if args else policy), policy, args)


def make(chosen: Arm) -> Policy:
    """Make the policy of an arm.

    Args:
        chosen: The arm.

    Returns:
        A new policy.

    Raises:
        UnknownPolicy: There is no such policy.
        InvalidArgument: It does not take these arguments.

    Example:
        >>> make(arm("block-time", kappa=0.5)).kappa
        0.5
    """
    args = dict(chosen.args)
    if chosen.policy in ("misa", "misa-t"):
        quota = Misa if chosen.policy == "misa" else MisaT
        cap = SessionAdmission() if args.pop("session_cap", False) else None
        policy: Policy = quota(**args, session_cap=cap)
    elif not args:
        policy = lookup(chosen.policy)
    elif chosen.policy in POLICIES:
        policy = POLICIES[chosen.policy](**args)
    else:
        raise InvalidArgument(f"args: got {args} for {chosen.policy!r}, accepted for {', '.join(POLICIES)}")
    if chosen.factor != 1.0 or chosen.noise or chosen.stale_steps:
        policy = Misled(policy, chosen.factor, chosen.noise, chosen.stale_steps)
    return Guaranteed(policy, chosen.guarantee) if chosen.guarantee else policy


class Misled:
    """A policy that reads wrong estimates, or the fleet as it was.

    Not a pure function where it is stale: it is for experiments, which play every run in one process from its start.

    Args:
        policy: Who decides.
        factor: See `Arm`.
        noise: See `Arm`.
        stale_steps: See `Arm`.
    """

    def __init__(self, policy: Policy, factor: float, noise: float, stale_steps: int) -> None:
        """Store who decides, and how it is misled."""
        self.policy, self.factor, self.noise = policy, factor, noise
        self.views: deque[FleetView] = deque(maxlen=stale_steps + 1)

    def limits(self, view: FleetView, last: Limits) -> Limits:
        """Decide on what the fleet is not, see `Policy.limits`."""
        rng = np.random.default_rng(view.step)
        shape = len(view.workloads)
        wrong = {
            name: getattr(view, name) * self.factor * rng.lognormal(0.0, self.noise, shape)
            if self.noise
            else getattr(view, name) * self.factor
            for name in ESTIMATES
        }
        self.views.append(dataclasses.replace(view, **wrong))
        return self.policy.limits(self.views[0], last)


class Guaranteed:
    """A policy whose workloads have a share of the fleet that nobody takes from them.

    Args:
        policy: Who decides about all else.
        shares: Share of the fleet's KV by workload.
    """

    def __init__(self, policy: Policy, shares: dict[str, float]) -> None:
        """Store who decides, and the shares."""
        self.policy, self.shares = policy, shares

    def limits(self, view: FleetView, last: Limits) -> Limits:
        """Add the guarantees, see `Policy.limits`."""
        fleet = float(view.kv_tokens.sum())
        guarantee = np.array([self.shares.get(name, 0.0) * fleet for name in view.workloads])
        return dataclasses.replace(self.policy.limits(view, last), guarantee_tokens=guarantee)
