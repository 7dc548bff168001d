"""What experiments play: chains of clients, groups that share, chat that does not, and what they need."""

from __future__ import annotations

import numpy as np
import pytest

from turnout.errors import InvalidArgument
from turnout.simulate.bounds import needs
from turnout.simulate.draft import Draft, assemble
from turnout.simulate.engines import engine
from turnout.simulate.loads import LOADS, batch, blend, chat, clients, groups, hot, load, mixed
from turnout.simulate.run import Setup, run

ENGINE = engine("qwen3-8b-h200")
ONE = np.array([64.0])


def first_ids(scenario, session: int) -> set[int]:
    """Ids of the first run of every turn of a session."""
    turns = range(*scenario.session_first_turn[session : session + 2])
    return {int(scenario.run_first_id[scenario.turn_first_run[turn]]) for turn in turns}


def test_clients_are_chains_of_one_outstanding_session_each() -> None:
    scenario = clients({"agent": 2, "rlhf": 3}, 4, scale=16.0)
    assert scenario.sessions == 20
    assert (scenario.session_parent < 0).sum() == 5
    for session, parent in enumerate(scenario.session_parent.tolist()):
        if parent >= 0:
            assert scenario.session_workload[session] == scenario.session_workload[parent]
            lengths = np.diff(scenario.session_first_turn)
            assert scenario.session_after_turn[session] == lengths[parent] - 1
    # Each parent has one follower: a client never has two sessions at a time.
    parents = scenario.session_parent[scenario.session_parent >= 0]
    assert len(set(parents.tolist())) == len(parents)


def test_the_sessions_of_a_client_do_not_depend_on_the_other_workload() -> None:
    alone, flooded = clients({"agent": 3, "rlvr": 1}, 2, seed=4), clients({"agent": 3, "rlvr": 9}, 2, seed=4)
    prompts = [
        scenario.turn_prompt_tokens[np.repeat(scenario.session_workload, np.diff(scenario.session_first_turn)) == 0]
        for scenario in (alone, flooded)
    ]
    np.testing.assert_array_equal(prompts[0], prompts[1])


def test_a_chain_is_played_one_after_the_other() -> None:
    scenario = clients({"rlhf": 2}, 3, scale=16.0)
    done = run("open", 0, scenario, Setup(replicas=1, kv_tokens=50_000, concurrency=2))
    started = np.frombuffer(done.finishes["started_s"])
    finished = np.frombuffer(done.finishes["finished_s"])
    place = {int(session): at for at, session in enumerate(np.frombuffer(done.finishes["session"], np.int64))}
    assert len(place) == 6
    for session, parent in enumerate(scenario.session_parent.tolist()):
        if parent >= 0:
            assert started[place[session]] >= finished[place[parent]]


def test_samples_of_a_group_share_their_prompt_and_groups_do_not() -> None:
    scenario = groups(3, samples=4, prompt_tokens=800, scale=1.0)
    assert [first_ids(scenario, session) for session in range(12)] == [
        {base} for base in (0, 50, 100) for _ in range(4)
    ]
    assert set(scenario.turn_prompt_tokens.tolist()) == {800}


def test_chat_shares_nothing_and_nothing_is_cached() -> None:
    scenario = chat(30)
    ids = [first_ids(scenario, session) for session in range(30)]
    assert len(set.union(*ids)) == 30
    done = run("open", 0, scenario, Setup(replicas=2, kv_tokens=100_000, concurrency=30))
    assert done.record["finished_sessions"] == 30
    assert done.record["prefix_hit_share"] == 0


def test_hot_prompts_are_unequally_popular() -> None:
    scenario = hot(200, seed=1)
    heads = [next(iter(first_ids(scenario, session))) for session in range(200)]
    most = max(heads.count(head) for head in set(heads))
    assert 60 < most < 140
    assert len(set(heads)) > 5


def test_the_longest_come_first_and_nothing_is_lost() -> None:
    plain, ordered = batch(40), batch(40, longest_first=True)
    output = np.add.reduceat(ordered.turn_output_tokens, ordered.session_first_turn[:-1])
    assert (np.diff(output) <= 0).all()
    assert sorted(plain.turn_prompt_tokens.tolist()) == sorted(ordered.turn_prompt_tokens.tolist())
    assert plain.run_blocks.sum() == ordered.run_blocks.sum()


def test_wrong_labels_leave_the_counts() -> None:
    right, wrong = mixed(200), mixed(200, mislabelled=0.5)
    np.testing.assert_array_equal(np.bincount(right.session_workload), np.bincount(wrong.session_workload))
    assert (right.session_workload != wrong.session_workload).mean() > 0.1


@pytest.mark.parametrize("name", LOADS)
def test_same_seed_same_load(name: str) -> None:
    arguments = {
        "clients": {"numbers": {"agent": 2}, "each": 2},
        "groups": {"number": 3},
        "blend": {"shares": {"agent": 0.5, "rlvr": 0.5}, "sessions": 10},
    }.get(name, {"sessions": 12})
    one, same, other = (load(name, arguments, seed) for seed in (3, 3, 4))
    for key, value in one.to_raw().items():
        np.testing.assert_array_equal(value, same.to_raw()[key])
    assert any(not np.array_equal(value, other.to_raw()[key]) for key, value in one.to_raw().items())


def test_bad_loads() -> None:
    with pytest.raises(InvalidArgument, match=r"^load: got 'nothing'"):
        load("nothing", {}, 0)
    with pytest.raises(InvalidArgument, match=r"^kind: got 'chat'"):
        blend({"chat": 1.0}, 3)
    with pytest.raises(InvalidArgument, match=r"^drafts: got no session"):
        assemble([], ["a"], [1.0], {})
    with pytest.raises(InvalidArgument, match=r"^drafts\[0\].after: got 0"):
        assemble([Draft(0, ONE, ONE, 0 * ONE, after=0)], ["a"], [1.0], {})


def test_the_critical_path_is_what_one_session_takes() -> None:
    """A session that has the fleet to itself takes as long as the bound says, up to the steps of the engine."""
    scenario = blend({"agent": 1.0}, 3, seed=2)
    done = run("open", 0, scenario, Setup(replicas=1, kv_tokens=200_000, concurrency=1))
    took = np.frombuffer(done.finishes["finished_s"]) - np.frombuffer(done.finishes["started_s"])
    found = needs(scenario, ENGINE, 200_000)
    assert took.mean() == pytest.approx(found.alone_s, rel=0.03)
    assert took.mean() >= 0.999 * found.alone_s - 1


def test_slower_engines_take_longer() -> None:
    scenario = blend({"agent": 1.0}, 3, seed=2)
    base, slow = needs(scenario, ENGINE, 1e5), needs(scenario, ENGINE.slowed(1.0, 2.0), 1e5)
    assert base.alone_s < slow.alone_s < 2 * base.alone_s
