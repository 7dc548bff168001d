"""The router: the Rust core's class with a policy beside it. Hot methods are the Rust ones, unwrapped."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Self, get_args

from turnout import _core, control
from turnout.errors import InvalidArgument, PolicyError
from turnout.policies.contract import FleetView

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnout.config import Replica, Workload
    from turnout.policies.contract import Limits, Policy


class Router(_core.Router):
    """Decides for every turn which replica serves it and whether it may start now.

    Args:
        replicas: The fleet at the start; may be empty.
        workloads: Classes of sessions; none = one called `default`.
        policy: What computes the limits at each `step`; None = limits come from `set_limits` alone.
        on_policy_error: `"keep"`: the last good limits stay when the policy fails; `"raise"`: `step` raises.
        block_tokens: Tokens per index block, 1..4096.
        index_bytes: Most memory of the prefix index, bytes, at least 2^20. When nothing can be forgotten any more, new
            tokens are charged by count and not indexed (`Receipt.indexed`).
        seed: Seed of the generator that breaks ties of placement.
        hash_key: 16 secret bytes that key the fingerprints; drawn at random by default.
        max_held: Turns that may wait; one more is rejected.
        control_period_s: Time between control steps, s; inf = never due by time.
        turn_ttl_s: Silence after which a running turn is given up, s.
        session_ttl_s: Idleness after which a session ends, s.
        infer_sessions: A prompt that is submitted without a session continues the session whose whole history it begins
            with, else it begins one that stays (docs/decisions/012). Otherwise it is a session by itself.

    Raises:
        InvalidArgument: A value is out of range, or a name stands twice.

    Example:
        >>> from turnout import Replica, Router, policies
        >>> router = Router([Replica("r0", kv_tokens=100_000)], policy=policies.Open())
        >>> decision = router.submit([1, 2, 3], session="trajectory-17", now=0.0)
        >>> decision.placed, decision.replica
        (True, 'r0')
        >>> router.complete(decision.turn, output=[4, 5], now=1.0).status
        'done'
    """

    policy: Policy | None

    def __new__(  # noqa: PLR0913 - keyword arguments
        cls,
        replicas: Iterable[Replica],
        workloads: Iterable[Workload] = (),
        *,
        policy: Policy | None = None,
        on_policy_error: control.OnPolicyError = "keep",
        block_tokens: int = 16,
        index_bytes: int = 4 << 30,
        seed: int = 0,
        hash_key: bytes | None = None,
        max_held: int = 1_000_000,
        control_period_s: float = 1.0,
        turn_ttl_s: float = 7200.0,
        session_ttl_s: float = 3600.0,
        infer_sessions: bool = False,
    ) -> Self:
        """Make the core, and keep the policy beside it."""
        if on_policy_error not in get_args(control.OnPolicyError):
            shown, accepted = repr(on_policy_error), "'keep' or 'raise'"
            raise InvalidArgument(
                f"on_policy_error: got {shown}, accepted is {accepted}", "on_policy_error", shown, accepted
            )
        router = super().__new__(
            cls,
            replicas,
            workloads,
            block_tokens=block_tokens,
            index_bytes=index_bytes,
            seed=seed,
            hash_key=secrets.token_bytes(16) if hash_key is None else hash_key,
            max_held=max_held,
            control_period_s=control_period_s,
            turn_ttl_s=turn_ttl_s,
            session_ttl_s=session_ttl_s,
            infer_sessions=infer_sessions,
        )
        router.policy = policy
        router._on_policy_error = on_policy_error
        return router

    _on_policy_error: control.OnPolicyError

    @classmethod
    def restore(
        cls,
        record: bytes,
        *,
        policy: Policy | None = None,
        on_policy_error: control.OnPolicyError = "keep",
        reattach_s: float | None = None,
        now: float | None = None,
    ) -> Self:
        """Make a router that goes on where a snapshot was taken, or where a journal ends.

        It makes the same decisions as the original would. Times move over: what was left of a lease, a deadline or a
        time limit is left again, however the clock of this process reads. Its policy's memory is not in the record: it
        starts anew, and the limits in force stay until its first step.

        Args:
            record: What `snapshot` returned, or a journal (see `turnout.record`). It holds the hash key.
            policy: As for `Router`.
            on_policy_error: As for `Router`.
            reattach_s: Time within which every open turn must be named by some event (the same submit again, progress,
                its end), s: the others leave the outbox as lost, `unconfirmed`. None = no turn is doubted.
            now: Time, s; default `time.monotonic()`.

        Raises:
            RecordError: It is neither, is of another version, damaged, or does not do again what it says.

        Example:
            >>> from turnout import Replica, Router
            >>> router = Router([Replica("r0", kv_tokens=100_000)])
            >>> turn = router.submit([1, 2, 3], session="s", now=5.0).turn
            >>> copy = Router.restore(router.snapshot(), now=0.0)
            >>> copy.complete(turn, output=[4], now=1.0).status
            'done'
        """
        router = _core.Router.__new__(cls, (), hash_key=bytes(16), record=record, now=now)
        router.policy = policy
        router._on_policy_error = on_policy_error  # noqa: SLF001 - its own
        if reattach_s is not None:
            router.expect_callers(reattach_s, now=now)
        return router

    def view(self, *, now: float | None = None) -> FleetView:
        """Copy the measured state of the fleet.

        Args:
            now: Time, s; default `time.monotonic()`.

        Returns:
            The view; its `step` goes back with limits computed from it.
        """
        return FleetView.from_raw(self.raw_view(now=now))

    def set_limits(self, limits: Limits, *, view: FleetView, now: float | None = None) -> _core.Outcome:
        """Put limits into force.

        Args:
            limits: What to enforce. A field that is left out means its default, never "as before".
            view: The view that they were computed from: it names their rows, and its step orders them.
            now: Time, s; default `time.monotonic()`.

        Returns:
            What became of the event.

        Raises:
            PolicyError: A field cannot be enforced; the limits in force stay.
            InvalidArgument: Newer limits are in force.
        """
        raw = limits.to_raw(view)
        return self.raw_set_limits(raw, step=view.step, replicas=view.replicas, workloads=view.workloads, now=now)

    def step(self, *, now: float | None = None) -> control.ControlState:
        """Take one control step with the router's policy: view, limits, set_limits. Call it when `policy_due`.

        Args:
            now: Time, s; default `time.monotonic()`.

        Returns:
            The state of the control loop, with its counters.

        Raises:
            PolicyError: The policy failed, there is none, or `on_policy_error` is `"raise"`.
        """
        policy = self.policy
        if policy is None:
            raise PolicyError(
                "policy: got None, accepted is a policy given to Router(policy=...)", "policy", "None", "a policy"
            )
        return control.step(self, policy, on_policy_error=self._on_policy_error, now=now)
