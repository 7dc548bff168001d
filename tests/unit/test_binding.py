"""The Python face of the router: answers, errors, time, threads."""

from __future__ import annotations

import array
import importlib
import math
import pickle
import threading
import time
import types

import numpy as np
import pytest

import turnout
from turnout import errors, policies

PROMPT = list(range(100))


@pytest.fixture
def router() -> turnout.Router:
    return turnout.Router(
        [turnout.Replica("r0", kv_tokens=1_600), turnout.Replica("r1", kv_tokens=1_600)],
        [turnout.Workload("agent", target=0.5), turnout.Workload("rlhf")],
        hash_key=bytes(16),
    )


def close_all(router: turnout.Router, cap: float = 0.0) -> None:
    view = router.view(now=0.0)
    router.set_limits(policies.Limits(session_cap=cap), view=view, now=0.0)


def test_a_session_from_first_turn_to_end(router: turnout.Router) -> None:
    first = router.submit(PROMPT, session="s", workload="agent", max_new_tokens=50, now=0.0)
    assert (first.placed, first.status, first.reason, first.cached_tokens) == (True, "placed", "admitted", 0)
    assert first.receipt.prompt_tokens == 100
    assert first.alternatives in [("r0",), ("r1",)]
    assert router.progress(first.turn, 10, now=0.5).status == "done"
    assert router.complete(first.turn, output=[7, 8, 9], cached_tokens=0, now=1.0).status == "done"
    second = router.submit(append=[1, 2, 3], base_tokens=103, session="s", now=2.0)
    assert (second.replica, second.reason, second.cached_tokens) == (first.replica, "continuation", 96)
    third = router.complete(second.turn, output_tokens=5, now=3.0)
    assert third.seq > second.seq
    assert router.peek(session="s") == [(first.replica, 96)]
    assert router.end_session("s", now=4.0).status == "done"
    stats = router.stats()
    assert (stats["completed"], stats["sessions_finished"], stats["live_sessions"]) == (2, 1, 0)
    router.audit()


def test_forked_sessions_share_their_past(router: turnout.Router) -> None:
    first = router.submit(PROMPT, session="s", now=0.0)
    router.complete(first.turn, output=list(range(1000, 1060)), now=1.0)
    assert router.fork("s", "t", now=2.0).status == "done"
    assert router.fork("s", "t", now=2.0).status == "duplicate"
    turn = router.submit(append=[1], base_tokens=160, session="t", now=3.0)
    assert (turn.replica, turn.cached_tokens) == (first.replica, 144)
    assert sum(router.view(now=3.0).charge_tokens) == 160 + 16


def test_held_turns_leave_by_the_outbox_once(router: turnout.Router) -> None:
    close_all(router)
    held = [router.submit(PROMPT, turn=f"t{at}", session=f"s{at}", now=1.0) for at in range(3)]
    assert {turn.reason for turn in held} == {"session_cap"}
    assert router.submit(PROMPT, turn="t0", session="s0", now=1.0).held
    assert router.abort("t1", now=2.0).status == "done"
    close_all(router, math.inf)
    woken = router.drain()
    assert [turn.turn for turn in woken] == ["t0", "t2"]
    assert all(turn.placed for turn in woken)
    assert router.drain() == []
    router.audit()


def test_repeated_events_say_so_and_change_nothing(router: turnout.Router) -> None:
    first = router.submit(PROMPT, turn="t", session="s", now=0.0)
    again = router.submit(PROMPT, turn="t", session="s", now=0.0)
    assert (again.turn, again.replica, again.placed) == ("t", first.replica, True)
    assert router.stats()["submitted"] == 1
    assert router.complete("t", output=[1], now=1.0).status == "done"
    before = router.stats()
    assert router.complete("t", output=[1], now=1.0).status == "duplicate"
    assert router.stats() == before
    assert router.abort("t", now=1.0).status == "late"
    assert router.add_replica(turnout.Replica("r0", kv_tokens=1_600), now=1.0).status == "duplicate"
    assert router.drain() == []
    router.audit()


def test_keys_are_drawn_at_random_and_kept_when_given(router: turnout.Router) -> None:
    keys = {turnout.Router([]).hash_key for _ in range(8)}
    assert len(keys) == 8
    assert {len(key) for key in keys} == {16}
    assert router.hash_key == bytes(16)


