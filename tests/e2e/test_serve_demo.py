"""`turnout serve --demo`: engines and a load that show life, and an end that leaves nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import aiohttp
import pytest

from turnout.demo import Demo
from turnout.errors import InvalidArgument


def test_it_shows_life_and_ends_cleanly():
    async def play():
        command = [sys.executable, "-m", "turnout.cli", "serve", "--demo", "--demo-engines", "2", "--port", "0"]
        pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
        child = await asyncio.create_subprocess_exec(*command, "--token", "secret", **pipes)
        try:
            line = await child.stdout.readline()
            assert line, (await child.stderr.read()).decode()
            ready = json.loads(line)
            head = {"Authorization": "Bearer secret"}
            async with aiohttp.ClientSession(headers=head) as session:
                stats = {"completed": 0, "held": 0, "sessions_finished": 0}
                while min(stats[name] for name in ("completed", "held", "sessions_finished")) < 3:
                    await asyncio.sleep(0.05)
                    async with session.get(f"{ready['url']}/turnout/v1/stats") as answer:
                        stats = (await answer.json())["stats"]
                async with session.get(f"{ready['url']}/turnout/v1/replicas") as answer:
                    replicas = (await answer.json())["replicas"]
            assert {f"http://{row['name']}" for row in replicas} == set(ready["engines"])
            assert len(replicas) == 2
        finally:
            if child.returncode is None:
                child.send_signal(signal.SIGTERM)
            _, errors = await child.communicate()
        said = [json.loads(line) for line in errors.splitlines()]
        assert child.returncode == 0
        assert said[-1]["event"] == "stopped"
        assert not [line for line in said if line["level"] == "error"]

    asyncio.run(play())


def test_a_number_of_engines_that_cannot_be_is_refused():
    for wrong in (0, 65):
        with pytest.raises(InvalidArgument, match="accepted is 1 to 64 engines"):
            Demo(wrong)
