"""verl 0.9.1's own manager, clients and agent loop over fake servers, with the balancer and its plug-in."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext

import pytest

pytest.importorskip("ray")
pytest.importorskip("verl")

import verl_fleet
from tests_hosts_support import assert_empty, prompt_of, until
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient

from turnout.adapters.verl.client import feedback_of, trajectory

pytestmark = pytest.mark.usefixtures("cluster", "by_value_fleet")


@pytest.fixture(scope="module")
def by_value_fleet(cluster):
    """Classes of the fake fleet travel to workers, which cannot import it."""
    cluster.cloudpickle.register_pickle_by_value(verl_fleet)
    yield
    cluster.cloudpickle.unregister_pickle_by_value(verl_fleet)


@asynccontextmanager
async def fleet(tmp_path, **settings):
    """(manager, client); `feedback` False is the official hook alone."""
    manager = await verl_fleet.manager(tmp_path, **settings)
    client = manager.get_client()
    try:
        yield manager, client
    finally:
        if settings.get("feedback", True):
            await feedback_of(client).close()
        verl_fleet.stop(manager)


def generate(client, request_id, prompt, tokens=4, **extra):
    prompt = prompt if isinstance(prompt, list) else prompt.tolist()
    return client.generate(request_id, prompt_ids=prompt, sampling_params={"max_tokens": tokens}, **extra)


async def everywhere(manager, **values):
    await asyncio.gather(*(handle.set.remote(**values) for handle in manager.server_handles))


async def seen(manager):
    return await asyncio.gather(*(handle.seen.remote() for handle in manager.server_handles))


@pytest.mark.parametrize("feedback", [False, True])
def test_five_thousand_waiters_at_room_for_eight_all_finish(tmp_path, feedback):
    async def run():
        # Room for four turns of 160 + 16 tokens on each of two servers.
        settings = {"kv_tokens": 4 * 200, "turns": "one", "feedback": feedback}
        async with fleet(tmp_path, **settings) as (manager, client):

            async def rollout(number):
                with trajectory({}):
                    return await generate(client, f"r{number}", prompt_of(number, 160), 16)

            outputs = await asyncio.gather(*(rollout(i) for i in range(5_000)))
            assert [len(output.token_ids) for output in outputs] == [16] * 5_000
            assert sum(len(each["prompts"]) for each in await seen(manager)) == 5_000
            assert max(each["peak"] for each in await seen(manager)) <= 4
            stats = await assert_empty(manager.global_load_balancer)
            assert (stats["completed"], stats["held"] > 4_000) == (5_000, True)
            assert await manager.global_load_balancer.get_total_inflight.remote() == 0

    asyncio.run(run())


@pytest.mark.parametrize("feedback", [False, True])
def test_siblings_of_a_group_land_together(tmp_path, feedback):
    async def run():
        settings = {"servers": 4, "kv_tokens": 1e6, "feedback": feedback, "turns": "one"}
        async with fleet(tmp_path, **settings) as (manager, client):
            await everywhere(manager, gate=False)
            groups = [
                [asyncio.create_task(generate(client, f"g{group}-{k}", prompt_of(group, 512), 512)) for k in range(8)]
                for group in range(8)
            ]

            async def all_run():
                return sum(each["running"] for each in await seen(manager)) == 64

            await until(all_run)
            loads = [each["running"] for each in await seen(manager)]
            await everywhere(manager, gate=True)
            for group in groups:
                outputs = await asyncio.gather(*group)
                assert len({output.extra_fields["served_by"] for output in outputs}) == 1
            assert loads == [16, 16, 16, 16]

    asyncio.run(run())


@pytest.mark.parametrize("feedback", [False, True])
def test_turns_of_a_trajectory_stay_and_find_their_history(tmp_path, feedback):
    async def run():
        async with fleet(tmp_path, servers=4, kv_tokens=1e6, feedback=feedback) as (manager, client):
            history, places = prompt_of(1, 400).tolist(), []
            with trajectory({}):
                for _ in range(4):
                    output = await generate(client, "t", history, 16)
                    history = [*history, *output.token_ids, *prompt_of(2, 50).tolist()]
                    places.append(output.extra_fields["served_by"])
            assert len(set(places)) == 1
            status = await manager.global_load_balancer.get_status.remote()
            assert status["turnout"]["edited"] == 0
            assert status["turnout"]["moves"] == 0
            if feedback:  # the session ended with its trajectory
                await assert_empty(manager.global_load_balancer)

    asyncio.run(run())


def test_new_weights_empty_the_cache_of_the_server_that_has_them(tmp_path):
    async def run():
        async with fleet(tmp_path, kv_tokens=1e6) as (manager, client):
            balancer = manager.global_load_balancer

            async def held_by(number):
                client = feedback_of(served)._client
                placement = await client.choose(prompt_of(number, 320))
                return placement.cached_tokens

            served = client
            await everywhere(manager, gate=False)
            pair = [asyncio.create_task(generate(client, f"r{i}", prompt_of(i, 320))) for i in range(2)]

            async def both_run():
                return [each["running"] for each in await seen(manager)] == [1, 1]

            await until(both_run)
            await everywhere(manager, gate=True)
            outputs = await asyncio.gather(*pair)
            assert [await held_by(i) for i in range(2)] == [304, 304]
            where = {output.extra_fields["served_by"]: i for i, output in enumerate(outputs)}
            first = manager.server_addresses[0]
            await manager.server_handles[0].set.remote(step=2)
            # A turn that continues on the first server brings the news.
            renewed = where[first]
            await generate(client, f"r{renewed}", prompt_of(renewed, 320).tolist() + list(range(4)) + [7] * 40)
            await asyncio.sleep(0)
            other = where[manager.server_addresses[1]]
            assert await held_by(other) == 304
            assert await held_by(renewed) == 0  # what was placed before the news was known is forgotten too
            await generate(client, "again", prompt_of(renewed, 320))
            assert max([await held_by(renewed)]) == 304
            assert await feedback_of(client)._client.event("weights_seen", server=first, step=2) == "duplicate"
            assert await feedback_of(client)._client.event("weights_seen", server=first, step=3) == "done"
            assert await held_by(other) == 304
            cleared = await balancer.clear_sticky_cache.remote()
            assert cleared["cleared_entries"] == 3
            assert cleared["server_loads"] == dict.fromkeys(manager.server_addresses, 0)
            assert await held_by(other) == 0

    asyncio.run(run())


@pytest.mark.parametrize("feedback", [False, True])
def test_turns_of_a_dead_server_come_back(tmp_path, feedback):
    async def run():
        settings = {"kv_tokens": 450, "feedback": feedback, "turns": "one", "health_s": 0.1}
        async with fleet(tmp_path, **settings) as (manager, client):
            await everywhere(manager, gate=False)
            tasks = [asyncio.create_task(generate(client, f"r{i}", prompt_of(i, 400))) for i in range(6)]

            async def full():
                stats = await manager.global_load_balancer.status.remote()
                return stats["open_turns"] - stats["held_turns"] == 2 and stats["held_turns"] == 4

            await until(full)

            async def both_run():
                return [each["running"] for each in await seen(manager)] == [1, 1]

            await until(both_run)
            manager.server_handles[0].die.remote()

            async def gone():
                return await manager.global_load_balancer.get_all_servers.remote() == manager.server_addresses[1:]

            await until(gone)
            await manager.server_handles[1].set.remote(gate=True)
            outputs = await asyncio.gather(*tasks, return_exceptions=True)
            survivors = [output for output in outputs if not isinstance(output, Exception)]
            assert len(survivors) == 5  # the sixth ran on the dead server, and verl does not ask again
            assert {output.extra_fields["served_by"] for output in survivors} == {manager.server_addresses[1]}
            again = await generate(client, "r0", prompt_of(0, 400))
            assert again.extra_fields["served_by"] == manager.server_addresses[1]
            await assert_empty(manager.global_load_balancer)

    asyncio.run(run())


@pytest.mark.parametrize("feedback", [False, True])
def test_errors_and_cancelled_calls_leave_nothing(tmp_path, feedback):
    async def run():
        settings = {"servers": 1, "kv_tokens": 450, "feedback": feedback, "turns": "one"}
        async with fleet(tmp_path, **settings) as (manager, client):
            balancer = manager.global_load_balancer
            await everywhere(manager, fails=True)
            with pytest.raises(ValueError, match="the engine failed"), trajectory({}):
                await generate(client, "fails", prompt_of(0, 400))
            await everywhere(manager, fails=False, gate=False)

            async def rollout(number):
                with trajectory({}):
                    return await generate(client, f"r{number}", prompt_of(number, 400))

            running = asyncio.create_task(rollout(1))

            async def turns(open_turns, held_turns):
                stats = await balancer.status.remote()
                return (stats["open_turns"], stats["held_turns"]) == (open_turns, held_turns)

            await until(lambda: turns(1, 0))
            waiting = asyncio.create_task(rollout(2))
            await until(lambda: turns(2, 1))
            if feedback:  # verl's own client cannot take back a call that waits; its turn is released when it is placed
                waiting.cancel()
                await until(lambda: turns(1, 0))
            running.cancel()
            await everywhere(manager, gate=True)
            await asyncio.gather(running, waiting, return_exceptions=True)
            await assert_empty(balancer)
            assert await balancer.get_total_inflight.remote() == 0

    asyncio.run(run())


def test_an_aborted_answer_is_resumed_as_a_new_turn_of_its_session(tmp_path):
    async def run():
        async with fleet(tmp_path, kv_tokens=1e6) as (manager, _):
            resuming = manager.get_client(FullyAsyncLLMServerClient)
            await everywhere(manager, aborts=True)
            with trajectory({}):
                task = asyncio.create_task(generate(resuming, "r", prompt_of(0, 400), 64))

                async def aborted():
                    return (await manager.global_load_balancer.status.remote())["aborted"] == 1

                await until(aborted)
                await everywhere(manager, aborts=False)
                output = await task
            assert len(output.token_ids) == 64
            stats = await assert_empty(manager.global_load_balancer)
            assert stats["edited"] == stats["shortened"] == 0
            await feedback_of(resuming).close()

    asyncio.run(run())


def test_rebalancing_drains_though_others_wait(tmp_path):
    """verl clears the sticky cache, aborts, and polls until nothing runs: those who waited must not keep it waiting."""

    async def run():
        settings = {"servers": 1, "kv_tokens": 450, "feedback": False, "turns": "one"}
        async with fleet(tmp_path, **settings) as (manager, client):
            balancer = manager.global_load_balancer
            await everywhere(manager, gate=False)
            tasks = [asyncio.create_task(generate(client, f"r{i}", prompt_of(i, 400))) for i in range(3)]

            async def inflight(number):
                return await balancer.get_total_inflight.remote() == number

            async def held():
                return (await balancer.status.remote())["held_turns"] == 2

            await until(held)
            await balancer.clear_sticky_cache.remote()
            assert await inflight(1)
            running = next(iter((await balancer.get_status.remote())["servers"]))
            # The release of the one that ran lets the next one in.
            await balancer.release_server.remote(running, "r0")

            async def next_one_runs():
                return (await balancer.get_status.remote())["total_inflight"] == 1

            await until(next_one_runs)
            assert await inflight(0)
            assert await inflight(1)
            await everywhere(manager, gate=True)
            await asyncio.gather(*tasks)
            await assert_empty(balancer)

    asyncio.run(run())


def test_servers_leave_and_come_back_and_none_at_all_is_said_in_verls_words(tmp_path):
    async def run():
        async with fleet(tmp_path, kv_tokens=1e6, feedback=False, turns="one") as (manager, client):
            balancer, addresses = manager.global_load_balancer, manager.server_addresses
            server, _ = await balancer.acquire_server.remote("r", prompt_ids=[1, 2, 3], sampling_params={})
            await balancer.remove_servers.remote(addresses)
            with pytest.raises(RuntimeError, match="No available servers in load balancer"):
                await generate(client, "r", prompt_of(0, 10))
            patient = manager.get_client(FullyAsyncLLMServerClient, only_hybrid=True)
            waiting = asyncio.create_task(generate(patient, "p", prompt_of(0, 10)))
            await balancer.release_server.remote(server, "r")
            await balancer.add_servers.remote(dict(zip(addresses, manager.server_handles, strict=True)))
            assert (await waiting).token_ids == [0, 1, 2, 3]
            assert await balancer.get_all_servers.remote() == addresses
            await assert_empty(balancer)

    asyncio.run(run())


@pytest.mark.parametrize("feedback", [False, True])
def test_what_the_router_refuses_is_served_untracked(tmp_path, feedback):
    async def run():
        settings = {"kv_tokens": 450, "feedback": feedback, "turns": "one", "deadline_s": 0.05}
        async with fleet(tmp_path, **settings) as (manager, client):
            too_large = await generate(client, "large", prompt_of(0, 2_000))
            assert len(too_large.token_ids) == 4
            await everywhere(manager, gate=False)
            tasks = [asyncio.create_task(generate(client, f"r{i}", prompt_of(i, 400))) for i in range(6)]

            async def all_run():
                return sum(each["running"] for each in await seen(manager)) == 6

            await until(all_run)
            await everywhere(manager, gate=True)
            assert len(await asyncio.gather(*tasks)) == 6
            assert (await assert_empty(manager.global_load_balancer))["expired"] == 4

    asyncio.run(run())


def test_without_the_router_the_plug_in_spreads_by_itself(tmp_path, cluster):
    async def run():
        async with fleet(tmp_path, kv_tokens=1e6) as (manager, client):
            assert len((await generate(client, "r", prompt_of(0, 10))).token_ids) == 4
            cluster.kill(manager.global_load_balancer)
            assert len((await generate(client, "s", prompt_of(0, 10))).token_ids) == 4

    asyncio.run(run())


def test_the_agent_loop_says_which_workload_and_when_a_trajectory_ends(tmp_path):
    from verl.experimental.agent_loop import agent_loop

    class Loop:
        def __init__(self, **arguments):
            self.client = arguments["server_manager"]

        async def run(self, sampling_params, **kwargs):
            for turn in range(2):
                await generate(self.client, f"t{kwargs['index']}", prompt_of(kwargs["index"], 100 + turn))

    class Worker(agent_loop.AgentLoopWorker):
        def __init__(self, client, config):
            self.llm_client, self.config = client, config
            self.tokenizer = self.processor = self.hf_model_type = self.dataset_cls = None
            self.tools = []

        async def _agent_loop_postprocess(self, output, validate, **kwargs):
            return output

    async def run(monkeypatch):
        settings = {"kv_tokens": 1e6, "describe": "verl_describe:describe", "workloads": {"math": 0.5, "code": 0.5}}
        async with fleet(tmp_path, **settings) as (manager, client):
            manager.config.data = {}
            worker = Worker(client, manager.config)
            monkeypatch.setattr(agent_loop.hydra.utils, "instantiate", lambda config, **arguments: Loop(**arguments))
            monkeypatch.setitem(agent_loop._agent_loop_registry, "loop", {})
            monkeypatch.setattr(agent_loop, "rollout_trace_attr", lambda **_: nullcontext())
            info = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
            await asyncio.gather(
                *(
                    worker._run_agent_loop({}, info, agent_name="loop", index=i, data_source=source)
                    for i, source in enumerate(["math", "code", "code"])
                )
            )
            await assert_empty(manager.global_load_balancer)
            assert await manager.global_load_balancer.finished.remote() == {"math": 1, "code": 2}

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(run(monkeypatch))


def test_the_plug_in_is_loaded_by_verl_itself():
    from turnout.adapters.verl import plugin

    for method in (LLMServerClient._acquire_server, FullyAsyncLLMServerClient._release_server):
        assert method.__code__.co_filename == plugin.__file__
