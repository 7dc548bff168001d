"""A running engine, with the clients that people use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import openai
import pytest
import zmq
import zmq.asyncio

from turnout import Replica, Router, Workload, policies
from turnout.engine import EngineConfig, EngineServer
from turnout.errors import InvalidArgument

FAST = 1_000.0
Client = Callable[..., Awaitable[Any]]


@contextlib.asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[EngineServer, aiohttp.ClientSession]]:
    config = EngineConfig(**{"kv_tokens": 65_536, "dialect": "both", "speed": FAST, **settings})
    connector = aiohttp.TCPConnector(limit=0)
    async with EngineServer(config) as server, aiohttp.ClientSession(server.url, connector=connector) as http:
        yield server, http


async def post(http: aiohttp.ClientSession, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    async with http.post(path, json=body or {}) as response:
        text = await response.text()
        return response.status, json.loads(text) if text.startswith(("{", "[")) else text


async def get(http: aiohttp.ClientSession, path: str) -> Any:
    async with http.get(path) as response:
        assert response.status == 200
        return await response.json()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_the_openai_client() -> None:
    async def run() -> None:
        async with running() as (server, _), openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            assert [model.id async for model in client.models.list()] == ["turnout-model"]
            text = "a long enough prompt to fill some blocks of the cache"
            first = await client.completions.create(model="turnout-model", prompt=text, max_tokens=40)
            again = await client.completions.create(model="turnout-model", prompt=text, max_tokens=40)
            assert first.choices[0].text == again.choices[0].text
            assert (len(first.choices[0].text), first.choices[0].finish_reason) == (40, "length")
            assert first.usage is not None
            assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (len(text), 40)
            assert again.usage is not None
            assert again.usage.prompt_tokens_details is not None
            assert again.usage.prompt_tokens_details.cached_tokens == (len(text) - 1) // 16 * 16

            options: Any = {"stream": True, "stream_options": {"include_usage": True}}
            pieces = [
                one
                async for one in await client.completions.create(
                    model="turnout-model",
                    prompt=text,
                    max_tokens=40,
                    n=2,
                    extra_body={"return_token_ids": True},
                    **options,
                )
            ]
            for index in (0, 1):
                choices = [choice for one in pieces for choice in one.choices if choice.index == index]
                joined = "".join(choice.text for choice in choices)
                assert [choice.finish_reason for choice in choices][-1] == "length"
                assert (joined == first.choices[0].text) == (index == 0)
                assert [token for choice in choices for token in choice.token_ids] == list(joined.encode())
                assert choices[0].prompt_token_ids == list(text.encode())
            assert pieces[-1].usage.completion_tokens == 80

            messages: list[Any] = [{"role": "user", "content": "hello there, how do you do?"}]
            chat = await client.chat.completions.create(model="turnout-model", messages=messages)
            answer = chat.choices[0].message.content
            assert answer is not None
            assert (16 <= len(answer) < 256, chat.choices[0].finish_reason) == (True, "stop")
            streamed = [
                one
                async for one in await client.chat.completions.create(
                    model="turnout-model", messages=messages, **options
                )
            ]
            assert "".join(one.choices[0].delta.content or "" for one in streamed[:-1]) == answer
            assert streamed[0].choices[0].delta.role == "assistant"

            # The next turn finds prompt and answer of the one before.
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "fine"}]
            more = await client.chat.completions.create(model="turnout-model", messages=messages, max_tokens=5)
            assert chat.usage is not None
            assert more.usage is not None
            assert more.usage.prompt_tokens_details is not None
            # The last output token has no KV yet when it is told.
            assert more.usage.prompt_tokens_details.cached_tokens == (chat.usage.total_tokens - 1) // 16 * 16

            with pytest.raises(openai.BadRequestError, match="maximum context length is 65536"):
                await client.completions.create(model="turnout-model", prompt=text, max_tokens=65_536)
            with pytest.raises(openai.NotFoundError, match="does not exist"):
                await client.completions.create(model="other", prompt=text)

    asyncio.run(run())


def test_prompts_of_every_kind() -> None:
    async def run() -> None:
        async with running() as (_, http):
            for prompt, count, tokens in (
                ([5, 300, 7], 1, 3),
                ([[1, 2], [3]], 2, 3),
                (["ab", "c"], 2, 3),
                ("x", 1, 1),
            ):
                status, answer = await post(http, "/v1/completions", {"prompt": prompt, "max_tokens": 3})
                assert (status, len(answer["choices"]), answer["usage"]["prompt_tokens"]) == (200, count, tokens)
                assert answer["usage"]["completion_tokens"] == 3 * count
            ids = {"prompt": [1, 2, 3], "max_tokens": 4, "return_token_ids": True, "echo": True}
            choice = (await post(http, "/v1/completions", ids))[1]["choices"][0]
            assert choice["prompt_token_ids"] == [1, 2, 3]
            assert choice["text"] == "\x01\x02\x03" + bytes(choice["token_ids"]).decode()
            for bad in ({"prompt": []}, {"prompt": None}, {"prompt": [-1]}, {"prompt": ""}, {"prompt": [1, "a"]},
                        {"prompt": "x", "max_tokens": 0}, {"prompt": "x", "n": 0}, {"prompt": [[]]}):  # fmt: skip
                status, answer = await post(http, "/v1/completions", bad)
                assert (status, answer["error"]["code"], bool(answer["error"]["message"])) == (400, 400, True)
            async with http.post("/v1/completions", data=b"{") as response:
                assert response.status == 400
            image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
            assert (await post(http, "/v1/chat/completions", {"messages": image}))[0] == 400
            assert (await post(http, "/v1/chat/completions", {"messages": []}))[0] == 400
            parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
            assert (await post(http, "/v1/chat/completions", {"messages": parts}))[0] == 200

    asyncio.run(run())


def test_generate_as_sglang_has_it() -> None:
    async def run() -> None:
        async with running(dialect="sglang") as (_, http):
            ids = list(range(100))
            body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 30}, "rid": "mine"}
            _, first = await post(http, "/generate", body)
            _, again = await post(http, "/generate", body)
            assert first["output_ids"] == again["output_ids"]
            assert first["text"] == bytes(first["output_ids"]).decode()
            assert again["meta_info"]["finish_reason"] == {"type": "length", "length": 30}
            assert (first["meta_info"]["cached_tokens"], again["meta_info"]["cached_tokens"]) == (0, 96)
            assert (again["meta_info"]["id"], again["meta_info"]["prompt_tokens"]) == ("mine", 100)
            async with http.post("/generate", json={**body, "stream": True}) as response:
                lines = [line[6:].strip() async for line in response.content if line.startswith(b"data: ")]
            assert lines[-1] == b"[DONE]"
            last = json.loads(lines[-2])
            assert (last["text"], last["output_ids"]) == (first["text"], first["output_ids"])
            _, several = await post(http, "/generate", {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 2}})
            assert [len(one["output_ids"]) for one in several] == [2, 2]
            assert (await post(http, "/generate", {"text": "a", "input_ids": [1]}))[0] == 400
            assert (await post(http, "/generate", {"text": "a", "sampling_params": {"max_new_tokens": 65_536}}))[
                0
            ] == 400
            assert (await post(http, "/update_weight_version", {"new_version": "7"}))[1]["success"]
            assert (await get(http, "/get_model_info"))["weight_version"] == "7"
            assert (await post(http, "/flush_cache"))[0] == 200
            assert (await post(http, "/generate", body))[1]["meta_info"]["cached_tokens"] == 0
            (load,) = (await get(http, "/v1/loads"))["loads"]
            assert (load["num_running_reqs"], load["max_total_num_tokens"]) == (0, 65_536)
            assert (await post(http, "/reset_prefix_cache"))[0] == 404

    asyncio.run(run())


def test_clients_that_leave_end_their_requests() -> None:
    async def run() -> None:
        async with running(speed=1.0) as (server, http):
            counters = server.worker.core.counters
            for body in ({"stream": True}, {"stream": False}, {"stream": True, "n": 3}):
                asking = asyncio.create_task(
                    post(http, "/v1/completions", {"prompt": "x", "max_tokens": 60_000, **body})
                )
                await until(lambda: counters()["running"] > 0)
                asking.cancel()
                await until(lambda: counters()["running"] + counters()["waiting"] == 0)
                assert counters()["used_tokens"] == 0
            assert (counters()["aborted_total"], server.worker.finished["abort"]) == (5, 5)

    asyncio.run(run())


def test_requests_are_aborted_by_name() -> None:
    async def run() -> None:
        async with running(speed=1.0) as (server, http):
            body = {"text": "x", "sampling_params": {"max_new_tokens": 60_000}, "rid": "long"}
            asking = asyncio.create_task(post(http, "/generate", body))
            other = asyncio.create_task(post(http, "/v1/completions", {"prompt": "y", "max_tokens": 60_000}))
            await until(lambda: server.worker.core.counters()["running"] == 2)
            await post(http, "/abort_request", {"rid": "nobody"})
            await post(http, "/abort_request", {"rid": "long"})
            assert (await asking)[1]["meta_info"]["finish_reason"]["type"] == "abort"
            assert not other.done()
            assert (await post(http, "/abort_requests", {}))[1] == {"aborted": 1}
            assert (await other)[1]["choices"][0]["finish_reason"] == "abort"

    asyncio.run(run())


def test_pause_and_resume() -> None:
    async def run() -> None:
        async with running(speed=10.0) as (server, http):
            body = {"prompt": "x", "max_tokens": 400}
            asking = asyncio.create_task(post(http, "/v1/completions", body))
            await until(lambda: server.worker.core.counters()["running"] == 1)
            assert (await post(http, "/pause?mode=keep"))[1] == {"status": "paused"}
            later = asyncio.create_task(post(http, "/v1/completions", {"prompt": "y"}))
            frozen = server.worker.core.counters()
            await asyncio.sleep(0.1)
            assert server.worker.core.counters() == frozen
            assert (await get(http, "/is_paused"), later.done()) == ({"is_paused": True}, False)
            await post(http, "/resume")
            assert (await asking)[1]["usage"]["completion_tokens"] == 400
            assert (await later)[0] == 200
            asking = asyncio.create_task(post(http, "/v1/completions", body))
            await until(lambda: server.worker.core.counters()["running"] == 1)
            await post(http, "/pause?mode=wait")
            assert (await asking)[1]["choices"][0]["finish_reason"] == "length"
            await post(http, "/resume")
            asking = asyncio.create_task(post(http, "/v1/completions", {**body, "max_tokens": 60_000}))
            await until(lambda: server.worker.core.counters()["running"] == 1)
            await post(http, "/pause")
            assert (await asking)[1]["choices"][0]["finish_reason"] == "abort"
            assert (await post(http, "/pause?mode=other"))[0] == 400

    asyncio.run(run())


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_a_router_that_listens_finds_what_the_engine_finds(dialect: str) -> None:
    async def run() -> None:
        with zmq.asyncio.Context() as context:
            async with running(dialect=dialect, kv_tokens=1_024) as (server, http):
                listener = context.socket(zmq.SUB)
                listener.subscribe(b"")
                listener.connect(f"tcp://127.0.0.1:{server.kv_events_port}")
                asker = context.socket(zmq.DEALER)
                asker.connect(f"tcp://127.0.0.1:{server.replay_port}")
                router = Router([Replica("e", kv_tokens=1_024)], [Workload("w")], policy=policies.Open())

                async def replay(first: int) -> list[tuple[int, bytes]]:
                    await asker.send_multipart([b"", struct.pack(">Q", first)])
                    batches = []
                    while (frames := await asker.recv_multipart())[2] != b"\xff" * 8:
                        assert frames[:2] == [b"", b""]
                        batches.append((int.from_bytes(frames[2]), frames[3]))
                    return batches

                heard: list[tuple[int, bytes]] = []

                async def hear() -> None:
                    while await listener.poll(100):
                        topic, number, payload = await listener.recv_multipart()
                        assert (topic, len(number)) == (b"", 8)
                        heard.append((int.from_bytes(number), payload))

                async def ask(prompt: list[int]) -> int:
                    body: dict[str, Any] = {"prompt": prompt, "max_tokens": 40}
                    status, answer = await post(http, "/v1/completions", body)
                    assert status == 200
                    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

                await ask([9] * 40)
                await hear()  # a subscription takes a moment: what it missed comes by replay
                applied = 0
                for turn in range(12):
                    for number, payload in await replay(applied):
                        assert router.kv_events("e", payload, sequence=number).status == "done"
                        applied = number + 1
                    prompt = [turn % 3] * (100 + 50 * turn)
                    expected = dict(router.peek(prompt)).get("e", 0)
                    assert await ask(prompt) == min(expected, (len(prompt) - 1) // 16 * 16)
                await hear()
                everything = await replay(0)
                assert [number for number, _ in everything] == list(range(len(everything)))
                assert heard
                assert set(heard) <= set(everything)
                removed = b"BlockRemoved"
                assert any(removed in payload for _, payload in everything)

                # New weights: whoever listens knows that nothing is found any more.
                assert (await post(http, "/reset_prefix_cache" if dialect == "vllm" else "/flush_cache"))[0] == 200
                for number, payload in await replay(applied):
                    router.kv_events("e", payload, sequence=number)
                assert dict(router.peek(prompt)).get("e", 0) == 0
                assert await ask(prompt) == 0
                listener.close(0)
                asker.close(0)

    asyncio.run(run())


def test_load_is_published() -> None:
    async def run() -> None:
        with zmq.asyncio.Context() as context:
            async with running(dialect="sglang", speed=1.0) as (server, http):
                listener = context.socket(zmq.SUB)
                listener.subscribe(b"load")
                listener.connect(f"tcp://127.0.0.1:{server.load_port}")
                body = {"text": "x" * 100, "sampling_params": {"max_new_tokens": 60_000}}
                asking = asyncio.create_task(post(http, "/generate", body))
                while True:
                    topic, _, payload = await listener.recv_multipart()
                    load = msgspec.msgpack.decode(payload)
                    if load[1] == 1:
                        break
                assert (topic, load[0], len(load), load[4]) == (b"load", "LoadStat", 11, 65_536)
                assert 100 <= load[3] < 65_536
                await post(http, "/abort_request", {"abort_all": True})
                await asking
                listener.close(0)

    asyncio.run(run())


NAMES = re.compile(r"^([a-z_]+:[a-z_]+)(?:\{([^}]*)\})? ")


def test_metrics_have_the_names_of_the_real_engines() -> None:
    async def run() -> str:
        async with running() as (_, http):
            for _ in range(2):
                await post(http, "/v1/completions", {"prompt": "x" * 50, "max_tokens": 4})
            async with http.get("/metrics") as response:
                return await response.text()

    page = asyncio.run(run())
    own = {match[1] for line in page.splitlines() if (match := NAMES.match(line))}
    captured = next(
        (folder for parent in Path(__file__).parents if (folder := parent / "shared" / "wire").is_dir()), None
    )
    for name, value in (
        ('vllm:prefix_cache_hits_total{engine="0",model_name="turnout-model"}', 48),
        ('vllm:prefix_cache_queries_total{engine="0",model_name="turnout-model"}', 100),
        ('vllm:request_success_total{engine="0",finished_reason="length",model_name="turnout-model"}', 2),
        ('sglang:prompt_tokens_total{engine_type="unified",model_name="turnout-model"}', 100),
    ):
        assert f"{name} {float(value)}" in page.splitlines()
    assert {"vllm:kv_cache_usage_perc", "vllm:num_preemptions_total", "sglang:token_usage"} <= own
    if captured is None:
        return
    real = "\n".join(file.read_text() for file in captured.glob("*.metrics.txt"))
    # Series that the real engines had not counted yet when their pages were captured.
    later = {"sglang:num_retracted_requests_total", "sglang:cached_tokens_total", "sglang:num_aborted_requests_total"}
    assert {name for name in own if name not in real} <= later


def test_it_carries_512_streams() -> None:
    async def run() -> None:
        async with running(kv_tokens=788_000, speed=100.0) as (server, http):
            began = asyncio.Semaphore(0)
            release = asyncio.Event()

            async def stream(number: int) -> int:
                body = {"prompt": [number, *range(64)], "max_tokens": 200, "stream": True, "return_token_ids": True}
                tokens = 0
                async with http.post("/v1/completions", json=body) as response:
                    began.release()
                    await release.wait()
                    async for line in response.content:
                        if line.startswith(b"data: {"):
                            tokens += sum(len(choice["token_ids"]) for choice in json.loads(line[6:])["choices"])
                return tokens

            streams = [asyncio.create_task(stream(number)) for number in range(512)]
            for _ in streams:
                await began.acquire()
            release.set()
            assert await asyncio.gather(*streams) == [200] * 512
            assert server.worker.core.counters()["finished_total"] == 512

    asyncio.run(run())


def test_tokens_are_told_and_read() -> None:
    async def run() -> None:
        async with running() as (_, http):
            _, read = await post(http, "/tokenize", {"prompt": "hé<|300|>"})
            assert (read["count"], read["tokens"][-1]) == (4, 300)
            assert (await post(http, "/detokenize", {"tokens": read["tokens"]}))[1] == {"prompt": "hé<|300|>"}
            assert (await post(http, "/detokenize", {"tokens": [-1]}))[0] == 400
            assert (await post(http, "/tokenize", {}))[0] == 400
            assert (await get(http, "/version"))["version"]
            sources = (await get(http, "/kv_event_sources"))["0"]
            info = (await get(http, "/server_info"))["kv_events"]
            assert sources["endpoint"].endswith(f":{info['endpoint_port_base']}")
            async with http.get("/health") as response:
                assert response.status == 200

    asyncio.run(run())


@pytest.mark.parametrize("host", ["localhost", "0.0.0.0"])  # noqa: S104 - a machine of tests
def test_hosts_by_name_and_all_of_them(host: str) -> None:
    async def run() -> None:
        async with running(host=host) as (_, http):
            assert (await post(http, "/v1/completions", {"prompt": "x"}))[0] == 200
        with pytest.raises(InvalidArgument) as refused:
            await EngineServer(EngineConfig(host="no.such.host.invalid")).start()
        assert refused.value.argument == "host"

    asyncio.run(run())


def test_a_part_that_fails_ends_the_wait() -> None:
    async def run() -> None:
        async with running() as (server, _):
            await server.worker.pause("keep")
            server.worker.core = None  # type: ignore[assignment]
            server.worker.resume()
            with pytest.raises(AttributeError):
                await server.wait(asyncio.Event())

    asyncio.run(run())


def test_a_taken_port_is_named() -> None:
    async def run() -> None:
        async with running() as (server, _):
            for taken in ({"port": server.port}, {"kv_events_port": server.kv_events_port}):
                with pytest.raises(InvalidArgument) as refused:
                    await EngineServer(EngineConfig(**taken)).start()
                assert refused.value.argument in taken

    asyncio.run(run())


def test_the_command_says_its_ports_and_stops_when_told() -> None:
    command = [sys.executable, "-m", "turnout.cli", "engine", "--kv-tokens", "1600", "--model", "m", "--speed", "50"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())

        async def ask() -> Any:
            async with aiohttp.ClientSession(ready["url"]) as http:
                return await get(http, "/v1/models")

        try:
            models = asyncio.run(ask())
        finally:
            process.send_signal(signal.SIGTERM)
            rest, errors = process.communicate(timeout=30)
    assert (ready["event"], ready["kv_tokens"], ready["model"]) == ("ready", 1_600, "m")
    assert models["data"][0]["max_model_len"] == 1_600
    assert (rest, errors, process.returncode) == ("", "", 0)
