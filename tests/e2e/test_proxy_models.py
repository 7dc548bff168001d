"""Engines that serve different models, engines that are silent, and vLLM's way to ask with token ids alone."""

from __future__ import annotations

import asyncio
import json

from turnout.engine import EngineConfig, EngineServer


def test_a_request_goes_to_an_engine_that_has_its_model(proxied):
    async def play():
        async with (
            EngineServer(EngineConfig(model="judge", kv_tokens=65_536, speed=500.0)) as judge,
            EngineServer(EngineConfig(model="actor", kv_tokens=65_536, speed=500.0)) as actor,
            proxied(engines=0, urls=[judge.url, actor.url]) as served,
        ):
            models = await served.openai().models.list()
            assert {model.id for model in models.data} == {"judge", "actor"}
            prompt = list(range(100))
            for _ in range(3):
                for engine in (judge, actor):
                    body = {"model": engine.config.model, "prompt": prompt, "max_tokens": 2}
                    status, head, _ = await served.raw("/v1/completions", body, headers={"X-Session-ID": "s"})
                    assert (status, head["X-Turnout-Replica"]) == (200, engine.url.partition("://")[2])
            assert served.stats["live_sessions"] == 2, "one for each model"
            assert served.stats["moves"] == 0
            status, _, raw = await served.raw("/finish_session?session_id=s", None)
            assert (status, json.loads(raw)["status"], served.stats["live_sessions"]) == (200, "done", 0)
            status, _, raw = await served.raw("/v1/completions", {"model": "nobody's", "prompt": prompt})
            assert (status, json.loads(raw)["error"]["param"]) == (404, "model"), "as the engine says it"
            served.check_books(completed=6, aborted=1)

    asyncio.run(play())


def test_an_engine_that_is_silent_for_too_long_is_given_up(proxied):
    async def play():
        async with proxied(engines=2, speed=0.001, idle_timeout_s=0.2) as served:
            status, _, raw = await served.raw("/v1/completions", {"prompt": list(range(100)), "max_tokens": 4})
            assert (status, json.loads(raw)["error"]["type"]) == (504, "engine_failed")
            await served.until(lambda: not any(engine.worker._streams for engine in served.engines))
            served.check_books(attempts=1, retries=0, aborted=1)

    asyncio.run(play())


def test_token_ids_in_and_out(proxied):
    async def play():
        async with proxied(engines=2) as served:
            prompt, where = list(range(300, 500)), set()
            for path in ("/inference/v1/generate", "/skyrl/v1/generate"):
                for stream in (False, True):
                    body = {"token_ids": prompt, "sampling_params": {"max_tokens": 5}, "stream": stream}
                    status, head, raw = await served.raw(path, body, headers={"X-Session-ID": "a_0"})
                    assert status == 200
                    where.add(head["X-Turnout-Replica"])
                    said = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: {")] or [raw]
                    ids = [token for each in said for token in json.loads(each)["choices"][0]["token_ids"]]
                    assert len(ids) == 5
                    prompt = [*prompt, *ids, 7, 8]
            assert len(where) == 1
            assert served.stats["counted_outputs"] == 0
            assert (await served.raw("/inference/v1/generate", {"token_ids": "text"}))[0] == 400
            served.check_books(completed=4)

    asyncio.run(play())


def test_an_engine_that_leaves_finishes_what_it_has_begun(proxied):
    async def play():
        async with proxied(engines=2, speed=2.0) as served:
            body = {"prompt": list(range(100)), "max_tokens": 100, "stream": True}
            async with served.session.post(f"{served.url}/v1/completions", json=body) as answer:
                await answer.content.readany()
                name = answer.headers["X-Turnout-Replica"]
                await served.raw(f"/workers/{name}", None, method="DELETE")
                other = await served.raw("/v1/completions", {"prompt": list(range(110)), "max_tokens": 1})
                assert other[1]["X-Turnout-Replica"] != name
                assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")
            await served.until(lambda: len(served.routed.router.replicas) == 1)
            served.check_books(completed=2)

    asyncio.run(play())
