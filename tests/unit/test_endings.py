"""How turns end, from Python: samples, true counts, where they really ran, and coming back."""

from __future__ import annotations

import numpy as np
import pytest

from turnout import Replica, Router, errors, policies


@pytest.fixture
def router() -> Router:
    return Router([Replica("r0", kv_tokens=16_000), Replica("r1", kv_tokens=16_000)], hash_key=bytes(16))


def charge(router: Router, now: float) -> list[float]:
    return router.view(now=now).charge_tokens.tolist()


def test_the_charge_follows_the_turn(router: Router) -> None:
    turn = router.submit(list(range(160)), session="s", candidates=["r0"], now=0.0).turn
    assert router.progress(turn, 1, served_by="r1", now=1.0).status == "done"
    assert charge(router, 1.0) == [0.0, 176.0]
    with pytest.raises(errors.UnknownReplica):
        router.progress(turn, 1, served_by="nowhere", now=1.0)
    router.complete(turn, [7] * 16, served_by="r0", prompt_tokens=240, now=2.0)
    assert charge(router, 2.0) == [256.0, 0.0]
    assert router.stats()["served_elsewhere"] == 2
    assert router.complete("never", served_by="nowhere", now=3.0).status == "unknown"


@pytest.mark.parametrize(
    "outputs", [[[1, 2], [3]], ([1, 2], [3]), [np.array([1, 2], np.uint32), np.array([3])], [(1, 2), [3]]]
)
def test_samples_end_together(router: Router, outputs: list[list[int]]) -> None:
    turn = router.submit([5] * 100, session="s", samples=2, now=0.0).turn
    with pytest.raises(errors.InvalidArgument, match="1 outputs of a turn with 2 samples"):
        router.complete(turn, [1, 2], now=1.0)
    with pytest.raises(errors.InvalidArgument, match="keep"):
        router.complete(turn, outputs, keep=2, now=1.0)
    assert router.complete(turn, outputs, keep=1, now=1.0).status == "done"
    assert router.submit(append=[4], base_tokens=101, session="s", now=2.0).receipt.prompt_tokens == 102


def test_what_is_no_token_of_a_sample_is_named(router: Router) -> None:
    turn = router.submit([5] * 100, samples=2, now=0.0).turn
    with pytest.raises(errors.InvalidTokens, match="output"):
        router.complete(turn, [[1], [-1]], now=1.0)
    with pytest.raises(errors.InvalidTokens, match="output"):
        router.complete(turn, [[1], 2], now=1.0)  # type: ignore[list-item]
    with pytest.raises(errors.InvalidTokens, match="output"):
        router.complete(turn, ["text"], now=1.0)  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("argument", "value"), [("samples", 0), ("samples", 1 << 17), ("group_size", 0), ("group_size", 4), ("samples", -1)]
)
def test_numbers_out_of_range_change_nothing(router: Router, argument: str, value: int) -> None:
    before = router.stats()
    with pytest.raises(errors.InvalidArgument, match=argument):
        router.submit([1], now=0.0, **{argument: value})  # type: ignore[arg-type]
    assert router.stats() == before


def test_who_comes_back_keeps_its_place_and_avoids_what_failed(router: Router) -> None:
    view = router.view(now=0.0)
    router.set_limits(policies.Limits(session_cap=[1, 0]), view=view, now=0.0)
    router.submit([1], session="a", now=0.0)
    assert router.submit([2], turn="t", now=1.0).held
    assert router.submit([3], turn="u", now=2.0).held
    with pytest.raises(errors.InvalidArgument, match="reason"):
        router.abort("t", reason="whim", now=3.0)  # type: ignore[arg-type]
    router.abort("t", reason="timeout", retry=True, now=3.0)
    assert router.submit([2], turn="t", attempt=1, now=4.0).held
    router.end_session("a", now=5.0)
    assert [word.turn for word in router.drain() if word.placed] == ["t"]
    stats = router.stats()
    assert (stats["aborted_timeout"], stats["retries"]) == (1, 1)


def test_a_group_shares_its_replica(router: Router) -> None:
    placed = {
        router.submit([9] * 1_600, group="g", group_size=4, avoid=["r1", "gone"], now=0.0).replica for _ in range(4)
    }
    assert placed == {"r0"}
    assert router.submit([9] * 1_600, group="g", expected_tokens=10, avoid=["r0"], now=1.0).replica == "r1"
    router.audit()
