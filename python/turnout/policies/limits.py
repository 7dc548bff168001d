"""What a policy returns: set-points that the core enforces until the next control step."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from turnout.errors import PolicyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from turnout.policies.view import FleetView

RawLimits = dict[str, Any]
"""By field: a float, a float64 array, or names, parameters and a truth value as they are."""


class _Rule(NamedTuple):
    """Shape (`""`, `R`, `W` or `RW`) and what values are accepted."""

    shape: str
    infinite: bool = False
    positive: bool = False


_RULES: Final[dict[str, _Rule]] = {
    "session_cap": _Rule("R", infinite=True),
    "workload_cap": _Rule("RW", infinite=True),
    "turn_cap": _Rule("R", infinite=True),
    "ceiling_tokens": _Rule("R", infinite=True),
    "overflow_tokens": _Rule("R", infinite=True),
    "growth_tokens": _Rule("W"),
    "output_tokens": _Rule("W"),
    "weight": _Rule("W", positive=True),
    "price": _Rule("W"),
    "share": _Rule("W", positive=True),
    "guarantee_tokens": _Rule("W"),
    "limit_tokens": _Rule("W", infinite=True),
    "lease_s": _Rule("RW"),
    "bypass": _Rule("", infinite=True),
    "lookahead": _Rule("", positive=True),
    "cost_prefill": _Rule("R"),
    "cost_backlog": _Rule("R"),
    "cost_decode": _Rule("R"),
    "cost_spread": _Rule("R"),
}

_ANY: Final = (0.0, float("inf"), "a finite number >= 0")
_SHARE: Final = (0.0, 1.0, "a number from 0 to 1")

ORDERS: Final = ("fifo", "longest_first", "shortest_first")

PLACEMENTS: Final[dict[str, dict[str, tuple[float, float, str]]]] = {
    "cost": {},
    "round_robin": {},
    "least_loaded": {"turns": _ANY, "sessions": _ANY},
    "cache_aware": {"cache_threshold": _SHARE, "balance_abs": _ANY, "balance_rel": _ANY},
    "dynamo": {"overlap_weight": _ANY, "temperature": _ANY},
    "hash": {},
}
"""By placement its parameters: least and largest value, and both in words. Each also takes `sticky`, 0 or 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """Set-points for a fleet of R replicas and W workloads. Every field is optional; `None` means its default.

    A scalar stands for every row and column; otherwise the shape must be exact. Rows follow the view that the limits
    were computed from, and are applied by name. Lower caps evict nobody, unless `shed`: they stop admission.

    Attributes:
        session_cap: (R,) charged sessions above which no new or paused session is admitted; inf (default) = none.
        workload_cap: (R, W) the same per workload; 0 closes the replica to the workload; default inf.
        turn_cap: (R,) running turns above which no new or paused session is admitted; default inf.
        ceiling_tokens: (R,) admit only while commit + need <= ceiling; default the replica's capacity.
        overflow_tokens: (R,) at least the ceiling: above it idle sessions are reclaimed before their lease ends;
            default the larger of capacity and ceiling.
        growth_tokens: (W,) expected growth L of a session, tokens; default 0: commit equals charge.
        output_tokens: (W,) tokens reserved for the output of a turn that reports no progress; default 0.
        weight: (W,) > 0, share of admissions between workloads that wait; default 1.
        price: (W,) what one admission costs its workload's virtual time, before division by the weight; default 1.
        share: (W,) > 0, shape of the entitlements: reclaim takes from whoever is furthest above its own; default the
            weight.
        guarantee_tokens: (W,) commit on all replicas below which a workload goes first and keeps what it has idle;
            default 0. Scaled down where the ceilings do not suffice for all (`FleetView.guaranteed_tokens`).
        limit_tokens: (W,) commit on all replicas that admissions of a workload may not exceed; default inf.
        lease_s: (R, W) time for which an idle session cannot be reclaimed to place another, s; default 0; at most
            600 s is granted.
        bypass: Tokens admitted past a turn that is blocked for room, in multiples of its need; default 4.
        lookahead: Turns tried per workload in one scan of the line, at least 1; default 8.
        cost_prefill: (R,) weight of the seconds of prefill that the turn itself needs; default 2.
        cost_backlog: (R,) weight of the seconds of prefill queued on the replica; default 1.
        cost_decode: (R,) weight of the seconds by which the replica's charge slows the turn's decode; default 1.
        cost_spread: (R,) weight of the seconds by which the turns of its own group that run on the replica slow the
            turn's decode: what they share is charged once and read by each; default 0.
        order: (W,) what decides between held turns of one priority, before the order in which they came, as a name for
            all or one per workload: `"fifo"` (default), or `"longest_first"` or `"shortest_first"` by expected output:
            that of `submit` or `hint`, else `max_new_tokens`, else 0.
        placement: How the replicas that may take a new or paused session are ranked; a continuation of a charged
            session stays on its replica whatever it says. `"cost"` (default): seconds until the turn is served;
            `"round_robin"`: one after the other; `"least_loaded"`: fewest turns in flight; `"cache_aware"`: longest
            cached prefix while the fleet is balanced, fewest turns else; `"dynamo"`: prefill blocks + blocks held;
            `"hash"`: rendezvous hash of the session's name.
        placement_args: Parameters of the placement, by name, with their defaults: `least_loaded` has `turns` (1) and
            `sessions` (0), the weights of turns in flight and of charged sessions; `cache_aware` has `cache_threshold`
            (0.3), `balance_abs` (64) and `balance_rel` (1.5); `dynamo` has `overlap_weight` (1) and `temperature` (0).
            All have `sticky` (1): 0 reclaims a session as soon as it is idle, so that each of its turns is placed anew.
        shed: True reclaims idle sessions above `session_cap` or `workload_cap`, those admitted last first; default
            False: caps evict nobody.
        memory: All that a policy may remember: handed back as `last.memory` at the next step. Never sent to the core.

    Example:
        >>> from turnout.policies import FleetView
        >>> view = FleetView.build(["r0", "r1"], ["agent"], kv_tokens=1_000)
        >>> Limits(session_cap=24, ceiling_tokens=0.95 * view.kv_tokens).to_raw(view)
        {'session_cap': array([24., 24.]), 'ceiling_tokens': array([950., 950.])}
        >>> Limits(session_cap=[24, float("nan")]).to_raw(view)
        Traceback (most recent call last):
        turnout.errors.PolicyError: limits.session_cap[r1]: got nan, accepted is a number >= 0 or inf
    """

    session_cap: ArrayLike | None = None
    workload_cap: ArrayLike | None = None
    turn_cap: ArrayLike | None = None
    ceiling_tokens: ArrayLike | None = None
    overflow_tokens: ArrayLike | None = None
    growth_tokens: ArrayLike | None = None
    output_tokens: ArrayLike | None = None
    weight: ArrayLike | None = None
    price: ArrayLike | None = None
    share: ArrayLike | None = None
    guarantee_tokens: ArrayLike | None = None
    limit_tokens: ArrayLike | None = None
    lease_s: ArrayLike | None = None
    bypass: float | None = None
    lookahead: float | None = None
    cost_prefill: ArrayLike | None = None
    cost_backlog: ArrayLike | None = None
    cost_decode: ArrayLike | None = None
    cost_spread: ArrayLike | None = None
    order: str | Sequence[str] | None = None
    placement: str | None = None
    placement_args: dict[str, float] | None = None
    shed: bool | None = None
    memory: dict[str, NDArray[np.generic]] = field(default_factory=dict)

    def to_raw(self, view: FleetView) -> RawLimits:
        """Check the limits against the fleet they are for and spell them out for the core.

        Args:
            view: The view that the limits were computed from: gives R, W, the row names and the default ceiling.

        Returns:
            The fields that are set: a float for a single number, text, mapping or truth value as they are, else a
            C-contiguous float64 array of the full shape.

        Raises:
            PolicyError: A field has the wrong type or shape, or a value that cannot be enforced. The message names
                the field, the row (and column) by name, the value and what is accepted.
        """
        raw: RawLimits = {}
        for name, rule in _RULES.items():
            value = getattr(self, name)
            if value is not None:
                array = _spell_out(name, value, rule, view)
                raw[name] = float(array) if rule.shape == "" else array
        _check_pairs(raw, view)
        if self.order is not None:
            raw["order"] = _spell_order(self.order, view.workloads)
        _check_placement(self.placement, self.placement_args)
        if self.shed is not None and not isinstance(self.shed, bool):
            raise _refuse("shed", "", repr(self.shed)[:80], "True or False")
        for name in ("placement", "placement_args", "shed"):
            value = getattr(self, name)
            if value is not None:
                raw[name] = value
        if not isinstance(self.memory, dict) or not all(
            isinstance(key, str) and isinstance(kept, np.ndarray) for key, kept in self.memory.items()
        ):
            raise _refuse("memory", "", repr(self.memory)[:80], "a dict from str to ndarray")
        return raw


