"""Real proxies before real model engines, decided by a real `turnout serve`: what every host has to show."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest

from turnout.engine import EngineConfig, EngineServer

ROOT = Path(__file__).parents[2]
SERVE = [sys.executable, "-m", "turnout.cli", "serve", "--port", "0", "--no-infer-sessions"]
PATH = "/v1/completions"


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def page_code(page, language):
    """The blocks of a page in this language, as they stand there."""
    text = (ROOT / "docs" / "embedding" / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@asynccontextmanager
async def process(*argv, ready=False):
    """Run a command until the block ends; yields (child, its first line)."""
    pipes = {"stdout": asyncio.subprocess.PIPE if ready else asyncio.subprocess.DEVNULL}
    child = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.DEVNULL, **pipes)
    try:
        yield child, await child.stdout.readline() if ready else b""
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGTERM)
        await child.communicate()


class Setting:
    """A proxy, the router behind it, and the engines.

    Attributes:
        url: Where clients ask.
        api: The decision API.
        engines: The engines, by the address of each.
    """

    def __init__(self, url, api, engines, serve, session):
        self.url, self.api, self.engines, self.serve, self.session = url, api, engines, serve, session

    async def decide(self, name, message=None):
        method = "GET" if message is None else "POST"
        async with self.session.request(method, f"{self.api}/turnout/v1/{name}", json=message) as answer:
            return await answer.json()

    async def stats(self):
        return (await self.decide("stats"))["stats"]

    async def charge_tokens(self):
        return sum(row["charge_tokens"] for row in (await self.decide("replicas"))["replicas"])

    async def until(self, **counters):
        """Wait until the counters have these values; the test's own time limit ends it."""
        while {name: (now := await self.stats())[name] for name in counters} != counters:
            await asyncio.sleep(0.02)
        return now

    async def until_up(self, replicas):
        """Wait until the replicas have joined and the proxy answers."""
        while len((await self.decide("replicas"))["replicas"]) != replicas:
            await asyncio.sleep(0.02)
        while True:
            try:
                async with self.session.get(f"{self.url}/v1/models") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.02)

    async def ask(self, prompt, session=None, *, max_tokens=4, **fields):
        """(status, address that served it, body)."""
        async with self.asking(prompt, session, max_tokens=max_tokens, **fields) as answer:
            body = await answer.read()
            return answer.status, answer.headers.get("x-served-by", ""), json.loads(body or b"{}")

    def asking(self, prompt, session=None, *, max_tokens=4, last=False, **fields):
        headers = {} if session is None else {"x-session-id": session}
        headers |= {"x-turnout-last": "1"} if last else {}
        message = {"prompt": list(prompt), "max_tokens": max_tokens, **fields}
        return self.session.post(self.url + PATH, json=message, headers=headers)

    async def nothing_is_left(self, *sessions):
        """No open turn, no held one, and once the sessions end no charge."""
        await self.until(open_turns=0, held_turns=0)
        for session in sessions:
            await self.decide("end_session", {"session": session})
        assert await self.charge_tokens() == 0

    # What every host has to show.

    async def routes_by_session_and_prefix(self):
        prompts = {name: range(start, start + 400) for name, start in (("a", 0), ("b", 1_000))}
        at = {}
        for name, prompt in prompts.items():
            status, at[name], _ = await self.ask(prompt, name)
            assert status == 200
        assert at["a"] != at["b"], "the second one goes where less waits"
        for _ in range(2):
            for name, prompt in prompts.items():
                status, served, body = await self.ask([*prompt, 7, 8], name)
                assert (status, served) == (200, at[name])
                assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 400
        status, served, body = await self.ask([*prompts["b"], 9, 9, 9], "c")
        assert (status, served, body["usage"]["prompt_tokens_details"]["cached_tokens"]) == (200, at["b"], 400)
        await self.nothing_is_left("a", "b", "c")
        stats = await self.stats()
        assert (stats["submitted"], stats["completed"], stats["aborted"]) == (7, 7, 0)

    async def ends_with_a_client_that_leaves(self):
        before = await self.stats()
        async with self.asking(range(64), "gone", max_tokens=30_000, stream=True) as answer:
            assert answer.status == 200
            await answer.content.readany()
            assert (await self.stats())["open_turns"] == 1
        await self.until(open_turns=0, aborted=before["aborted"] + 1)
        for engine in self.engines.values():
            while (await self.engine_running(engine)) > 0:
                await asyncio.sleep(0.02)
        await self.nothing_is_left("gone")

    async def engine_running(self, engine):
        async with self.session.get(f"{engine.url}/metrics") as answer:
            text = await answer.text()
        return float(re.search(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.MULTILINE)[1])

    @asynccontextmanager
    async def full(self):
        """Every engine is filled by a stream; yields what ends one of them."""
        async with AsyncExitStack() as both:
            stacks = [await both.enter_async_context(AsyncExitStack()) for _ in self.engines]
            for number, stack in enumerate(stacks):
                prompt = range(1_000 * number, 1_000 * number + 600)
                asking = self.asking(prompt, f"full{number}", max_tokens=350, stream=True, last=True)
                assert (await stack.enter_async_context(asking)).status == 200
            await self.until(open_turns=len(stacks), held_turns=0)
            yield stacks[0].aclose

    async def holds_until_there_is_room(self):
        async with self.full() as end_one:
            waiting = asyncio.create_task(self.ask(range(5_000, 5_600), "late"))
            await self.until(held_turns=1)
            assert not waiting.done()
            await end_one()
            assert (await waiting)[0] == 200
            await self.until(open_turns=len(self.engines) - 1, held_turns=0)
        await self.nothing_is_left("late")

    async def forgets_who_leaves_while_held(self, *, at_once=True):
        """`at_once`, or as soon as it would have been placed."""
        async with self.full() as end_one:
            waiting = asyncio.create_task(self.ask(range(5_000, 5_600), "late"))
            await self.until(held_turns=1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            if at_once:
                await self.until(held_turns=0, open_turns=len(self.engines))
            else:
                await end_one()
                await self.until(held_turns=0, open_turns=len(self.engines) - 1)
        await self.nothing_is_left("late")

    async def refuses_what_cannot_be(self):
        status, _, body = await self.ask(range(70_000), "long")
        assert (status, body["error"]["type"]) == (503, "turnout")
        await self.nothing_is_left("long")

    async def survives_a_dead_replica(self):
        """Its session goes to the other one, though the router still believes that it lives."""
        _, dead, _ = await self.ask(range(400), "s")
        await self.engines.pop(dead).stop()
        (other,) = self.engines
        status, served, _ = await self.ask(range(420), "s")
        assert (status, served) == (200, other)
        await self.until(open_turns=0)
        rows = {row["name"]: row["charge_tokens"] for row in (await self.decide("replicas"))["replicas"]}
        assert rows.get(dead, 0) == 0
        assert rows[other] > 0, "the charge went where the request went"
        await self.nothing_is_left("s")

    async def survives_a_dead_turnout(self):
        """Who streams goes on, who comes is spread over the engines, no matter what."""
        async with self.asking(range(64), "s", max_tokens=2_000, stream=True) as answer:
            await answer.content.readany()
            self.serve.kill()
            await self.serve.wait()
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        served = set()
        for _ in range(4):
            status, where, _ = await self.ask(range(400), "s")
            assert status == 200
            served.add(where)
        assert served == set(self.engines)


@asynccontextmanager
async def _setting(start_proxy, *options, engines=2, kv_tokens=65_536, speed=20.0):
    """Everything started: `start_proxy(serve's ready line, addresses of the engines)` yields the port of the proxy."""
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(EngineServer(EngineConfig(kv_tokens=kv_tokens, speed=speed)))
            for _ in range(engines)
        ]
        by_address = {engine.url.removeprefix("http://"): engine for engine in made}
        follow = [word for engine in made for word in ("--engine", engine.url)]
        serve, line = await stack.enter_async_context(process(*SERVE, *follow, *options, ready=True))
        ready = json.loads(line)
        port = await stack.enter_async_context(start_proxy(ready, list(by_address)))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        setting = Setting(f"http://127.0.0.1:{port}", ready["url"], by_address, serve, session)
        await setting.until_up(engines)
        yield setting


@pytest.fixture
def hosting():
    """`async with hosting.setting(start_proxy, *options_of_serve) as host`, and what starts a proxy."""
    return SimpleNamespace(setting=_setting, process=process, free_port=free_port, page_code=page_code)
