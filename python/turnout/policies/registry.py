"""Find a policy by the name that a user types."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import TYPE_CHECKING, Any, Final

from turnout.errors import InvalidArgument, UnknownPolicy
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
    from collections.abc import Callable, Mapping

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


def lookup(name: str, arguments: Mapping[str, Any] | None = None) -> Policy:
    """Make the policy of this name.

    Args:
        name: A shipped name (those of `POLICIES`, and `static-cap:24`), or `package.module:attribute` where the
            attribute is a policy, or a class or function that makes one.
        arguments: What the class or function is given, by name.

    Returns:
        A new policy (the attribute itself where it is an instance).

    Raises:
        UnknownPolicy: Nothing of this name exists, or what exists is no policy.
        InvalidArgument: It does not take one of the arguments.

    Example:
        >>> lookup("static-cap:24").sessions
        24
        >>> lookup("block-time", {"kappa": 2.0}).kappa
        2.0
        >>> lookup("fifo")
        Traceback (most recent call last):
        turnout.errors.UnknownPolicy: policy: got 'fifo', accepted is open, static-cap, misa, misa-t, block-time, \
lease-gate, session-admission, concur, round-robin, sticky-least-loaded, cache-aware, dynamo-cost, \
static-cap:N (N sessions per replica) or package.module:Class
    """
    arguments = arguments or {}
    if name in POLICIES:
        return _made(POLICIES[name], arguments)
    head, _, tail = name.partition(":")
    if head == "static-cap":
        if not tail.isascii() or not tail.isdigit() or int(tail) < 1:
            raise UnknownPolicy(f"policy: got {name!r}, accepted is static-cap:N with a whole number N >= 1")
        return _made(functools.partial(StaticCap, int(tail)), arguments)
    if head and tail:
        return _imported(name, head, tail, arguments)
    raise UnknownPolicy(f"policy: got {name!r}, accepted is {_ACCEPTED}")


def _made(make: Callable[..., Any], arguments: Mapping[str, Any]) -> Policy:
    """Call a constructor with arguments that a user typed."""
    try:
        accepted = inspect.signature(make).parameters
    except ValueError:
        accepted = None  # a constructor that does not say what it takes
    if accepted is not None and not any(each.kind is each.VAR_KEYWORD for each in accepted.values()):
        for argument, value in arguments.items():
            if argument not in accepted:
                known = ", ".join(accepted) or "nothing"
                message = f"{argument}: got {value!r}, accepted is an argument of the policy: {known}"
                raise InvalidArgument(message, argument, repr(value), known)
    policy: Policy = make(**arguments)
    return policy


def _imported(name: str, module: str, attribute: str, arguments: Mapping[str, Any]) -> Policy:
    """The policy `attribute` of an importable module."""
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownPolicy(f"policy: {name!r} cannot be imported ({error}), accepted is {_ACCEPTED}") from error
    try:
        policy = _made(found, arguments) if inspect.isclass(found) or inspect.isroutine(found) else found
    except TypeError as error:
        given = f"with {dict(arguments)}" if arguments else "without arguments"
        raise UnknownPolicy(f"policy: {name!r} cannot be made {given} ({error})") from error
    if not isinstance(policy, Policy):
        raise UnknownPolicy(f"policy: {name!r} is {type(policy).__name__}, accepted is a class with limits(view, last)")
    return policy