def _check_pairs(raw: RawLimits, view: FleetView) -> None:
    """Check the fields that bound each other."""
    if "overflow_tokens" in raw:
        ceiling = np.broadcast_to(raw.get("ceiling_tokens", view.kv_tokens), (len(view.replicas),))
        overflow = np.broadcast_to(raw["overflow_tokens"], ceiling.shape)
        low = np.flatnonzero(overflow < ceiling)
        if low.size:
            where, wanted = view.replicas[low[0]], f"at least ceiling_tokens, {ceiling[low[0]]:g}"
            raise _refuse("overflow_tokens", where, f"{overflow[low[0]]:g}", wanted)
    if "guarantee_tokens" in raw:
        limit = np.broadcast_to(raw.get("limit_tokens", np.inf), (len(view.workloads),))
        guarantee = np.broadcast_to(raw["guarantee_tokens"], limit.shape)
        high = np.flatnonzero(guarantee > limit)
        if high.size:
            where, wanted = view.workloads[high[0]], f"at most limit_tokens, {limit[high[0]]:g}"
            raise _refuse("guarantee_tokens", where, f"{guarantee[high[0]]:g}", wanted)


def _spell_out(name: str, value: ArrayLike, rule: _Rule, view: FleetView) -> NDArray[np.float64]:
    """Convert one field to a checked float64 array of its full shape."""
    rows: tuple[tuple[str, ...], ...] = {
        "": (),
        "R": (view.replicas,),
        "W": (view.workloads,),
        "RW": (view.replicas, view.workloads),
    }[rule.shape]
    shape = tuple(len(names) for names in rows)
    try:
        given = np.asarray(value)
    except (TypeError, ValueError):
        raise _refuse(name, "", repr(value)[:80], "a number or an array of numbers") from None
    if given.dtype.kind not in "iuf":
        raise _refuse(name, "", repr(value)[:80], "a number or an array of numbers")
    given = given.astype(np.float64)
    if given.ndim == len(shape) and all(own in {1, wanted} for own, wanted in zip(given.shape, shape, strict=True)):
        given = np.broadcast_to(given, shape)
    if given.shape not in ((), shape):
        raise _refuse(name, "", f"shape {given.shape}", f"a number or shape {shape}" if shape else "one number")
    low = given <= 0 if rule.positive else given < 0
    bad = np.isnan(given) | low | (np.isinf(given) & (not rule.infinite))
    if name == "lookahead":
        bad |= given < 1
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        where = ", ".join(names[i] for names, i in zip(rows, at, strict=False))
        least = "a number >= 1" if name == "lookahead" else "a number > 0" if rule.positive else "a number >= 0"
        raise _refuse(name, where, f"{given[at]:g}", least + (" or inf" if rule.infinite else ""))
    return np.ascontiguousarray(np.broadcast_to(given, shape)) if shape else given


