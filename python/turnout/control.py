"""The control loop: view -> limits -> set_limits, for a `Router` and a `Simulation` alike.

The target locks itself only inside `raw_view` and `raw_set_limits`; the policy runs between the two, without any lock.
Limits are set-points: events between the view and its limits are fine, and rows are applied by name.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from turnout.errors import InvalidArgument, PolicyError
from turnout.policies.contract import FleetView, Limits, Policy, RawLimits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OnPolicyError = Literal["keep", "raise"]

FALLBACK_AFTER: Final = 10
"""Failures in a row after which stale limits are worse than simple ones."""

FALLBACK_CEILING_SHARE: Final = 0.95
"""The ceiling that then stands alone, as a share of each replica's KV."""


class Target(Protocol):
    """What can be controlled: `Router` (whose two methods also take `now=`) and `Simulation`."""

    @property
    def raw_view(self) -> Any:  # noqa: ANN401 - two call signatures, see step()
        """`raw_view() -> dict`, the table that `FleetView.from_raw` reads."""

    @property
    def raw_set_limits(self) -> Any:  # noqa: ANN401 - two call signatures, see step()
        """`raw_set_limits(fields, *, step, replicas, workloads)`."""


@dataclass(slots=True)
class ControlState:
    """What one control loop remembers and counts.

    Attributes:
        last: The last good limits, `memory` included; `Limits()` before the first.
        steps: Control steps taken, failed ones included.
        failures: Steps at which the policy raised or returned limits that cannot be enforced.
        consecutive_failures: Failures since the last good step.
        last_error: Message of the latest failure; empty if there was none.
        sent: The fields in force, as they went to the target.
        rows: Names of the replicas and workloads that `sent` is for; None before the first step.
    """

    last: Limits = field(default_factory=Limits)
    steps: int = 0
    failures: int = 0
    consecutive_failures: int = 0
    last_error: str = ""
    sent: RawLimits = field(default_factory=dict, repr=False)
    rows: tuple[tuple[str, ...], tuple[str, ...]] | None = field(default=None, repr=False)


_STATES: Final[weakref.WeakKeyDictionary[Any, ControlState]] = weakref.WeakKeyDictionary()
_STATES_LOCK: Final = threading.Lock()


def state_of(target: Target) -> ControlState:
    """The state of the loop that controls `target` when `step` is called without one.

    Args:
        target: A router. It is held weakly: the state goes when the router goes.

    Returns:
        The one state of this target; a fresh one at the first call.
    """
    with _STATES_LOCK:
        return _STATES.setdefault(target, ControlState())


def step(
    target: Target,
    policy: Policy,
    *,
    state: ControlState | None = None,
    on_policy_error: OnPolicyError = "keep",
    now: float | None = None,
) -> ControlState:
    """Take one control step: read the fleet, ask the policy, put its limits into force.

    A policy that raises, or returns something that cannot be enforced (wrong type, field or shape, NaN, negative,
    overflow below ceiling), leaves the last good limits in force. After 10 failures in a row a ceiling of 0.95 of each
    replica's KV stands alone, until the policy works again.

    Args:
        target: The `Router` or `Simulation` to control.
        policy: The policy.
        state: State of this loop; by default `state_of(target)`.
        on_policy_error: `"keep"` counts a failure in `state`; `"raise"` raises it and changes nothing: for tests and
            simulation.
        now: Time of the step, s, on the caller's clock; default: the target's own clock.

    Returns:
        The state, updated.

    Raises:
        PolicyError: The policy failed and `on_policy_error` is `"raise"`.
        InvalidArgument: `on_policy_error` is something else, or newer limits are in force already.

    Example:
        >>> import turnout
        >>> router = turnout.Router([turnout.Replica("r0", kv_tokens=100_000)])
        >>> step(router, turnout.policies.MisaT(), now=0.0).failures
        0
    """
    if on_policy_error not in ("keep", "raise"):
        raise InvalidArgument(f"on_policy_error: got {on_policy_error!r}, accepted is 'keep' or 'raise'")
    state = state_of(target) if state is None else state
    clock: dict[str, float] = {} if now is None else {"now": now}
    view = FleetView.from_raw(target.raw_view(**clock))
    rows = (view.replicas, view.workloads)
    state.steps += 1
    try:
        limits, raw = _ask(policy, view, state.last)
        _send(target, raw, view.step, rows, clock)
    except PolicyError as error:
        state.failures += 1
        state.consecutive_failures += 1
        state.last_error = str(error)
        if on_policy_error == "raise":
            raise
        if state.consecutive_failures >= FALLBACK_AFTER:
            state.sent, state.rows = {"ceiling_tokens": FALLBACK_CEILING_SHARE * view.kv_tokens}, rows
        # Sent again even if nothing changed: this ends the step for the target, which would ask again at once.
        _send(target, state.sent, view.step, state.rows or rows, clock)
        return state
    state.consecutive_failures = 0
    state.last, state.sent, state.rows = limits, raw, rows
    return state


def _ask(policy: Policy, view: FleetView, last: Limits) -> tuple[Limits, RawLimits]:
    """Call the policy and check its answer; every failure is a PolicyError."""
    name = type(policy).__name__
    try:
        limits = policy.limits(view, last)
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(f"policy {name} raised {type(error).__name__}: {error}") from error
    if not isinstance(limits, Limits):
        raise PolicyError(f"policy {name} returned {type(limits).__name__}, accepted is Limits")
    return limits, limits.to_raw(view)


def _send(
    target: Target,
    raw: RawLimits,
    number: int,
    rows: tuple[Sequence[str], Sequence[str]],
    clock: Mapping[str, float],
) -> None:
    """Put checked limits into force."""
    target.raw_set_limits(raw, step=number, replicas=rows[0], workloads=rows[1], **clock)
