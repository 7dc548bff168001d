"""What the proxy does when somebody leaves, dies, or finds no room: no turn stays open, nothing stays reserved."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys

import aiohttp
import pytest
from openai import APIError

SLOW = 0.05
"""Model seconds per second: a token takes about 0.1 s."""


def ids(first, count):
    return list(range(first, first + count))


def ask(first, count=1_500, tokens=400, **fields):
    return {"prompt": ids(first, count), "max_tokens": tokens, **fields}


@contextlib.asynccontextmanager
async def occupied(served, first=10_000):
    """A stream that fills the only engine; yields its answer."""
    body = ask(first, stream=True)
    async with served.session.post(f"{served.url}/v1/completions", json=body) as answer:
        await answer.content.readany()
        yield answer


@contextlib.asynccontextmanager
async def engine_process(*options):
    """A model engine as a process of its own: it can be killed."""
    command = [sys.executable, "-m", "turnout.cli", "engine", "--kv-events-port", "-1", *options]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield json.loads(await child.stdout.readline())["url"], child.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.communicate()


@contextlib.asynccontextmanager
async def two_processes(proxied, speed, **settings):
    """A proxy in front of two engines that can be killed; yields it and their process ids by replica."""
    async with (
        engine_process("--speed", str(speed)) as (one, pid),
        engine_process("--speed", str(speed)) as (two, other),
        proxied(engines=0, urls=[one, two], **settings) as served,
    ):
        yield served, {one.partition("://")[2]: pid, two.partition("://")[2]: other}


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_leaves_while_it_is_held_gives_its_turn_up(proxied, stream):
    async def play():
        async with proxied(speed=SLOW, engine={"kv_tokens": 2_048}, comment_s=0.02) as served:
            async with occupied(served):
                asked = served.session.post(f"{served.url}/v1/completions", json=ask(50_000, stream=stream))
                waiting = asyncio.create_task(asked.__aenter__())
                await served.until(lambda: served.stats["held_turns"] == 1)
                if stream:
                    answer = await waiting
                    assert (await answer.content.readline(), answer.status) == (b": held\n", 200)
                    answer.close()
                else:
                    waiting.cancel()
                    await asyncio.gather(waiting, return_exceptions=True)
                await served.until(lambda: served.stats["held_turns"] == 0)
                assert served.stats["open_turns"] == 1
                assert served.proxy.counts["left"] == 1
            await served.until(lambda: served.stats["open_turns"] == 0)
            served.check_books(left=2, aborted=1, completed=0)

    asyncio.run(play())


def test_a_caller_that_leaves_while_it_streams_ends_the_engines_work(proxied):
    async def play():
        async with proxied(speed=SLOW) as served:
            async with occupied(served):
                assert len(served.engines[0].worker._streams) == 1
            await served.until(lambda: not served.engines[0].worker._streams)
            await served.until(lambda: served.stats["open_turns"] == 0)
            served.check_books(left=1, aborted=1, completed=0)
            assert served.stats["aborted"] == 1, "told once"

    asyncio.run(play())


def test_who_finds_no_room_in_time_is_told_when_to_come_again(proxied):
    async def play():
        async with proxied(speed=SLOW, engine={"kv_tokens": 2_048}, wait_s=0.1, retry_after_s=7.0) as served:
            async with occupied(served):
                status, head, body = await served.raw("/v1/completions", ask(50_000))
                assert (status, head["Retry-After"]) == (429, "7")
                assert "Held" in json.loads(body)["error"]["message"]
                status, _, body = await served.raw("/generate", {"input_ids": ids(0, 1_500)})
                assert status == 429
                status, _, body = await served.raw("/v1/completions", ask(0, 100_000))
                error = json.loads(body)["error"]
                assert (status, error["type"]) == (400, "context_length_exceeded")
                assert "larger than any replica" in error["message"]
            await served.until(lambda: served.stats["open_turns"] == 0)
            served.check_books(held=2, rejected=1)

    asyncio.run(play())


def test_a_streaming_caller_that_is_held_hears_comments_until_it_is_placed(proxied):
    async def play():
        async with proxied(speed=SLOW, engine={"kv_tokens": 2_048}, comment_s=0.02, wait_s=60.0) as served:
            async with occupied(served):
                body = ask(50_000, tokens=2, stream=True)
                waiting = asyncio.create_task(served.raw("/v1/completions", body))
                await served.until(lambda: served.stats["held_turns"] == 1)
                await asyncio.sleep(0.1)
            status, _, raw = await waiting
            assert status == 200
            comments, _, events = raw.partition(b"data: ")
            assert comments.count(b": held\n\n") * len(b": held\n\n") == len(comments) > 0
            assert events.endswith(b"data: [DONE]\n\n")
            served.check_books(left=1, completed=1)

    asyncio.run(play())


def test_a_refusal_after_comments_comes_as_an_event(proxied):
    async def play():
        async with proxied(speed=SLOW, engine={"kv_tokens": 2_048}, comment_s=0.02, wait_s=0.2) as served:
            async with occupied(served):
                client = served.openai()
                stream = await client.completions.create(model="turnout-model", **ask(50_000), stream=True)
                with pytest.raises(APIError, match="Held"):
                    async for _ in stream:
                        pass
            await served.until(lambda: served.stats["open_turns"] == 0)
            served.check_books(held=1)

    asyncio.run(play())


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_dies_before_its_first_byte_is_replaced_by_another(proxied, stream):
    async def play():
        # So slow that the first token takes a second or more.
        async with two_processes(proxied, 0.05) as (served, pids):
            body = ask(0, 3_000, tokens=1, stream=stream)
            waiting = asyncio.create_task(served.raw("/v1/completions", body, headers={"X-Session-ID": "s"}))
            await served.until(lambda: served.proxy.counts["attempts"] == 1)
            await asyncio.sleep(0.2)
            view = served.routed.router.view()
            first = view.replicas[int(view.running_turns.argmax())]
            os.kill(pids[first], signal.SIGKILL)
            status, head, _ = await waiting
            assert status == 200
            assert head["X-Turnout-Replica"] == next(name for name in pids if name != first)
            served.check_books(attempts=2, retries=1, completed=1, aborted=0)
            assert served.stats["aborted"] == 1, "the first attempt, by the second"

    asyncio.run(play())


def test_an_engine_that_dies_in_the_middle_is_told_to_the_caller(proxied):
    async def play():
        async with two_processes(proxied, SLOW) as (served, pids):
            client = served.openai()
            stream = await client.completions.create(model="turnout-model", **ask(0), stream=True)
            iterator = aiter(stream)
            await anext(iterator)
            os.kill(pids[stream.response.headers["x-turnout-replica"]], signal.SIGKILL)
            with pytest.raises(APIError, match="broke off"):
                async for _ in iterator:
                    pass
            served.check_books(attempts=1, retries=0, completed=0, aborted=1)

    asyncio.run(play())


def test_engines_that_cannot_be_reached_are_tried_no_more_often_than_allowed(proxied):
    async def play():
        async with two_processes(proxied, 100, attempts=2) as (served, pids):
            for pid in pids.values():
                os.kill(pid, signal.SIGKILL)
            status, _, body = await served.raw("/v1/completions", ask(0, 100))
            assert (status, json.loads(body)["error"]["type"]) == (502, "engine_failed")
            served.check_books(attempts=2, retries=1, completed=0, failed=1)

    asyncio.run(play())


def test_an_engine_that_ends_a_request_early_aborts_its_turn(proxied):
    async def play():
        async with proxied(speed=SLOW) as served:
            waiting = asyncio.create_task(served.raw("/generate", {"input_ids": ids(0, 100), "rid": "r"}))
            worker = served.engines[0].worker
            await served.until(lambda: any(stream.output for stream in worker._streams.values()))
            assert worker.abort_named("r") == 1
            status, _, body = await waiting
            assert (status, json.loads(body)["meta_info"]["finish_reason"]["type"]) == (200, "abort")
            served.check_books(aborted=1, completed=0)

    asyncio.run(play())


def test_a_session_that_ends_while_it_streams_ends_the_engines_work(proxied):
    async def play():
        async with proxied(speed=SLOW) as served:
            body = ask(0, 100, stream=True)
            head = {"X-Session-ID": "s"}
            async with served.session.post(f"{served.url}/v1/completions", json=body, headers=head) as answer:
                await answer.content.readany()
                await served.raw("/finish_session?session_id=s", {})
                rest = await answer.content.read()
            assert b"engine_failed" in rest
            await served.until(lambda: not served.engines[0].worker._streams)
            served.check_books(completed=0)

    asyncio.run(play())


def test_bad_requests_cost_no_turn_or_are_the_engines_to_refuse(proxied):
    async def play():
        async with proxied() as served:
            for path, body in (
                ("/v1/completions", {"prompt": []}),
                ("/v1/completions", [1]),
                ("/v1/chat/completions", {"messages": "hi"}),
                ("/generate", {"text": "a", "input_ids": [1]}),
                ("/generate", {}),
            ):
                status, _, said = await served.raw(path, body)
                assert (status, json.loads(said)["error"]["type"]) == (400, "InvalidArgument"), body
            for tokens in ([-1], [2**40], [1, "a"]):
                status, _, said = await served.raw("/v1/completions", {"prompt": tokens})
                assert (status, json.loads(said)["error"]["type"]) == (400, "InvalidTokens")
            head = {"X-Turnout-Workload": "nobody's"}
            assert (await served.raw("/v1/completions", ask(0), headers=head))[0] == 404
            assert served.stats["submitted"] == 0
            direct = await served.raw("/v1/completions", ask(0, n=0), url=served.engines[0].url)
            through = await served.raw("/v1/completions", ask(0, n=0))
            assert (through[0], through[2]) == (direct[0], direct[2])
            assert through[0] == 400
            served.check_books(completed=0, aborted=1)

    asyncio.run(play())


def test_the_callers_connection_is_used_again(proxied):
    async def play():
        async with proxied() as served, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as one:
            for number in range(5):
                async with one.post(f"{served.url}/v1/completions", json=ask(number * 1_000, 10, 1)) as answer:
                    assert (answer.status, len((await answer.json())["choices"])) == (200, 1)
            assert len(one.connector._conns) == 1
            served.check_books(completed=5)

    asyncio.run(play())