def _spell_order(order: str | Sequence[str], workloads: Sequence[str]) -> tuple[str, ...]:
    """One name per workload, each of them known."""
    names = (order,) * len(workloads) if isinstance(order, str) else order
    if not isinstance(names, list | tuple) or len(names) != len(workloads):
        raise _refuse("order", "", repr(order)[:80], f"a name, or one for each of {len(workloads)} workloads")
    for workload, name in zip(workloads, names, strict=True):
        if name not in ORDERS:
            raise _refuse("order", workload, repr(name)[:80], ", ".join(ORDERS))
    return tuple(names)


def _check_placement(placement: str | None, args: dict[str, float] | None) -> None:
    """Check the placement and its parameters, in the words of the core."""
    known = PLACEMENTS.get(placement or "cost") if isinstance(placement, str | None) else None
    if known is None:
        raise _refuse("placement", "", repr(placement)[:80], ", ".join(PLACEMENTS))
    if args is None:
        return
    if not isinstance(args, dict):
        raise _refuse("placement_args", "", repr(args)[:80], "a dict from str to numbers")
    own = {**known, "sticky": (0.0, 1.0, "0 or 1")}
    for name, value in args.items():
        if name not in own:
            raise _refuse("placement_args", str(name), repr(value)[:80], ", ".join(own))
        least, most, accepted = own[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value <= most or value == np.inf or (name == "sticky" and value not in {0, 1}):
            raise _refuse("placement_args", name, f"{value:g}" if number else repr(value)[:80], accepted)


def _refuse(name: str, where: str, value: str, accepted: str) -> PolicyError:
    """The error for one field, in the words of the core's own check."""
    return PolicyError(f"limits.{name}{f'[{where}]' if where else ''}: got {value}, accepted is {accepted}")


FIELDS: Final = tuple(entry.name for entry in fields(Limits))
