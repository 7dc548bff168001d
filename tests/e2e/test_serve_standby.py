"""Warm standby with real processes: it goes on with held and placed turns, and a rolling restart loses none."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import sys
from contextlib import asynccontextmanager

import aiohttp
import pytest

from turnout import Replica, Router, aio
from turnout.engine import EngineConfig, EngineServer
from turnout.errors import InternalError, InvalidArgument
from turnout.record import JournalWriter, restore
from turnout.server.app import make_apps, run
from turnout.server.config import ServeConfig, StateConfig
from turnout.server.state import StateDirectory

SERVE = [sys.executable, "-m", "turnout.cli", "serve", "--port", "0"]


class Process:
    """A server as a process of its own, whichever of the two it is."""

    def __init__(self, child):
        self.child = child
        self.url = ""

    async def until(self, event):
        """Read lines of stdout up to this one."""
        while True:
            line = await self.child.stdout.readline()
            assert line, (await self.child.stderr.read()).decode()
            said = json.loads(line)
            self.url = said["url"]
            if said["event"] == event:
                return self

    async def end(self, number):
        if self.child.returncode is None:
            self.child.send_signal(number)
        _, errors = await self.child.communicate()
        return [json.loads(line)["event"] for line in errors.splitlines()]


@asynccontextmanager
async def processes():
    """Start servers; whatever is left of them is killed."""
    started = []

    async def start(*options):
        pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
        started.append(Process(await asyncio.create_subprocess_exec(*SERVE, *map(str, options), **pipes)))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            await process.end(signal.SIGKILL)


async def ask(session, url, name, message=None):
    method = "GET" if message is None else "POST"
    async with session.request(method, f"{url}{name}", json=message) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_standby_places_what_the_primary_held(tmp_path, end):
    async def play():
        async with (
            EngineServer(EngineConfig(kv_tokens=4_096)) as engine,
            processes() as start,
            aiohttp.ClientSession() as session,
        ):
            options = ["--engine", engine.url]
            first = await (await start("--state", tmp_path / "s", *options)).until("ready")
            second = await (await start("--standby-of", tmp_path / "s", *options)).until("standby")
            while (await ask(session, first.url, "/readyz"))[0] != 200:
                await asyncio.sleep(0.02)
            status, said = await ask(session, second.url, "/readyz")
            assert (status, said["status"]) == (503, "standby")
            assert f"process {first.child.pid} has the state" in said["problems"][0]
            while not (rehearsed := (await ask(session, second.url, "/readyz"))[1]["rehearsed"]):
                await asyncio.sleep(0.02)
            assert 0 < rehearsed["journal_bytes"] <= (tmp_path / "s" / "journal").stat().st_size
            assert (await ask(session, second.url, "/healthz"))[0] == 200
            status, said = await ask(session, second.url, "/turnout/v1/submit", {"prompt_tokens": 5})
            assert (status, said["error"]["type"]) == (503, "RouterClosed")
            runs = {"prompt": [*range(3_000)], "turn": "runs", "session": "a"}
            waits = {"prompt": [*range(5_000, 8_000)], "turn": "waits", "session": "b", "wait_s": 60, "keep": True}
            placed = (await ask(session, first.url, "/turnout/v1/submit", runs))[1]
            assert placed["status"] == "placed"
            waiting = asyncio.create_task(ask(session, first.url, "/turnout/v1/submit", waits))
            while (await ask(session, first.url, "/turnout/v1/stats"))[1]["stats"]["held_turns"] != 1:
                await asyncio.sleep(0.01)
            if end == signal.SIGTERM:
                first.child.send_signal(end)
                status, said = await waiting
                assert (status, said["error"]["type"]) == (503, "RouterClosed")
            else:
                first.child.send_signal(end)
                with pytest.raises(aiohttp.ClientError):
                    await waiting
            await second.until("ready")
            again = (await ask(session, second.url, "/turnout/v1/submit", runs))[1]
            assert (again["status"], again["replica"]) == ("placed", placed["replica"])
            waiting = asyncio.create_task(ask(session, second.url, "/turnout/v1/submit", waits))
            done = (await ask(session, second.url, "/turnout/v1/complete", {"turn": "runs", "output": [1]}))[1]
            assert done["status"] == "done"
            await ask(session, second.url, "/turnout/v1/end_session", {"session": "a"})
            status, said = await waiting
            assert (status, said["status"], said["replica"]) == (200, "placed", placed["replica"])
            while (await ask(session, second.url, "/readyz"))[0] != 200:
                await asyncio.sleep(0.02)
            events = await second.end(signal.SIGTERM)
            assert second.child.returncode == 0
            assert [event for event in events if event in {"standby", "takeover", "restored", "ready", "stopped"}] == [
                "standby", "takeover", "restored", "ready", "stopped",
            ]  # fmt: skip

    asyncio.run(play())


class Callers:
    """Rollouts that know every address and ask by turn id until somebody answers."""

    def __init__(self, session):
        self.session, self.urls, self.finished, self.stop = session, [], [], asyncio.Event()

    async def insist(self, name, message):
        """Ask whoever is there until somebody answers."""
        status = 503
        while status == 503:
            await asyncio.sleep(0.02)
            self.urls.append(self.urls.pop(0))
            try:
                status, said = await ask(self.session, self.urls[0], f"/turnout/v1/{name}", message)
            except aiohttp.ClientError:
                continue
        assert status == 200, said
        return said

    async def play(self, name):
        for number in itertools.count():
            if self.stop.is_set():
                return
            turn = f"{name}-{number}"
            asked = {"prompt": [*range(900)], "turn": turn, "session": turn, "wait_s": 5, "keep": True}
            decision = {"status": "held"}
            while decision["status"] == "held":
                decision = await self.insist("submit", asked)
            assert decision["status"] == "placed", decision
            await asyncio.sleep(0.01)
            # Asked again after an answer that was lost with the process, it is said to be known.
            end = await self.insist("complete", {"turn": turn, "output": [1]})
            assert end["status"] in {"done", "duplicate"}, end
            await self.insist("end_session", {"session": turn})
            self.finished.append(turn)


def test_a_rolling_restart_loses_no_turn(tmp_path):
    """Three restarts under load, by SIGTERM and by kill; every turn is completed exactly once."""

    async def play():
        async with (
            EngineServer(EngineConfig(kv_tokens=4_096)) as engine,
            processes() as start,
            aiohttp.ClientSession() as session,
        ):
            options = ["--standby-of", tmp_path / "s", "--engine", engine.url]
            current, callers = await (await start(*options)).until("ready"), Callers(session)
            callers.urls.append(current.url)
            tasks = [asyncio.create_task(callers.play(f"c{n}")) for n in range(8)]
            for end in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
                following = await (await start(*options)).until("standby")
                callers.urls.append(following.url)
                count = len(callers.finished)
                while len(callers.finished) < count + 20:
                    assert not any(task.done() for task in tasks)
                    await asyncio.sleep(0.01)
                ending = asyncio.create_task(current.end(end))
                await following.until("ready")
                await ending
                callers.urls.remove(current.url)
                current = following
            callers.stop.set()
            await asyncio.gather(*tasks)
            stats = (await ask(session, current.url, "/turnout/v1/stats"))[1]["stats"]
            assert (stats["lost"], stats["expired"], stats["open_turns"]) == (0, 0, 0)
            assert stats["completed"] == len(callers.finished) == len(set(callers.finished))

    asyncio.run(play())


def test_a_standby_needs_a_directory_and_sees_what_it_could_not_go_on_from(tmp_path):
    with pytest.raises(InvalidArgument, match="standby: got True"):
        StateConfig(standby=True)

    async def play():
        async with processes() as start, aiohttp.ClientSession() as session:
            await (await start("--state", tmp_path)).until("ready")
            (tmp_path / "journal").write_bytes(b"nonsense")
            second = await (await start("--standby-of", tmp_path)).until("standby")
            while len(problems := (await ask(session, second.url, "/readyz"))[1]["problems"]) < 2:
                await asyncio.sleep(0.02)
            assert "the state cannot be read" in problems[1]

    asyncio.run(play())


class Failing(Router):
    """A router that finds itself inconsistent when it is told to, as one does whose call panicked."""

    broken = False

    def _check(self):
        if self.broken:
            raise InternalError("an earlier call panicked; make a new router")

    def stats(self):
        self._check()
        return super().stats()

    def tick(self, *, now=None):
        self._check()
        return super().tick(now=now)


def test_a_failed_router_is_neither_ready_nor_alive(listen_with):
    async def play():
        router = Failing([], control_period_s=0.01)
        async with (
            aio.serve(router) as routed,
            listen_with(make_apps(routed, ServeConfig()).public) as url,
            aiohttp.ClientSession() as session,
        ):
            assert (await ask(session, url, "/healthz"))[0] == 200
            router.broken = True
            for path in ("/readyz", "/healthz"):
                status, said = await ask(session, url, path)
                assert (status, said["status"]) == (503, "failed")
                assert "the router has failed: an earlier call panicked" in said["problems"][0]

    asyncio.run(play())


def test_the_process_of_a_failed_router_ends_so_that_another_goes_on(tmp_path, monkeypatch):
    """Who waits is answered, the state is free, and it is that before the failure."""
    made = []

    def make(config, state):
        made.append(Failing.restore(state.journal.read_bytes(), policy=config.make_policy()))
        return made[0]

    JournalWriter(Router([Replica("r0", kv_tokens=1_000)]), tmp_path / "journal").close()
    monkeypatch.setattr("turnout.server.app.make_router", make)
    config = ServeConfig(port=0, state=StateConfig(directory=tmp_path))

    async def play():
        addresses = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(run(config, asyncio.Event(), addresses.set_result))
        url = (await addresses)["url"]
        async with aiohttp.ClientSession() as session:
            turn = {"prompt_tokens": 900, "turn": "runs", "session": "a"}
            assert (await ask(session, url, "/turnout/v1/submit", turn))[1]["status"] == "placed"
            waits = {"prompt_tokens": 900, "turn": "waits", "wait_s": 60, "keep": True}
            waiting = asyncio.create_task(ask(session, url, "/turnout/v1/submit", waits))
            while made[0].stats()["held_turns"] != 1:
                await asyncio.sleep(0.01)
            made[0].broken = True
            status, said = await waiting
            assert (status, said["error"]["type"]) == (503, "InternalError")
        with pytest.raises(InternalError, match="an earlier call panicked"):
            await serving

    asyncio.run(play())
    with StateDirectory(tmp_path) as state:
        again = restore(state.journal)
    assert again.submit(prompt_tokens=900, turn="runs", session="a").placed
    assert again.submit(prompt_tokens=900, turn="waits").held
