"""The control loop on a real router: limits reach the core, and a bad policy cannot hurt it."""

from __future__ import annotations

import gc
import math
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from turnout import Replica, Router, Workload, control
from turnout.control import FALLBACK_AFTER, ControlState, state_of, step
from turnout.errors import InvalidArgument, PolicyError
from turnout.policies import FleetView, Limits, MisaT, StaticCap

if TYPE_CHECKING:
    from collections.abc import Callable

KV_TOKENS = 10_000


class Scripted:
    """Answers with what the script says, and keeps what it was asked with."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.lasts: list[Limits] = []
        self.views: list[FleetView] = []

    def limits(self, view: FleetView, last: Limits) -> Limits:
        self.lasts.append(last)
        self.views.append(view)
        answer: Any = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(view) if callable(answer) else answer


@pytest.fixture
def router() -> Router:
    return Router([Replica("r0", kv_tokens=KV_TOKENS)], [Workload("agent", context_tokens=2_000, residency_s=60)])


def submit(router: Router, session: str, *, tokens: int = 1_600, now: float = 0.0) -> bool:
    """Submit a first turn of private content; whether it was placed."""
    prompt = np.arange(tokens, dtype=np.int64) + zlib.crc32(session.encode()) % 1_000_000
    return router.submit(prompt, session=session, turn=session, now=now).placed


def test_limits_reach_the_core(router: Router) -> None:
    state = step(router, StaticCap(2), now=0.0)
    assert (state.steps, state.failures, state.last_error) == (1, 0, "")
    assert [submit(router, name) for name in "abc"] == [True, True, False]
    router.end_session("a", now=1.0)
    assert [(word.turn, word.status) for word in router.drain()] == [("a", "lost"), ("c", "placed")]


def test_view_shows_the_router(router: Router) -> None:
    submit(router, "a")
    policy = Scripted(Limits())
    step(router, policy, now=3.0)
    view = policy.views[0]
    assert (view.replicas, view.workloads, view.now_s) == (("r0",), ("agent",), 3.0)
    assert view.kv_tokens.tolist() == [KV_TOKENS]
    assert view.charge_tokens.tolist() == [1_600]
    assert view.sessions_running.tolist() == [[1]]
    assert view.context_tokens == pytest.approx([2_000], rel=0.01), "the prior, and one live session"


def test_misa_t_holds_what_its_quota_does_not_take(router: Router) -> None:
    step(router, MisaT(), now=0.0)
    placed = [submit(router, name, tokens=800, now=0.1) for name in "abcdefgh"]
    assert placed == [True] * 5 + [False] * 3, "10,000 / 2,000 = 5 sessions"


def test_last_and_memory_come_back(router: Router) -> None:
    kept = Limits(session_cap=3, memory={"x": np.arange(3)})
    policy = Scripted(kept, Limits())
    for now in (0.0, 1.0, 2.0):
        step(router, policy, now=now)
    assert policy.lasts[0].memory == {}
    assert policy.lasts[1] is kept
    assert policy.lasts[2].memory == {}


BAD: list[tuple[Callable[[FleetView], object] | object, str]] = [
    (ZeroDivisionError("boom"), "policy Scripted raised ZeroDivisionError: boom"),
    (None, "policy Scripted returned NoneType, accepted is Limits"),
    ({"session_cap": 1}, "policy Scripted returned dict"),
    (Limits(session_cap=math.nan), r"limits.session_cap: got nan, accepted"),
    (Limits(session_cap=[1, 2]), r"limits.session_cap: got shape \(2,\)"),
    (Limits(workload_cap=[[-1]]), r"limits.workload_cap\[r0, agent\]: got -1"),
    (Limits(ceiling_tokens=5, overflow_tokens=4), r"limits.overflow_tokens\[r0\]: got 4"),
]


@pytest.mark.parametrize(("answer", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_a_bad_answer_keeps_the_last_good_limits(router: Router, answer: object, message: str) -> None:
    good = Limits(session_cap=1, memory={"x": np.ones(1)})
    policy = Scripted(good, answer, good)
    step(router, policy, now=0.0)
    state = step(router, policy, now=1.0)
    assert (state.failures, state.consecutive_failures) == (1, 1)
    assert state.last is good
    with pytest.raises(PolicyError, match=message):
        raise PolicyError(state.last_error)
    assert [submit(router, name, now=1.1) for name in "ab"] == [True, False], "the cap of 1 stands"
    state = step(router, policy, now=2.0)
    assert policy.lasts[2] is good
    assert (state.steps, state.failures, state.consecutive_failures) == (3, 1, 0)


@pytest.mark.parametrize(("answer", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_strict_mode_raises_and_changes_nothing(router: Router, answer: object, message: str) -> None:
    step(router, StaticCap(1), now=0.0)
    with pytest.raises(PolicyError, match=message):
        step(router, Scripted(answer), on_policy_error="raise", now=1.0)
    assert [submit(router, name, now=1.1) for name in "ab"] == [True, False]


def test_the_cause_of_a_policy_error_is_kept(router: Router) -> None:
    with pytest.raises(PolicyError) as caught:
        step(router, Scripted(ZeroDivisionError("boom")), on_policy_error="raise", now=0.0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_after_ten_failures_a_plain_ceiling_stands_alone(router: Router) -> None:
    good = Limits(session_cap=1, memory={"x": np.ones(1)})
    policy = Scripted(good, *[ValueError("bad")] * FALLBACK_AFTER, good)
    step(router, policy, now=0.0)
    placed = []
    for number in range(FALLBACK_AFTER):
        placed.append(submit(router, f"s{number}", now=number + 0.5))
        state = step(router, policy, now=number + 1.0)
        # Once the cap of 1 is gone, the ceiling of 9,500 takes five sessions of 1,600.
        open_turns = router.stats()["open_turns"] - router.stats()["held_turns"]
        assert open_turns == (1 if number + 1 < FALLBACK_AFTER else 5)
    assert state.consecutive_failures == FALLBACK_AFTER
    state = step(router, policy, now=60.0)
    assert (state.failures, state.consecutive_failures) == (FALLBACK_AFTER, 0)
    assert policy.lasts[-1] is good, "the memory outlives the failures"


def test_a_failing_first_policy_leaves_the_defaults(router: Router) -> None:
    step(router, Scripted(ValueError("bad")), now=0.0)
    assert [submit(router, name, tokens=3_200, now=0.1) for name in "abcd"] == [True, True, True, False]


def test_a_failed_step_ends_the_step_for_the_router(router: Router) -> None:
    submit(router, "a")
    router.tick(now=5.0)
    assert router.policy_due
    step(router, Scripted(ValueError("bad")), now=5.0)
    assert not router.policy_due


def test_limits_of_before_apply_by_name_when_the_fleet_has_changed(router: Router) -> None:
    policy = Scripted(Limits(session_cap=[1]), ValueError("bad"))
    step(router, policy, now=0.0)
    router.add_replica(Replica("r1", kv_tokens=KV_TOKENS), now=0.5)
    state = step(router, policy, now=1.0)
    assert state.failures == 1
    assert [submit(router, name, now=1.1) for name in "abcd"].count(True) > 1, "r1 has no cap"
    view = FleetView.from_raw(router.raw_view(now=1.2))
    assert view.sessions[view.replicas.index("r0")].tolist() == [1]


def test_the_fleet_may_change_while_the_policy_thinks(router: Router) -> None:
    class Meddler:
        def limits(self, view: FleetView, last: Limits) -> Limits:  # noqa: ARG002
            router.lose_replica("r0", now=0.5)
            router.add_replica(Replica("r9", kv_tokens=KV_TOKENS), now=0.6)
            return Limits(session_cap=np.ones(len(view.replicas)))

    assert step(router, Meddler(), on_policy_error="raise", now=0.0).failures == 0
    assert router.replicas == ("r9",)


def test_the_policy_runs_without_the_lock(router: Router) -> None:
    class Caller:
        def limits(self, view: FleetView, last: Limits) -> Limits:  # noqa: ARG002
            assert router.stats()["open_turns"] == 0  # would block for ever under the lock
            return Limits()

    assert step(router, Caller(), on_policy_error="raise", now=0.0).failures == 0


def test_older_limits_are_refused(router: Router) -> None:
    class Slow:
        def limits(self, view: FleetView, last: Limits) -> Limits:  # noqa: ARG002
            step(router, StaticCap(1), state=ControlState(), now=1.0)
            return Limits()

    with pytest.raises(InvalidArgument, match="step: got"):
        step(router, Slow(), now=0.0)


def test_state_belongs_to_the_target_and_goes_with_it() -> None:
    one, other = Router([Replica("r0")]), Router([Replica("r0")])
    assert step(one, StaticCap(1), now=0.0) is state_of(one)
    assert state_of(one) is not state_of(other)
    own = ControlState()
    assert step(one, StaticCap(1), state=own, now=1.0) is own
    assert state_of(one).steps == 1
    gc.collect()
    before = len(control._STATES)
    del one
    gc.collect()
    assert len(control._STATES) == before - 1


def test_mode_is_checked(router: Router) -> None:
    with pytest.raises(InvalidArgument, match="on_policy_error: got 'ignore', accepted is 'keep' or 'raise'"):
        step(router, StaticCap(1), on_policy_error="ignore")


def test_interrupts_are_not_swallowed(router: Router) -> None:
    class Stopped:
        def limits(self, view: FleetView, last: Limits) -> Limits:  # noqa: ARG002 - the contract's signature
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        step(router, Stopped(), now=0.0)
