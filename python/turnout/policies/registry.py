"""Find a policy by the name that a user types."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Final

from turnout.errors import UnknownPolicy
from turnout.policies.block_time import BlockTime
from turnout.policies.cache_aware import CacheAware
from turnout.policies.concur import Concur
from turnout.policies.contract import Policy
from turnout.policies.dynamo_cost import DynamoCost
from turnout.policies.lease_gate import LeaseGate
from turnout.policies.misa import Misa, MisaT
from turnout.policies.open import Open
from turnout.policies.round_robin import RoundRobin
from turnout.policies.session_admission import SessionAdmission
from turnout.policies.static_cap import StaticCap
from turnout.policies.sticky_least_loaded import StickyLeastLoaded

if TYPE_CHECKING:
    from collections.abc import Callable

POLICIES: Final[dict[str, Callable[[], Policy]]] = {
    "open": Open,
    "static-cap": StaticCap,
    "misa": Misa,
    "misa-t": MisaT,
    "block-time": BlockTime,
    "lease-gate": LeaseGate,
    "session-admission": SessionAdmission,
    "concur": Concur,
    "round-robin": RoundRobin,
    "sticky-least-loaded": StickyLeastLoaded,
    "cache-aware": CacheAware,
    "dynamo-cost": DynamoCost,
}
"""The shipped policies by name."""

_ACCEPTED: Final = f"{', '.join(POLICIES)}, static-cap:N (N sessions per replica) or package.module:Class"


def lookup(name: str) -> Policy:
    """Make the policy of this name.

    Args:
        name: A shipped name (those of `POLICIES`, and `static-cap:24`), or `package.module:attribute` where the
            attribute is a policy, or a class or function that makes one without arguments.

    Returns:
        A new policy (the attribute itself where it is an instance).

    Raises:
        UnknownPolicy: Nothing of this name exists, or what exists is no policy.

    Example:
        >>> lookup("static-cap:24").sessions
        24
        >>> lookup("fifo")
        Traceback (most recent call last):
        turnout.errors.UnknownPolicy: policy: got 'fifo', accepted is open, static-cap, misa, misa-t, block-time, \
lease-gate, session-admission, concur, round-robin, sticky-least-loaded, cache-aware, dynamo-cost, \
static-cap:N (N sessions per replica) or package.module:Class
    """
    if name in POLICIES:
        return POLICIES[name]()
    head, _, tail = name.partition(":")
    if head == "static-cap":
        if not tail.isascii() or not tail.isdigit() or int(tail) < 1:
            raise UnknownPolicy(f"policy: got {name!r}, accepted is static-cap:N with a whole number N >= 1")
        return StaticCap(int(tail))
    if head and tail:
        return _imported(name, head, tail)
    raise UnknownPolicy(f"policy: got {name!r}, accepted is {_ACCEPTED}")


def _imported(name: str, module: str, attribute: str) -> Policy:
    """The policy `attribute` of an importable module."""
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownPolicy(f"policy: {name!r} cannot be imported ({error}), accepted is {_ACCEPTED}") from error
    try:
        policy = found() if inspect.isclass(found) or inspect.isroutine(found) else found
    except TypeError as error:
        raise UnknownPolicy(f"policy: {name!r} cannot be made without arguments ({error})") from error
    if not isinstance(policy, Policy):
        raise UnknownPolicy(f"policy: {name!r} is {type(policy).__name__}, accepted is a class with limits(view, last)")
    return policy
