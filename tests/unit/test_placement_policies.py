"""The baselines that only place: what they ask of the core, and what the core then does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from turnout import Replica, Router, Workload, control
from turnout.errors import InvalidArgument
from turnout.policies import CacheAware, DynamoCost, FleetView, Limits, Policy, RoundRobin, StickyLeastLoaded

VIEW = FleetView.build(["r0", "r1"], ["agent"], kv_tokens=1_000)


@pytest.mark.parametrize(
    ("policy", "placement", "args"),
    [
        (RoundRobin(), "round_robin", {"sticky": 1}),
        (StickyLeastLoaded(turns=2, sessions=0.5), "least_loaded", {"turns": 2, "sessions": 0.5}),
        (
            CacheAware(cache_threshold=0.5, balance_abs=8, balance_rel=2, sticky=True),
            "cache_aware",
            {"cache_threshold": 0.5, "balance_abs": 8, "balance_rel": 2, "sticky": 1},
        ),
        (
            DynamoCost(overlap_weight=3, temperature=0.2),
            "dynamo",
            {"overlap_weight": 3, "temperature": 0.2, "sticky": 0},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_they_set_a_placement_and_hold_nothing_back(policy: Policy, placement: str, args: dict[str, float]) -> None:
    raw = policy.limits(VIEW, Limits()).to_raw(VIEW)
    assert raw.pop("ceiling_tokens").tolist() == raw.pop("overflow_tokens").tolist() == [math.inf, math.inf]
    assert raw == {"placement": placement, "placement_args": args}


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (RoundRobin, {"sticky": 1}),
        (StickyLeastLoaded, {"turns": -1}),
        (StickyLeastLoaded, {"sessions": math.inf}),
        (CacheAware, {"cache_threshold": 1.5}),
        (CacheAware, {"balance_abs": math.nan}),
        (CacheAware, {"balance_rel": "2"}),
        (DynamoCost, {"overlap_weight": True}),
        (DynamoCost, {"temperature": -0.1}),
        (DynamoCost, {"sticky": None}),
    ],
)
def test_bad_arguments_are_named(kind: type, arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match=f"{next(iter(arguments))}: got .*, accepted is "):
        kind(**arguments)


def turns_of_one_session(policy: Policy, turns: int) -> tuple[list[str | None], list[str]]:
    """Replicas and reasons of the turns of a session that grows, on three replicas with nothing else to do."""
    router = Router([Replica(f"r{at}", kv_tokens=10_000) for at in range(3)], [Workload("agent")], hash_key=bytes(16))
    control.step(router, policy, now=0.0)
    told = []
    for turn in range(turns):
        decision = router.submit(np.arange(640 + 64 * turn), session="s", now=float(turn))
        router.complete(decision.turn, output_tokens=1, now=float(turn))
        told.append(decision)
    router.audit()
    return [decision.replica for decision in told], [decision.reason for decision in told]


def test_a_round_keeps_a_session_or_sends_every_turn_on() -> None:
    assert turns_of_one_session(RoundRobin(), 3) == (["r0"] * 3, ["admitted", "continuation", "continuation"])
    assert turns_of_one_session(RoundRobin(sticky=False), 3) == (
        ["r0", "r1", "r2"],
        ["admitted", "resumed", "resumed"],
    )


@pytest.mark.parametrize("policy", [CacheAware(), DynamoCost()], ids=["cache-aware", "dynamo-cost"])
def test_without_sessions_the_cache_brings_a_turn_back(policy: Policy) -> None:
    replicas, reasons = turns_of_one_session(policy, 4)
    assert len(set(replicas)) == 1
    assert reasons == ["admitted", "resumed", "resumed", "resumed"], "every turn is placed anew"


def test_sessions_spread_where_least_are_held() -> None:
    router = Router([Replica("r0", kv_tokens=10_000), Replica("r1", kv_tokens=10_000)], [Workload("agent")])
    control.step(router, StickyLeastLoaded(), now=0.0)
    for at in range(6):  # each is idle when the next one comes: turns in flight would tell nothing
        decision = router.submit(np.arange(640), session=f"s{at}", now=float(at))
        router.complete(decision.turn, output_tokens=1, now=float(at))
    assert router.view(now=7.0).sessions.tolist() == [[3], [3]]