def test_deadline_and_loss_come_out_too(router: turnout.Router) -> None:
    running = router.submit(PROMPT, session="a", now=0.0)
    close_all(router)
    router.submit(PROMPT, turn="late", session="b", deadline_s=5.0, now=1.0)
    assert router.wake_at == 1.0 or router.wake_at <= 6.0
    router.tick(now=6.0)
    assert router.lose_replica(running.replica, now=7.0).status == "done"
    assert [(turn.turn, turn.status, turn.reason) for turn in router.drain()] == [
        ("late", "expired", "deadline"),
        (running.turn, "lost", "replica_lost"),
    ]
    assert router.complete(running.turn, now=8.0).status == "late"
    assert router.complete("never", now=8.0).status == "unknown"
    assert router.end_session("never", now=8.0).status == "unknown"


CALLS = {
    "unknown session in an append": (
        lambda router: router.submit(append=[1], base_tokens=1, session="nobody", now=1.0),
        errors.UnknownSession,
        "session",
        "nobody",
    ),
    "unknown session in a peek": (
        lambda router: router.peek(session="nobody"),
        errors.UnknownSession,
        "session",
        "nobody",
    ),
    "unknown parent": (lambda router: router.fork("nobody", "x", now=1.0), errors.UnknownSession, "session", "nobody"),
    "unknown turn": (lambda router: router.progress("nobody", 1, now=1.0), errors.UnknownTurn, "turn", "nobody"),
    "unknown replica": (
        lambda router: router.lose_replica("nobody", now=1.0),
        errors.UnknownReplica,
        "replica",
        "nobody",
    ),
    "unknown candidate": (
        lambda router: router.submit(PROMPT, candidates=["r0", "nobody"], now=1.0),
        errors.UnknownReplica,
        "replica",
        "nobody",
    ),
    "unknown workload": (
        lambda router: router.submit(PROMPT, workload="nobody", now=1.0),
        errors.UnknownWorkload,
        "workload",
        "nobody",
    ),
    "history mismatch": (
        lambda router: router.submit(append=[1], base_tokens=5, session="open", now=1.0),
        errors.HistoryMismatch,
        "base_tokens",
        "5",
    ),
    "turn conflict": (
        lambda router: router.submit([1, 2], turn="open", session="open", now=1.0),
        errors.TurnConflict,
        "turn",
        "open",
    ),
    "nothing asked": (lambda router: router.submit(now=1.0), errors.InvalidArgument, "prompt", "0 of prompt"),
    "two things asked": (
        lambda router: router.submit([1], prompt_tokens=3, now=1.0),
        errors.InvalidArgument,
        "prompt",
        "2 of prompt",
    ),
    "append without base": (
        lambda router: router.submit(append=[1], session="open", now=1.0),
        errors.InvalidArgument,
        "base_tokens",
        "None",
    ),
    "no candidates": (
        lambda router: router.submit(PROMPT, candidates=[], now=1.0),
        errors.InvalidArgument,
        "candidates",
        "",
    ),
    "no prompt tokens": (
        lambda router: router.submit(prompt_tokens=0, now=1.0),
        errors.InvalidArgument,
        "prompt_tokens",
        "0",
    ),
    "time is not a number": (lambda router: router.tick(now=math.nan), errors.InvalidArgument, "now", "NaN"),
    "negative deadline": (
        lambda router: router.submit(PROMPT, deadline_s=-1.0, now=1.0),
        errors.InvalidArgument,
        "deadline_s",
        "-1",
    ),
    "duplicate replica": (
        lambda router: router.add_replica(turnout.Replica("r0", kv_tokens=5_000), now=1.0),
        errors.InvalidArgument,
        "replica",
        "r0",
    ),
    "capacity 0": (
        lambda router: router.add_replica(turnout.Replica("r2", kv_tokens=0), now=1.0),
        errors.InvalidArgument,
        "kv_tokens",
        "0",
    ),
    "negative bound": (
        lambda router: router.submit(PROMPT, max_new_tokens=-1, now=1.0),
        errors.InvalidArgument,
        "max_new_tokens",
        "-1",
    ),
    "a length beyond all": (
        lambda router: router.submit(prompt_tokens=2**62, now=1.0),
        errors.InvalidArgument,
        "prompt_tokens",
        str(2**62),
    ),
    "a count that is a flag": (
        lambda router: router.progress("open", True, now=1.0),
        errors.InvalidArgument,
        "output_tokens",
        "True",
    ),
    "half an attempt": (
        lambda router: router.submit(PROMPT, attempt=0.5, now=1.0),
        errors.InvalidArgument,
        "attempt",
        "0.5",
    ),
    "a time beyond all": (lambda router: router.tick(now=1e18), errors.InvalidArgument, "now", "1000000000000000000"),
    "no replica at all": (lambda router: router.add_replica("r9", now=1.0), errors.InvalidArgument, "name", "r9"),
    "bad mode": (
        lambda router: router.weights_updated(1, mode="wipe", now=1.0),
        errors.InvalidArgument,
        "mode",
        "wipe",
    ),
    "bad version": (lambda router: router.weights_updated(-1, now=1.0), errors.InvalidArgument, "version", "-1"),
    "a version beyond all": (
        lambda router: router.weights_updated(2**70, now=1.0),
        errors.InvalidArgument,
        "version",
        str(2**70),
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_errors_name_argument_value_and_change_nothing(router: turnout.Router, case: str) -> None:
    call, kind, argument, value = CALLS[case]
    router.submit(PROMPT, turn="open", session="open", now=0.0)
    before = router.stats()
    with pytest.raises(kind) as caught:
        call(router)
    error = caught.value
    assert isinstance(error, errors.TurnoutError)
    assert error.argument == argument
    assert value in error.value
    assert error.accepted
    assert str(error)
    assert {**router.stats(), "mismatches": 0} == before, "but for the counter of refused appends"
    router.audit()
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert (type(again), str(again), again.argument) == (kind, str(error), argument)


@pytest.mark.parametrize("kind", [getattr(errors, name) for name in vars(errors) if name[0].isupper()])
def test_every_error_reads_plainly_and_travels(kind: type[errors.TurnoutError]) -> None:
    """A `LookupError` by its base shows no quotes as `KeyError` would; process pools pickle what they raise."""
    error = kind("no 'r9'", "replica", "r9", "r0, r1")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    for each in (error, again):
        assert type(each) is kind
        assert (str(each), each.argument, each.value, each.accepted) == ("no 'r9'", "replica", "r9", "r0, r1")
    assert (str(kind("alone")), kind("alone").argument) == ("alone", "")


MAKE = {
    "capacity 0": ({"replicas": [turnout.Replica("r", kv_tokens=0)]}, "kv_tokens"),
    "capacity NaN": ({"replicas": [turnout.Replica("r", kv_tokens=math.nan)]}, "kv_tokens"),
    "duplicate replica": ({"replicas": [turnout.Replica("r"), turnout.Replica("r")]}, "replicas"),
    "nameless replica": ({"replicas": [turnout.Replica("")]}, "name"),
    "rate 0": ({"replicas": [turnout.Replica("r", prefill_tokens_per_s=0.0)]}, "prefill_tokens_per_s"),
    "duplicate workload": ({"replicas": [], "workloads": [turnout.Workload("w"), turnout.Workload("w")]}, "workloads"),
    "target above 1": ({"replicas": [], "workloads": [turnout.Workload("w", target=1.5)]}, "target"),
    "block of 0": ({"replicas": [], "block_tokens": 0}, "block_tokens"),
    "text for a number": ({"replicas": [turnout.Replica("r", kv_tokens="many")]}, "kv_tokens"),
    "no replicas": ({"replicas": None}, "replicas"),
    "negative seed": ({"replicas": [], "seed": -1}, "seed"),
    "short key": ({"replicas": [], "hash_key": b"x"}, "hash_key"),
    "an unknown way to fail": ({"replicas": [], "on_policy_error": "explode"}, "on_policy_error"),
    "period 0": ({"replicas": [], "control_period_s": 0.0}, "control_period_s"),
}


@pytest.mark.parametrize("case", MAKE)
def test_configuration_is_checked(case: str) -> None:
    arguments, name = MAKE[case]
    with pytest.raises(errors.InvalidArgument) as caught:
        turnout.Router(**arguments)
    assert caught.value.argument == name


LIMITS = {
    "NaN": ({"session_cap": np.array([math.nan, 1.0])}, "session_cap[r0]"),
    "negative": ({"workload_cap": np.array([[1.0, 1.0], [1.0, -2.0]])}, "workload_cap[r1, rlhf]"),
    "wrong shape": ({"session_cap": np.array([1.0, 2.0, 3.0])}, "session_cap"),
    "overflow below ceiling": (
        {"ceiling_tokens": np.array([800.0, 800.0]), "overflow_tokens": np.array([900.0, 160.0])},
        "overflow_tokens[r1]",
    ),
    "weight 0": ({"weight": np.array([1.0, 0.0])}, "weight[rlhf]"),
    "infinite lease": ({"lease_s": np.full((2, 2), math.inf)}, "lease_s[r0, agent]"),
    "lookahead 0": ({"lookahead": 0.0}, "lookahead"),
    "unknown field": ({"caps": 1.0}, "limits[caps]"),
    "field that is no text": ({1: 1.0}, "limits[1]"),
    "list for a column": ({"session_cap": [1.0, 1.0]}, "session_cap"),
    "integer column": ({"price": np.array([1, 1])}, "price"),
    "float32 column": ({"weight": np.array([1, 1], dtype=np.float32)}, "weight"),
    "foreign byte order": ({"session_cap": np.array([1.0, 1.0], dtype=">f8")}, "session_cap"),
    "text for a number": ({"bypass": "much"}, "bypass"),
    "no mapping": (5, "limits"),
    "unknown placement": ({"placement": "fifo"}, "placement"),
    "number for a placement": ({"placement": 1.0}, "placement"),
    "list of parameters": ({"placement_args": [("sticky", 1.0)]}, "placement_args"),
    "text for a parameter": ({"placement_args": {"sticky": "yes"}}, "placement_args"),
    "parameter of another placement": ({"placement_args": {"temperature": 1.0}}, "placement_args[temperature]"),
    "parameter out of range": (
        {"placement": "cache_aware", "placement_args": {"cache_threshold": 2.0}},
        "placement_args[cache_threshold]",
    ),
    "number for a truth value": ({"shed": 1.0}, "shed"),
}


@pytest.mark.parametrize("case", LIMITS)
def test_bad_limits_name_field_and_row_and_the_old_ones_stay(router: turnout.Router, case: str) -> None:
    fields, name = LIMITS[case]
    close_all(router)
    rows = {"replicas": ["r0", "r1"], "workloads": ["agent", "rlhf"]}
    with pytest.raises(errors.PolicyError) as caught:
        router.raw_set_limits(fields, step=5, now=0.0, **rows)
    assert caught.value.argument == name
    assert router.submit(PROMPT, session="s", now=1.0).reason == "session_cap"


def test_limits_come_in_any_mapping(router: turnout.Router) -> None:
    rows = {"replicas": ["r0", "r1"], "workloads": ["agent", "rlhf"]}
    fields = types.MappingProxyType({"session_cap": array.array("d", [0.0, 0.0]), "bypass": 2})
    assert router.raw_set_limits(fields, step=1, now=0.0, **rows).status == "done"
    assert router.submit(PROMPT, session="s", now=1.0).reason == "session_cap"


def test_the_last_version_of_all_salts_too(router: turnout.Router) -> None:
    turn = router.submit(PROMPT, session="s", now=0.0)
    router.complete(turn.turn, now=0.0)
    assert router.peek(PROMPT)
    assert router.weights_updated(2**63 - 1, mode="salt", now=1.0).status == "done"
    assert router.weights_updated(2**63 - 1, mode="salt", now=1.0).status == "duplicate"
    assert router.peek(PROMPT) == []
    assert router.submit(PROMPT, session="s", now=2.0).cached_tokens == 0


def test_huge_limits_do_not_overflow(router: turnout.Router) -> None:
    huge = policies.Limits(ceiling_tokens=1e300, overflow_tokens=1e300, growth_tokens=1e300, output_tokens=1e300)
    router.set_limits(huge, view=router.view(now=0.0), now=0.0)
    for at in range(100):
        router.submit([at] * 40, session=f"s{at}", max_new_tokens=2**63, now=1.0)
    router.audit()


def test_older_limits_are_refused(router: turnout.Router) -> None:
    old, new = router.view(now=0.0), router.view(now=0.0)
    router.set_limits(policies.Limits(), view=new, now=0.0)
    with pytest.raises(errors.InvalidArgument, match="step"):
        router.set_limits(policies.Limits(), view=old, now=0.0)


def test_rows_are_applied_by_name(router: turnout.Router) -> None:
    view = router.view(now=0.0)
    router.lose_replica("r0", now=0.0)
    router.add_replica(turnout.Replica("r2", kv_tokens=1_600), now=0.0)
    router.set_limits(policies.Limits(session_cap=[0.0, 5.0]), view=view, now=0.0)
    limited = {router.submit([at] * 40, session=f"s{at}", now=1.0).replica for at in range(12)}
    assert limited == {"r1", "r2"}


def test_the_default_clock_is_monotonic(router: turnout.Router) -> None:
    before = time.monotonic()
    now_s = router.view().now_s
    assert before <= now_s + 1e-6 <= time.monotonic() + 2e-6
    router.tick(now=0.0)
    assert router.stats()["clock_clamped"] == 1


def test_step_needs_a_policy(router: turnout.Router) -> None:
    with pytest.raises(errors.PolicyError, match="policy"):
        router.step(now=0.0)
    router.policy = policies.StaticCap(1)
    assert router.policy_due
    assert router.step(now=1.0).failures == 0
    assert not router.policy_due
    assert router.wake_at == 2.0


def test_many_threads_share_one_router() -> None:
    router = turnout.Router([turnout.Replica(f"r{at}", kv_tokens=20_000) for at in range(4)], policy=policies.MisaT())
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for at in range(60):
                name = f"{worker}-{at}"
                decision = router.submit([worker] * 64 + [at], session=name, hold=False)
                router.progress(decision.turn, 1)
                router.complete(decision.turn, np.arange(20))
                router.end_session(name)
                if worker == 0 and at % 20 == 0:  # limits come from one loop, events from anywhere
                    router.step()
                    router.drain()
        except BaseException as error:  # noqa: BLE001 - a thread's error has to reach the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    stats = router.stats()
    assert (stats["completed"], stats["open_turns"], stats["live_sessions"]) == (480, 0, 0)
    assert sum(router.view().commit_tokens) == 0
    router.audit()


def test_threads_that_drain_get_each_decision_once() -> None:
    """Waiting turns are woken while four threads empty the outbox: none is seen twice, none is missed."""
    router = turnout.Router([turnout.Replica("r0", kv_tokens=1_000_000)])
    router.set_limits(policies.Limits(session_cap=0.0), view=router.view(now=0.0), now=0.0)
    names = [f"t{at}" for at in range(400)]
    assert all(router.submit([at] * 20, turn=name, session=name, now=1.0).held for at, name in enumerate(names))
    taken: list[list[str]] = [[] for _ in range(4)]
    failures: list[BaseException] = []
    done = threading.Event()

    def take(own: list[str]) -> None:
        try:
            last = False
            while not last:
                last = done.is_set()  # read before the drain, so that what came before it is taken
                own.extend(decision.turn for decision in router.drain())
        except BaseException as error:  # noqa: BLE001 - a thread's error has to reach the test
            failures.append(error)

    threads = [threading.Thread(target=take, args=(own,)) for own in taken]
    for thread in threads:
        thread.start()
    for cap in range(0, 401, 20):
        router.set_limits(policies.Limits(session_cap=float(cap)), view=router.view(now=2.0), now=2.0)
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(name for own in taken for name in own) == sorted(names)
    assert router.drain() == []
    router.audit()


def test_a_debug_build_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert turnout.build_info()["profile"] in ("release", "debug")
    monkeypatch.setattr("turnout._core.build_info", lambda: {"version": "0", "profile": "debug"})
    with pytest.warns(RuntimeWarning, match="without optimisation"):
        importlib.reload(turnout)
    monkeypatch.undo()
    importlib.reload(turnout)
