"""What users of other routers complain about, each played against the proxy with real model engines."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import random

import aiohttp


def ids(seed, count):
    return random.Random(seed).choices(range(1_000, 50_000), k=count)


async def ask(served, prompt, tokens=4, **options):
    """(replica, body) of a completion that must succeed."""
    headers = {"X-Session-ID": options.pop("session")} if "session" in options else {}
    status, head, raw = await served.raw(
        "/v1/completions", {"prompt": prompt, "max_tokens": tokens, **options}, headers=headers
    )
    assert status == 200, raw
    return head["X-Turnout-Replica"], json.loads(raw)


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_counters_do_not_leak_whatever_becomes_of_requests(proxied):
    """vllm-project/production-stack#1072: in-flight counts that never came down; ray-project/ray#61755."""

    async def one(served, number):
        body = {"prompt": ids(number, 200), "max_tokens": 20, "stream": number % 2 == 0, "n": 1 + number % 3}
        if number % 4 == 1:
            body["n"] = 0  # refused by the engine
        if number % 4 == 2:
            body |= {"n": 1, "max_tokens": 2_000}  # left at its first piece
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(0.01 if number % 4 == 3 else 60.0),  # left at any point
                served.session.post(f"{served.url}/v1/completions", json=body) as answer,
            ):
                await (answer.content.readany() if number % 4 == 2 else answer.read())

    async def play():
        async with proxied(engines=3, speed=20.0, engine={"kv_tokens": 4_096}) as served:
            await asyncio.gather(*(one(served, number) for number in range(120)))
            await served.until(lambda: served.stats["open_turns"] == 0)
            await served.until(lambda: not any(engine.worker._streams for engine in served.engines))
            served.check_books()
            counts = served.proxy.counts
            assert counts["completed"] > 0
            assert counts["left"] > 0
            stats = served.stats
            assert stats["submitted"] == stats["completed"] + stats["aborted"]

    asyncio.run(play())


def test_idle_engines_are_not_always_served_from_the_first_on(proxied):
    """sgl-project/sglang#32983, verl-project/verl#7613: ties and misses at low load went to one replica, always."""

    async def play():
        async with proxied(engines=4) as served:
            found = collections.Counter([(await ask(served, ids(number, 100)))[0] for number in range(24)])
            assert len(found) == 4, found
            assert max(found.values()) <= 12, found

    asyncio.run(play())


def test_load_counts_on_a_miss(proxied):
    """sgl-project/sglang#14305, #14532, vllm-project/router#179: load was ignored, one engine of eight got it all."""

    async def play():
        async with proxied(engines=4, speed=20.0) as served:
            asked = [ask(served, ids(number, 2_000), tokens=100) for number in range(32)]
            found = collections.Counter(name for name, _ in await asyncio.gather(*asked))
            assert set(found) == set(served.names), found
            assert max(found.values()) <= 12, found

    asyncio.run(play())


def test_a_system_prompt_that_all_share_does_not_draw_all_to_one_engine(proxied):
    """NVIDIA/TensorRT-LLM#13198, sgl-project/sglang#34513: the first warm rank attracted all traffic."""

    async def play():
        system = ids("system", 400)
        async with proxied(engines=4, speed=20.0) as served:
            await ask(served, system)
            asked = [ask(served, system + ids(number, 2_000), tokens=100) for number in range(32)]
            found = collections.Counter(name for name, _ in await asyncio.gather(*asked))
            assert set(found) == set(served.names), found
            assert max(found.values()) <= 14, found

    asyncio.run(play())


def test_siblings_of_a_group_share_a_replica_before_any_cache_is_warm(proxied):
    """llm-d/llm-d-router#1726, verl-project/verl-omni#171: bursts arrive before a cache knows, and are scattered."""

    async def play():
        async with proxied(engines=4, speed=20.0) as served:
            prompt = ids("group", 4_000)
            asked = [ask(served, prompt, tokens=8, session=f"sibling-{number}", seed=number) for number in range(8)]
            assert len({name for name, _ in await asyncio.gather(*asked)}) == 1

    asyncio.run(play())


