"""LiteLLM's own Router over model engines: the filter chooses, completes, gives up and stands aside."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices
litellm = pytest.importorskip("litellm")

from turnout import Replica, Router, Workload, policies
from turnout.adapters.litellm import TurnoutFilter
from turnout.engine import EngineConfig, EngineServer
from turnout.errors import RouterClosed


@pytest.fixture(scope="module")
def in_loop():
    """One event loop for all: LiteLLM's task that calls the callbacks stays in the first one."""
    with asyncio.Runner() as runner:
        yield runner.run


def messages(text, *more):
    return [{"role": "user", "content": text}, *more]


class Gateway:
    def __init__(self, lite, turnout, router, engines):
        self.lite, self.turnout, self.router, self.engines = lite, turnout, router, engines

    def ask(self, text, session=None, max_tokens=8, **more):
        metadata = {} if session is None else {"session_id": session}
        prompt = messages(text) if isinstance(text, str) else text
        return self.lite.acompletion("m", prompt, max_tokens=max_tokens, metadata=metadata, **more)

    async def empty(self):
        """No open turn, no reservation; and no charge once sessions end."""
        for _ in range(500):
            if not self.router.stats()["open_turns"]:
                break
            await asyncio.sleep(0.01)
        stats = self.router.stats()
        assert (stats["open_turns"], stats["held_turns"]) == (0, 0)
        assert self.router.view().reserved_tokens.sum() == 0
        for session in ("a", "b", "c"):
            self.turnout.end_session(session)
        self.router.audit()
        assert self.router.view().charge_tokens.sum() == 0
        assert not self.turnout._open
        return stats


@asynccontextmanager
async def gateway(engines=2, kv_tokens=100_000, dead=(), speed=50.0, deadline_s=30.0, lifetime_s=60.0, turns=None):
    servers = [EngineServer(EngineConfig(port=0, speed=speed)) for _ in range(engines)]
    for server in servers:
        await server.__aenter__()
    urls = {f"e{i}": server.url for i, server in enumerate(servers)} | dict.fromkeys(dead, "http://127.0.0.1:9")
    router = Router([Replica(name, kv_tokens=kv_tokens) for name in urls], [Workload("w")], policy=policies.BlockTime())
    chooser = TurnoutFilter(router if turns is None else turns, deadline_s=deadline_s, lifetime_s=lifetime_s)
    litellm.callbacks = [chooser]
    deployments = [
        {
            "model_name": "m",
            "litellm_params": {"model": "openai/turnout-model", "api_base": f"{url}/v1", "api_key": "none"},
            "model_info": {"id": name},
        }
        for name, url in urls.items()
    ]
    lite = litellm.Router(model_list=deployments, num_retries=2, timeout=60, disable_cooldowns=True)
    try:
        yield Gateway(lite, chooser, router, servers)
    finally:
        litellm.logging_callback_manager._reset_all_callbacks()
        await chooser.close()
        for server in servers:
            await server.__aexit__(None, None, None)


def where(answer):
    return answer._hidden_params["model_id"]


def test_a_conversation_stays_where_its_history_is(in_loop):
    async def run():
        async with gateway(engines=3) as gate:
            history, places = messages("tell me " * 200), set()
            for _ in range(4):
                answer = await gate.ask(history, "a")
                places.add(where(answer))
                history = [*history, {"role": "assistant", "content": "so"}, {"role": "user", "content": "and"}]
            assert len(places) == 1
            stats = await gate.empty()
            assert (stats["completed"], stats["moves"]) == (4, 0)

    in_loop(run())


def test_calls_without_a_session_are_spread_and_end_by_themselves(in_loop):
    async def run():
        async with gateway() as gate:
            answers = await asyncio.gather(*(gate.ask(f"question {i} " * 100) for i in range(8)))
            assert {where(answer) for answer in answers} == {"e0", "e1"}
            assert (await gate.empty())["completed"] == 8

    in_loop(run())


def test_streams_complete_at_their_end_and_are_given_up_after_their_time_when_broken_off(in_loop):
    async def run():
        async with gateway(lifetime_s=2.0) as gate:
            stream = await gate.ask("stream " * 50, "a", stream=True)
            pieces = [piece async for piece in stream]
            assert pieces
            del stream, pieces
            broken = await gate.ask("break " * 50, "b", max_tokens=4_000, stream=True)
            await anext(aiter(broken))
            del broken
            stats = await gate.empty()
            assert (stats["completed"], stats["aborted"]) == (1, 1)

    in_loop(run())


def test_a_cancelled_call_gives_its_turn_up_held_or_running(in_loop):
    async def run():
        async with gateway(engines=1, kv_tokens=1_000, speed=1.0) as gate:
            running = asyncio.create_task(gate.ask("one " * 600, "a", max_tokens=300))

            async def turns(open_turns, held):
                while (stats := gate.router.stats())["open_turns"] != open_turns or stats["held_turns"] != held:
                    await asyncio.sleep(0.01)

            await turns(1, 0)
            waiting = asyncio.create_task(gate.ask("two " * 600, "b", max_tokens=300))
            await turns(2, 1)
            waiting.cancel()
            await turns(1, 0)
            running.cancel()
            await asyncio.gather(running, waiting, return_exceptions=True)
            del running, waiting
            assert (await gate.empty())["aborted"] == 2

    in_loop(run())


def test_a_failed_attempt_is_given_up_and_retried_elsewhere(in_loop):
    async def run():
        async with gateway(engines=1, dead=["gone"]) as gate:
            answers = [await gate.ask(f"question {i} " * 100, "a") for i in range(6)]
            assert {where(answer) for answer in answers} == {"e0"}
            stats = await gate.empty()
            assert stats["completed"] == 6
            assert stats["aborted"] >= 1

    in_loop(run())


def test_a_call_that_fails_everywhere_leaves_nothing(in_loop):
    async def run():
        async with gateway(engines=0, dead=["gone", "away"]) as gate:
            with pytest.raises(litellm.exceptions.InternalServerError):
                await gate.ask("question", "a")
            assert (await gate.empty())["aborted"] == 3

    in_loop(run())


def test_who_may_not_start_in_time_is_left_to_litellm(in_loop):
    async def run():
        async with gateway(engines=1, kv_tokens=1_000, deadline_s=0.05) as gate:
            answers = await asyncio.gather(*(gate.ask(f"{i} " * 1_200, max_tokens=300) for i in range(4)))
            assert len(answers) == 4
            assert (await gate.empty())["expired"] == 3
            assert len((await gate.ask("long " * 4_000, "a", max_tokens=4)).choices) == 1
            assert (await gate.empty())["rejected"] == 1

    in_loop(run())


def test_without_the_router_litellm_goes_on(in_loop):
    class Away:
        async def place(self, prompt, **arguments):
            raise RouterClosed("router: it is away")

    async def run():
        async with gateway(turns=Away()) as gate:
            assert len((await gate.ask("question", "a")).choices) == 1
            gate.turnout._describe = lambda request: {"no_such_argument": 1}
            assert len((await gate.ask("question", "a")).choices) == 1

    in_loop(run())
