"""Hints and the order of the line, from Python."""

from __future__ import annotations

import pytest

from turnout import Replica, Router, Workload, errors, policies


@pytest.fixture
def router() -> Router:
    workloads = [Workload("agent"), Workload("rlvr")]
    return Router([Replica("r0", kv_tokens=160)], workloads, block_tokens=1, hash_key=bytes(16))


def limit(router: Router, now: float, **fields: object) -> None:
    view = router.view(now=now)
    router.set_limits(policies.Limits(**fields), view=view, now=now)  # type: ignore[arg-type]


def test_a_long_gap_frees_the_session(router: Router) -> None:
    limit(router, 0.0, lease_s=60.0)
    turn = router.submit([1] * 100, session="a", now=0.0).turn
    router.complete(turn, [2], now=1.0)
    assert router.submit([3] * 100, session="b", now=2.0).held
    assert router.wake_at == 3.0  # a control step is due; the lease ends at 61
    assert router.hint("a", idle_s=float("inf"), now=3.0).status == "done"
    assert [word.reason for word in router.drain()] == ["admitted"]
    assert router.hint("never", idle_s=1.0, now=3.0).status == "unknown"


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("idle_s", -1.0),
        ("idle_s", float("nan")),
        ("expected_tokens", -1),
        ("expected_tokens", 1 << 41),
        ("priority", 0.5),
    ],
)
def test_what_is_out_of_range_is_named(router: Router, argument: str, value: float) -> None:
    router.submit([1], session="a", now=0.0)
    with pytest.raises(errors.InvalidArgument, match=argument):
        router.hint("a", now=1.0, **{argument: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["longest_first", ["longest_first", "fifo"], ("longest_first", "shortest_first")])
def test_the_longest_goes_first(router: Router, order: str | list[str]) -> None:
    limit(router, 0.0, session_cap=1.0, order=order)
    router.submit([1], session="a", now=0.0)
    router.submit([2], turn="short", expected_tokens=10, now=1.0)
    router.submit([3], turn="long", expected_tokens=20, now=2.0)
    router.end_session("a", now=3.0)
    assert [word.turn for word in router.drain() if word.placed] == ["long"]
    router.audit()


@pytest.mark.parametrize("order", ["by_mood", ["fifo"], 3, ["fifo", 3]])
def test_an_order_that_is_none_is_refused(router: Router, order: object) -> None:
    with pytest.raises(errors.PolicyError, match=r"limits\.order"):
        limit(router, 0.0, order=order)