def test_memory_of_the_index_has_a_bound(proxied):
    """vllm-project/production-stack#687, #711: a prefix tree that never forgot, until the router was killed."""

    async def play():
        async with proxied(engines=2, router={"index_bytes": 1 << 20}, engine={"kv_events_port": None}) as served:
            for number in range(60):
                await ask(served, ids(number, 30_000), tokens=1)
            stats = served.stats
            assert stats["index_bytes"] <= 1 << 20
            assert stats["index_full"] + stats["paths_dropped"] > 0, "the bound was met"
            served.check_books(completed=60)

    asyncio.run(play())


def test_sessions_that_take_turns_find_their_prefixes(proxied):
    """BerriAI/litellm#38078: the hit rate fell from 95 % to nothing as soon as sessions were mixed."""

    async def play():
        async with proxied(engines=3) as served:
            sessions = {f"s{number}": ids(number, 400) for number in range(9)}
            chance = random.Random(2)
            for turn in range(4):
                names = list(sessions)
                chance.shuffle(names)
                for name in names:
                    known = len(sessions[name])
                    _, answer = await ask(served, sessions[name], session=name, return_token_ids=True)
                    if turn:
                        assert cached(answer) >= (known - 60) // 16 * 16, "all but what is new"
                    sessions[name] += answer["choices"][0]["token_ids"] + ids(f"{name}-{turn}", 50)

    asyncio.run(play())


def test_prompts_that_find_nothing_although_they_should_are_counted(proxied):
    """azrtydxb/Fastllm-proxy#22: routing for hits that never came was invisible to whoever ran it."""

    async def play():
        async with proxied(engine={"kv_events_port": None}) as served:
            prompt = ids(0, 800)
            for turn in range(3):
                await ask(served, prompt, session="s")
                # Nobody tells the router: no events, and the engine's counters say nothing of it.
                async with served.session.post(f"{served.engines[0].url}/reset_prefix_cache"):
                    pass
                prompt = prompt + ids(turn + 1, 100)
            assert served.stats["surprises"] == 2
            view = served.routed.router.view()
            assert view.reported_turns.sum() == 2
            assert view.missing_tokens.sum() >= 1_600 - 64

    asyncio.run(play())


def test_a_flush_for_new_weights_empties_the_index(proxied):
    """NVIDIA-NeMo/RL#4018: the router went on believing in caches of weights that were gone."""

    async def play():
        async with proxied(engines=2) as served:
            prompt = ids(0, 640)
            name, _ = await ask(served, prompt)
            await served.until(lambda: served.routed.peek([*prompt, 1]) == [(name, 640)])
            engine = served.engines[served.names.index(name)]
            async with served.session.post(f"{engine.url}/flush_cache"):
                pass
            await served.until(lambda: served.routed.peek([*prompt, 1]) == [])
            served.check_books(completed=1)

    asyncio.run(play())


def test_another_salt_of_the_cache_is_another_cache(proxied):
    """SkyRL salts the cache with the policy's version: an index without namespaces counts hits that cannot be."""

    async def play():
        async with proxied(engine={"kv_events_port": None}) as served:
            prompt = ids(0, 640)
            await ask(served, prompt, cache_salt="version-1")
            assert served.routed.peek([*prompt, 1], namespace="version-1") == [(served.names[0], 640)]
            assert served.routed.peek([*prompt, 1], namespace="version-2") == []
            assert served.routed.peek([*prompt, 1]) == []

    asyncio.run(play())


def test_hundreds_of_connections_at_once_are_served(proxied):
    """vllm-project/production-stack#448: the router fell over with a thousand connections."""

    async def play():
        connector = aiohttp.TCPConnector(limit=0)
        async with proxied(engines=2, speed=2_000.0) as served, aiohttp.ClientSession(connector=connector) as session:

            async def one(number):
                body = {"prompt": ids(number, 60), "max_tokens": 2, "stream": number % 2 == 0}
                async with session.post(f"{served.url}/v1/completions", json=body) as answer:
                    assert answer.status == 200
                    return len(await answer.read())

            assert all(await asyncio.gather(*(one(number) for number in range(400))))
            served.check_books(completed=400, requests=400)

    asyncio.run(play())
