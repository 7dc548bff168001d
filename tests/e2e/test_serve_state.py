"""State that survives: `kill -9` under traffic with compaction, two processes at one state, damage."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from turnout import Replica, Router, Workload, record
from turnout.errors import InvalidArgument, RecordError
from turnout.server.config import ServeConfig, StateConfig
from turnout.server.state import StateDirectory, make_router

SERVE = [sys.executable, "-m", "turnout.cli", "serve", "--port", "0"]
ROUNDS = int(os.environ.get("TURNOUT_CRASHES", "3"))
CONFIG = "[state]\nrotate_bytes = 65536\ndirectory = 'kept'\n"


@asynccontextmanager
async def process(*options):
    """Run the command; yields the child and its address."""
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    child = await asyncio.create_subprocess_exec(*SERVE, *options, **pipes)
    try:
        line = await child.stdout.readline()
        assert line, (await child.stderr.read()).decode()
        yield child, json.loads(line)["url"]
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


class Traffic:
    """Callers who remember what they were told: the latest answer per turn, and which turns have a call in flight."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.turns = {}
        self.told = {}
        self.unsure = set()

    async def ask(self, session, name, message):
        async with session.post(f"/turnout/v1/{name}", json=message) as answer:
            body = await answer.json()
            assert answer.status == 200, body
            return body

    async def submit(self, session, turn):
        self.unsure.add(turn)
        decision = await self.ask(session, "submit", self.turns[turn])
        self.told[turn] = decision
        self.unsure.discard(turn)
        return decision

    async def caller(self, session, name):
        """Submit and end turns until the server is gone. Some end, some run on, some wait."""
        try:
            for number in range(100_000):
                turn = f"{name}-{number}"
                start = self.random.randrange(1 << 30)
                prompt = [*range(start, start + self.random.randrange(200, 2_000))]
                self.turns[turn] = {"turn": turn, "session": turn, "prompt": prompt}
                await self.submit(session, turn)
                ends = [turn for turn in self.told if turn.startswith(f"{name}-")]
                if len(ends) > 4:
                    await self.end(session, self.random.choice(ends))
        except aiohttp.ClientError:
            pass

    async def end(self, session, turn):
        self.unsure.add(turn)
        await self.ask(session, "complete", {"turn": turn, "output": [1, 2, 3]})
        await self.ask(session, "end_session", {"session": turn})
        self.unsure.discard(turn)
        del self.told[turn]


async def counted(session):
    async with session.get("/metrics") as answer:
        families = text_string_to_metric_families(await answer.text())
        return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def test_kill_under_traffic_with_compaction_forgets_no_turn(tmp_path):
    """Whatever was answered before the kill is so afterwards: placed turns at their replica, held ones in the line."""
    (tmp_path / "turnout.toml").write_text(CONFIG, encoding="utf-8")

    async def play():
        traffic, rotations, checked = Traffic(7), 0, Counter()
        for number in range(ROUNDS + 1):
            async with (
                process("--config", tmp_path / "turnout.toml") as (child, url),
                aiohttp.ClientSession(url) as session,
            ):
                if number == 0:
                    for name in ("r0", "r1"):
                        await traffic.ask(session, "add_replica", {"name": name, "kv_tokens": 20_000})
                before = (await counted(session))["turnout_submitted_turns_total"]
                sure = {turn: told for turn, told in traffic.told.items() if turn not in traffic.unsure}
                for turn, told in sure.items():
                    again = await traffic.submit(session, turn)
                    if told["status"] == "placed":
                        assert (again["status"], again["replica"]) == ("placed", told["replica"])
                    else:
                        # A call in flight at the kill may have ended a turn and let this one in.
                        assert again["status"] in {"held", "placed"}
                    checked[told["status"]] += 1
                after = (await counted(session))["turnout_submitted_turns_total"]
                assert after == before, "none of them was new to the server"
                if number == ROUNDS:
                    return rotations, checked
                for turn in traffic.unsure & traffic.told.keys():
                    traffic.told.pop(turn)
                traffic.unsure.clear()
                callers = [asyncio.create_task(traffic.caller(session, f"c{number}-{n}")) for n in range(6)]
                while (count := (await counted(session))["turnout_journal_rotations_total"]) < 2:
                    await asyncio.sleep(0.02)
                await asyncio.sleep(traffic.random.uniform(0, 0.3))
                rotations += count
                child.send_signal(signal.SIGKILL)
                await asyncio.gather(*callers)
        return None

    rotations, checked = asyncio.run(play())
    assert rotations >= 2 * ROUNDS
    assert min(checked["placed"], checked["held"]) >= ROUNDS
    assert record.replay(tmp_path / "kept" / "journal").events
    assert {path.name for path in (tmp_path / "kept").iterdir()} <= {"journal", "journal.new", "lock"}


def test_two_processes_never_write_one_state(tmp_path):
    async def play():
        async with process("--state", tmp_path / "kept") as (child, _):
            command = [*SERVE, "--state", str(tmp_path / "kept")]
            second = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
            assert second.returncode == 2
            assert f"which process {child.pid} writes" in second.stderr
        async with process("--state", tmp_path / "kept"):
            pass  # the kernel gave the lock up with the process

    asyncio.run(play())


def test_what_cannot_be_gone_on_from_is_left_alone(tmp_path):
    def made(**arguments):
        config = ServeConfig(state=StateConfig(directory=tmp_path), **arguments)
        with StateDirectory(tmp_path) as state:
            return make_router(config, state)

    journal = tmp_path / "journal"
    router = Router([Replica("r0")], [Workload("agent", target=0.5)])
    record.JournalWriter(router, journal).close()
    assert made().workloads == ("agent",)
    assert made(workloads=("agent=0.7",)).view().target[0] == 0.5
    with pytest.raises(InvalidArgument, match="is of agent; accepted are the same ones, another --state"):
        made(workloads=("chat",))
    journal.write_bytes(b"something else")
    with pytest.raises(RecordError, match="another --state, or move this file away"):
        made()
    assert journal.read_bytes() == b"something else"
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InvalidArgument, match="--no-state"):
        StateDirectory(tmp_path / "file")


def test_no_state_leaves_no_file(tmp_path):
    async def play():
        async with process("--no-state", "--config", tmp_path / "turnout.toml"):
            pass

    (tmp_path / "turnout.toml").write_text(CONFIG, encoding="utf-8")
    asyncio.run(play())
    assert [path.name for path in tmp_path.iterdir()] == ["turnout.toml"]
