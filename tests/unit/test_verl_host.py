"""verl's balancer protocol without verl and Ray: settings, whose release is whose, refusals and restarts."""

from __future__ import annotations

import asyncio

import pytest

from turnout.adapters.verl.config import VerlConfig
from turnout.adapters.verl.host import VerlHost
from turnout.adapters.verl.running import RunningTurns
from turnout.errors import InvalidArgument

SERVERS = {"a": "handle a", "b": "handle b"}


def describe(request_id, fields):
    return {"workload": "math", "priority": len(request_id)} if fields.get("known") else {"no such argument": 1}


@pytest.mark.parametrize(
    ("setting", "argument"),
    [
        ({"kv_token": 1}, "kv_token"),
        ({"tokens": "all"}, "tokens"),
        ({"turns": 1}, "turns"),
        ({"describe": "no_such_module:f"}, "describe"),
        ({"describe": "json"}, "describe"),
    ],
)
def test_what_a_setting_may_say(setting, argument):
    with pytest.raises(InvalidArgument) as refused:
        VerlConfig.of({"router_class": "x", **setting})
    assert refused.value.argument == argument


def test_what_is_submitted_for_a_request():
    config = VerlConfig.of({"max_new_tokens": 100, "deadline_s": 5})
    assert config.arguments("r", {}) == {"session": "r", "deadline_s": 5, "max_new_tokens": 100}
    named = config.arguments("r", {"sampling_params": {"max_tokens": 7}, "priority": 3})
    assert (named["max_new_tokens"], named["priority"]) == (7, -3)


def test_releases_are_first_in_first_out_for_each_pair_and_each_server():
    running = RunningTurns()
    for server, request, turn in [("a", "r", "1"), ("a", "s", "2"), ("b", "r", "3"), ("a", "r", "4"), ("a", "s", "5")]:
        running.add(server, request, turn)
    assert running.counts() == {"a": 4, "b": 1}
    running.forget("2")
    order = [("a", "r"), ("b", None), ("a", None), ("a", "s"), ("a", "s"), ("c", None)]
    popped = [running.pop(*each) for each in order]
    assert [entry and entry.turn for entry in popped] == ["1", "3", "4", "5", None, None]
    assert running.counts() == {}
    assert not running._by_server
    assert not running._by_pair


async def acquired(host, request_id, tokens, **fields):
    server, handle = await host.acquire_server(request_id, prompt_ids=list(range(tokens)), **fields)
    assert handle == SERVERS[server]
    return server


def test_it_waits_and_each_release_ends_its_own_turn():
    async def run():
        host = VerlHost(SERVERS, {"kv_tokens": 500, "turns": "one"})
        assert host.require_acquire_fields() == ["prompt_ids", "sampling_params", "priority"]
        assert host.require_release_fields() == ["request_id", "turnout"]
        first = await acquired(host, "r", 400)
        other = await host.acquire_server("s", prompt_ids=list(range(1_000, 1_400)))
        assert {first, other[0]} == {"a", "b"}
        waiting = asyncio.create_task(host.acquire_server("t", prompt_ids=list(range(2_000, 2_400)), later_field=1))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert await host.get_total_inflight() == 2
        await host.release_server(first, "r")
        assert (await waiting)[0] == first
        await host.release_server(other[0])
        await host.release_server(first, "t", status="ok")
        await host.release_server(first, "t")
        assert await host.books() == {"charge_tokens": 0, "commit_tokens": 0, "reserved_tokens": 0}
        status = await host.get_status()
        assert (status["total_inflight"], status["turnout"]["open_turns"]) == (0, 0)
        await host.close()

    asyncio.run(run())


def test_blind_placement_sends_no_prompt():
    async def run():
        host = VerlHost(SERVERS, {"tokens": "none", "prompt_tokens": 50, "kv_tokens": 1_000})
        assert host.require_acquire_fields() == ["sampling_params", "priority"]
        server, _ = await host.acquire_server("r", sampling_params={})
        assert (await host.books())["charge_tokens"] >= 50
        await host.release_server(server, "r")
        assert await host.get_inflight_count(server) == 0
        await host.close()

    asyncio.run(run())


def test_what_the_function_answers_is_submitted_and_a_wrong_answer_is_routed_untracked(monkeypatch):
    async def run():
        monkeypatch.setattr(VerlConfig, "describer", lambda _: describe)
        host = VerlHost(SERVERS, {"workloads": {"code": None, "math": 0.5}, "turns": "one"})
        for known, tracked in ((True, 1), (False, 0)):
            server = await acquired(host, "r", 10, known=known)
            assert (await host.status())["open_turns"] == tracked
            await host.release_server(server, "r")
        assert await host.finished() == {"code": 0, "math": 1}
        await host.close()

    asyncio.run(run())


def test_after_a_restart_it_knows_the_fleet_that_it_had(tmp_path):
    async def run():
        settings = {"journal": str(tmp_path / "j"), "kv_tokens": 1_000, "feedback": False}
        host = VerlHost(SERVERS, settings)
        await host.remove_servers(["a"])
        await host.add_servers({"c": "handle c"})
        await host.close()
        again = VerlHost(SERVERS, settings)
        assert again.require_release_fields() == ["request_id"]
        assert await again.get_all_servers() == ["b"]
        await again.add_servers({"c": "handle c", "a": "handle a"})
        assert await again.get_all_servers() == ["b", "c", "a"]
        assert sorted(again._routed.router.replicas) == ["a", "b", "c"]
        await again.close()

    asyncio.run(run())
