"""`turnout serve` as a process of its own before model engines: decisions, safety, restarts that forget nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from contextlib import asynccontextmanager

import aiohttp
import pytest
from openai import AsyncOpenAI

from turnout.engine import EngineConfig, EngineServer
from turnout.errors import InvalidArgument
from turnout.listening import listen
from turnout.server.config import ServeConfig

SERVE = [sys.executable, "-m", "turnout.cli", "serve", "--port", "0"]
HEAD = {"Authorization": "Bearer secret"}


@asynccontextmanager
async def process(*options, end=signal.SIGTERM):
    """Run the command; yields its address."""
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    child = await asyncio.create_subprocess_exec(*SERVE, *options, **pipes)
    try:
        line = await child.stdout.readline()
        assert line, (await child.stderr.read()).decode()
        yield json.loads(line)["url"]
    finally:
        if child.returncode is None:
            child.send_signal(end)
        await child.communicate()
    assert child.returncode == (0 if end == signal.SIGTERM else -end)


async def ask(url, name, message=None):
    method = "GET" if message is None else "POST"
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{url}{name}", json=message, headers=HEAD) as answer,
    ):
        return answer.status, await answer.json()


async def until_ready(url):
    while (await ask(url, "/readyz"))[0] != 200:
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_knows_engines_sessions_and_open_turns(tmp_path, end):
    async def play():
        async with (
            EngineServer(EngineConfig(kv_tokens=65_536)) as one,
            EngineServer(EngineConfig(kv_tokens=32_768)) as two,
        ):
            options = ["--token", "secret", "--state", str(tmp_path / "state"), "--workload", "agent"]
            options += ["--engine", one.url, "--engine", two.url]
            async with process(*options, end=end) as url:
                await until_ready(url)
                while len(fleet := (await ask(url, "/turnout/v1/replicas"))[1]["replicas"]) < 2:
                    await asyncio.sleep(0.02)
                assert {row["kv_tokens"] for row in fleet} == {65_536, 32_768}, "learned from the engines"
                turn = {"prompt": list(range(500)), "session": "s", "turn": "t", "workload": "agent"}
                _, decision = await ask(url, "/turnout/v1/submit", turn)
                assert decision["status"] == "placed"
                assert decision["replica"] in {row["name"] for row in fleet}
            async with process(*options) as url:
                await until_ready(url)
                _, again = await ask(url, "/turnout/v1/submit", turn)
                assert (again["status"], again["replica"]) == ("placed", decision["replica"])
                assert (await ask(url, "/turnout/v1/complete", {"turn": "t", "output": [1]}))[1]["status"] == "done"
                append = {"append": [2, 3], "base_tokens": 501, "session": "s"}
                assert (await ask(url, "/turnout/v1/submit", append))[1]["reason"] == "continuation"

    asyncio.run(play())


def test_who_waits_is_answered_when_the_server_ends():
    async def play():
        async with process("--token", "secret") as url:
            assert (await ask(url, "/turnout/v1/add_replica", {"name": "r0", "kv_tokens": 1_000}))[0] == 200
            assert (await ask(url, "/turnout/v1/submit", {"prompt_tokens": 900}))[1]["status"] == "placed"
            held = {"prompt_tokens": 900, "turn": "t"}
            waiting = asyncio.create_task(ask(url, "/turnout/v1/submit", {**held, "wait_s": 60}))
            while (await ask(url, "/turnout/v1/stats"))[1]["stats"]["held_turns"] != 1:
                await asyncio.sleep(0.01)
        status, body = await waiting
        assert (status, body["error"]["type"]) == (503, "RouterClosed")

    asyncio.run(play())


def test_strangers_are_refused():
    async def play():
        async with process("--token", "secret") as url, aiohttp.ClientSession() as session:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
                async with session.get(f"{url}/turnout/v1/stats", headers=headers) as answer:
                    assert answer.status == 401
            async with session.get(f"{url}/healthz") as answer:
                assert answer.status == 200
            async with session.get(f"{url}/readyz") as answer:
                assert (answer.status, (await answer.json())["problems"]) == (503, ["no replica accepts turns"])
            async with session.get(f"{url}/turnout/v1/stats", headers={**HEAD, "X-Long": "x" * (1 << 20)}) as answer:
                assert answer.status in {400, 431}

    asyncio.run(play())


def test_a_public_address_needs_a_token():
    for host in ("0.0.0.0", "::", "10.0.0.1", "example"):  # noqa: S104 - refused
        with pytest.raises(InvalidArgument, match="without a token"):
            ServeConfig(host=host)
        assert ServeConfig(host=host, token="secret").host == host  # noqa: S106 - a test's
        assert ServeConfig(host=host, allow_anybody=True).host == host
    for wrong in ({"port": -1}, {"token": " "}, {"workloads": ("a=b",)}):
        with pytest.raises(InvalidArgument):
            ServeConfig(**wrong)


def test_answers_do_not_wait_for_acknowledgements():
    """Small writes of an answer must leave at once, else each costs the caller's delayed acknowledgement."""
    with listen("127.0.0.1", 0) as listening:
        listening.setblocking(True)
        with socket.create_connection(listening.getsockname()):
            accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_a_served_chat_goes_from_the_openai_package_to_an_engine_and_back():
    async def play():
        async with EngineServer(EngineConfig(kv_tokens=65_536, speed=100.0)) as engine:
            options = ["--token", "secret", "--engine", engine.url, "--wait-s", "30"]
            async with process(*options) as url:
                await until_ready(url)
                client = AsyncOpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0)
                chat = [{"role": "user", "content": "hello"}]
                answer = await client.chat.completions.create(model="turnout-model", messages=chat, max_tokens=5)
                assert answer.usage.completion_tokens == 5
                await client.close()
                stats = (await ask(url, "/turnout/v1/stats"))[1]["stats"]
                assert (stats["completed"], stats["open_turns"], stats["counted_outputs"]) == (1, 0, 0)
                async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models") as refused:
                    assert refused.status == 401

    asyncio.run(play())
