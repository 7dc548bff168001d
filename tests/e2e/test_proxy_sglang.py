"""SGLang's requests and sglang-router's way to join and leave, with real model engines."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import quote

from turnout.engine import EngineConfig, EngineServer


def body(first, count=100, **fields):
    return {"input_ids": list(range(first, first + count)), "sampling_params": {"max_new_tokens": 8}, **fields}


def test_generate_plain_and_streaming_with_a_routing_key(proxied):
    async def play():
        async with proxied(engines=2, dialect="sglang") as served:
            head = {"X-SMG-Routing-Key": "sample-1"}
            status, first, raw = await served.raw("/generate", body(0), headers=head)
            said = json.loads(raw)
            assert (status, said["meta_info"]["completion_tokens"], len(said["output_ids"])) == (200, 8, 8)
            # The trainer's next turn: everything so far, and what a tool said.
            grown = body(0)["input_ids"] + said["output_ids"] + list(range(9_000, 9_050))
            again = {"input_ids": grown, "sampling_params": {"max_new_tokens": 8}, "stream": True}
            _, second, raw = await served.raw("/generate", again, headers=head)
            assert second["X-Turnout-Replica"] == first["X-Turnout-Replica"]
            last = json.loads(raw.rsplit(b"data: ", 2)[1])
            assert last["meta_info"]["cached_tokens"] == 96, "whole blocks of prompt and answer"
            assert raw.endswith(b"data: [DONE]\n\n")
            holders = served.routed.peek(grown + last["output_ids"])
            assert holders[0][0] == first["X-Turnout-Replica"]
            assert served.stats["counted_outputs"] == 0, "the ids of all output were read"
            served.check_books(completed=2)

    asyncio.run(play())


def test_samples_and_batches_are_one_turn(proxied):
    async def play():
        async with proxied(dialect="sglang") as served:
            params = {"max_new_tokens": 4, "n": 3}
            for stream in (False, True):
                await served.raw("/generate", body(0, sampling_params=params, stream=stream))
            batch = {"input_ids": [[1, 2, 3], [4, 5]], "sampling_params": {"max_new_tokens": 2}}
            status, _, raw = await served.raw("/generate", batch)
            assert (status, len(json.loads(raw))) == (200, 2)
            served.check_books(completed=3)

    asyncio.run(play())


def test_text_goes_as_text_where_the_engine_has_no_tokenize(proxied):
    async def play():
        async with proxied(engines=2, dialect="sglang") as served:
            text, found = "a long story " * 20, set()
            for _ in range(3):
                asked = {"text": text, "sampling_params": {"max_new_tokens": 8}}
                _, head, raw = await served.raw("/generate", asked)
                found.add(head["X-Turnout-Replica"])
                text += json.loads(raw)["text"] + " and on"
            assert len(found) == 1
            assert served.stats["live_sessions"] == 1
            assert served.proxy.counts["tokens_as_text"] == 3
            served.check_books(completed=3)

    asyncio.run(play())


def test_engines_join_and_leave_as_with_sglang_router(proxied):
    async def play():
        async with (
            proxied(engines=1) as served,
            EngineServer(EngineConfig(dialect="sglang", kv_tokens=65_536)) as late,
        ):
            joined = lambda count: served.until(lambda: len(served.routed.router.replicas) == count)  # noqa: E731
            name = late.url.partition("://")[2]
            # From 0.3 on: ids.
            for _ in range(2):  # an engine that restarts registers again
                status, _, raw = await served.raw("/workers", {"url": late.url, "worker_type": "regular"})
                assert (status, json.loads(raw)["worker_id"]) == (202, name)
            await joined(2)
            _, _, raw = await served.raw("/workers", None, method="GET")
            listed = {worker["url"]: worker for worker in json.loads(raw)["workers"]}
            assert set(listed) == {late.url, served.engines[0].url}
            assert listed[late.url]["is_healthy"] is True
            assert (await served.raw("/generate", body(0)))[0] == 200
            status, _, _ = await served.raw(f"/workers/{listed[late.url]['id']}", None, method="DELETE")
            assert status == 202
            await joined(1)
            # Before: addresses.
            await served.raw("/workers", {"url": late.url})
            await joined(2)
            status, _, raw = await served.raw(f"/workers/{quote(late.url, safe='')}", None, method="DELETE")
            assert (status, json.loads(raw)["worker_id"]) == (202, name)
            await joined(1)
            # And the first.
            status, _, raw = await served.raw(f"/add_worker?url={late.url}", None)
            assert (status, raw.decode()) == (200, f"Successfully added worker: {late.url}")
            await joined(2)
            _, _, raw = await served.raw("/list_workers", None, method="GET")
            assert sorted(json.loads(raw)["urls"]) == sorted([late.url, served.engines[0].url])
            assert (await served.raw(f"/remove_worker?url={late.url}", None))[0] == 200
            await joined(1)
            for path, method in (("/workers/nobody", "DELETE"), ("/remove_worker?url=http://x", "POST")):
                assert (await served.raw(path, None, method=method))[0] == 404
            for wrong in ({"url": "nowhere"}, {}, {"url": late.url, "worker_type": "prefill"}):
                assert (await served.raw("/workers", wrong))[0] == 400
            served.check_books(completed=1)

    asyncio.run(play())
