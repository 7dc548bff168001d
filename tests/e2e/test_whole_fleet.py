"""256 sessions at once through the proxy of `turnout serve`, before four model engines, each a process of its own.

What the sessions ask is drawn as in `turnout simulate`, so the simulator says what share of the prompts a cache serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import random
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import numpy as np
import pytest
from openai import APIError, AsyncOpenAI

from turnout.listening import listen
from turnout.simulate.engines import engine
from turnout.simulate.mixture import mixture
from turnout.simulate.run import Setup, run

SESSIONS, ENGINES, KV_TOKENS = 256, 4, 6_144
SCALE = 32.0
"""Lengths and gaps are those of the mixture by this."""
TURNS = 8
"""An agent's first turns: the whole test would take minutes otherwise."""
SPEED = 4.0
TURNOUT = [sys.executable, "-m", "turnout.cli"]
TOLERANCE = 0.1
"""Of the share of prompt tokens from cache, against the simulator: in it requests take no time on the way."""


def first_turns(scenario):
    """The scenario with at most so many turns of each session."""
    starts = scenario.session_first_turn
    kept = np.concatenate([np.arange(a, min(b, a + TURNS)) for a, b in itertools.pairwise(starts)])
    runs = [np.arange(scenario.turn_first_run[turn], scenario.turn_first_run[turn + 1]) for turn in kept]
    all_runs = np.concatenate(runs)
    return dataclasses.replace(
        scenario,
        session_first_turn=np.concatenate(([0], np.cumsum(np.minimum(np.diff(starts), TURNS)))),
        turn_prompt_tokens=scenario.turn_prompt_tokens[kept],
        turn_output_tokens=scenario.turn_output_tokens[kept],
        turn_gap_s=scenario.turn_gap_s[kept],
        turn_first_run=np.concatenate(([0], np.cumsum([len(part) for part in runs]))),
        **{name: getattr(scenario, name)[all_runs] for name in ("run_first_id", "run_blocks", "run_shared")},
    )


class Played:
    """What came of the requests."""

    def __init__(self):
        self.prompt_tokens = self.cached_tokens = self.completed = self.left = self.failed = 0

    @property
    def hit_share(self):
        return self.cached_tokens / self.prompt_tokens


class Session:
    """One session as a rollout worker plays it: a turn that fails is asked again."""

    def __init__(self, fleet, scenario, at, leaves):
        self.fleet, self.name, self.leaves = fleet, f"session-{at}", leaves
        first, end = scenario.session_first_turn[at : at + 2]
        columns = (scenario.turn_prompt_tokens, scenario.turn_output_tokens, scenario.turn_gap_s)
        self.turns = list(zip(*(column[first:end].tolist() for column in columns), strict=True))
        self.workload = scenario.workloads[scenario.session_workload[at]]
        self.random = random.Random(at)
        # Agents share a system prompt, in whole blocks.
        self.history = list(range(4_096 // int(SCALE))) if self.workload == "agent" else []

    async def play(self, http):
        for prompt_tokens, output_tokens, gap_s in self.turns:
            await asyncio.sleep(gap_s / SPEED)
            grown = max(prompt_tokens - len(self.history), 1)
            prompt = [*self.history, *(self.random.randrange(1_000) for _ in range(grown))]
            while (output := await self.turn(prompt, output_tokens)) is None:
                await asyncio.sleep(0.05)
            self.history = prompt + output
        async with http.post(f"{self.fleet.url}/finish_session", params={"session_id": self.name}) as answer:
            assert answer.status == 200

    async def turn(self, prompt, output_tokens):
        """The ids of the answer; None where the caller left or the engine failed."""
        played, leaving = self.fleet.played, self.leaves and self.random.random() < 0.1
        body = {"return_token_ids": True, "metadata": {"session_id": self.name, "turnout_workload": self.workload}}
        asked = {"model": "turnout-model", "prompt": prompt, "max_tokens": output_tokens, "extra_body": body}
        create = self.fleet.client.completions.create
        ids, usage = [], None
        try:
            if self.workload == "rlvr":  # a trainer waits for the whole of a long answer
                answer = await create(**asked)
                ids, usage = answer.choices[0].token_ids, answer.usage
            else:
                async with await create(**asked, stream=True, stream_options={"include_usage": True}) as stream:
                    async for chunk in stream:
                        ids += [each for choice in chunk.choices for each in choice.token_ids or ()]
                        usage = chunk.usage or usage
                        if leaving:
                            played.left += 1
                            return None
        except APIError:
            played.failed += 1
            return None
        assert len(ids) == output_tokens, "an answer is whole or an error"
        played.prompt_tokens += usage.prompt_tokens
        played.cached_tokens += usage.prompt_tokens_details.cached_tokens
        played.completed += 1
        return ids


class Fleet:
    """The processes."""

    def __init__(self, stack, tmp_path):
        self._stack, self.played = stack, Played()
        self._state, self._config = tmp_path / "state", tmp_path / "turnout.toml"
        self.engines = []

    async def start(self):
        ports = []
        for _ in range(ENGINES):
            with listen("127.0.0.1", 0) as free:
                ports.append(free.getsockname()[1])
        self.engines = [(port, await self.start_engine(port)) for port in ports]
        # Its clock is that of the wall, on which these engines are so much faster.
        model = engine("qwen3-8b-h200")
        rates = f"prefill_tokens_per_s = {model.prefill_tokens_per_s * SPEED}"
        rates += f", decode_s_per_kv_token = {model.decode_s_per_kv_token / SPEED}"
        sections = [f'[[engine]]\nurl = "http://127.0.0.1:{port}"\nreplica = {{ {rates} }}\n' for port in ports]
        self._config.write_text("".join(sections), encoding="utf-8")
        options = ["--config", str(self._config)]
        options += ["--workload", "agent=0.486", "--workload", "rlvr=0.331", "--workload", "rlhf=0.183"]
        options += ["--no-infer-sessions", "--state", str(self._state)]
        _, said = await self.process("serve", "--port", "0", *options)
        self.url = said["url"]
        self.client = AsyncOpenAI(base_url=f"{self.url}/v1", api_key="nobody", max_retries=0, timeout=300)
        self._stack.push_async_callback(self.client.close)
        self.http = await self._stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        await self.until(lambda view: sum(view["accepting"]) == ENGINES)

    async def process(self, *argv):
        pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.DEVNULL}
        child = await asyncio.create_subprocess_exec(*TURNOUT, *argv, **pipes)

        async def end():
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)
            await child.communicate()

        self._stack.push_async_callback(end)
        return child, json.loads(await child.stdout.readline())

    async def start_engine(self, port):
        options = ["--kv-tokens", str(KV_TOKENS), "--speed", str(SPEED), "--port", str(port)]
        return (await self.process("engine", *options))[0]

    async def ask(self, name, message=None):
        method = "GET" if message is None else "POST"
        async with self.http.request(method, f"{self.url}/turnout/v1/{name}", json=message) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def view(self):
        return (await self.ask("view"))["columns"]

    async def until(self, condition):
        while not condition(await self.view()):
            await asyncio.sleep(0.05)

    async def play(self, scenario, *, leaves=False):
        sessions = [Session(self, scenario, at, leaves) for at in range(SESSIONS)]
        await asyncio.gather(*(session.play(self.http) for session in sessions))

    async def nothing_is_left(self):
        """No open turn, no held one, no charge, and the router's books in order."""
        await self.until(lambda view: not sum(view["running_turns"]) and not sum(view["held_new"]))
        stats = (await self.ask("stats"))["stats"]
        assert (stats["open_turns"], stats["held_turns"], stats["live_sessions"]) == (0, 0, 0)
        assert stats["submitted"] == sum(stats[end] for end in ("completed", "aborted", "expired", "lost", "rejected"))
        # Who leaves may have been sent everything by then.
        assert 0 <= stats["completed"] - self.played.completed <= self.played.left
        view = await self.view()
        for column in ("charge_tokens", "commit_tokens", "reserved_tokens", "idle_tokens"):
            assert not np.any(view[column]), column
        async with self.http.get(f"{self.url}/metrics") as answer:
            text = await answer.text()
        charged = [line for line in text.splitlines() if line.startswith("turnout_charge_tokens{")]
        assert charged
        assert all(line.endswith(" 0.0") for line in charged)


@asynccontextmanager
async def fleet(tmp_path):
    async with AsyncExitStack() as stack:
        made = Fleet(stack, tmp_path)
        await made.start()
        yield made


@pytest.fixture(scope="module")
def scenario():
    return first_turns(mixture(SESSIONS, scale=SCALE))


def test_the_share_from_cache_is_what_the_simulator_says(tmp_path, scenario):
    async def play():
        async with fleet(tmp_path) as running:
            await running.play(scenario)
            await running.nothing_is_left()
            assert (running.played.failed, running.played.completed) == (0, len(scenario.turn_prompt_tokens))
            return running.played.hit_share

    hit_share = asyncio.run(play())
    setup = Setup(replicas=ENGINES, kv_tokens=KV_TOKENS, concurrency=SESSIONS, control_period_s=SPEED, feed=(0.0, 0.0))
    expected = run("block-time", 0, scenario, setup).record["prefix_hit_share"]
    assert hit_share == pytest.approx(expected, abs=TOLERANCE)


def test_nothing_is_lost_when_callers_leave_an_engine_dies_and_weights_change(tmp_path, scenario):
    async def play():
        async with fleet(tmp_path) as running:
            playing = asyncio.create_task(running.play(scenario, leaves=True))
            everything = len(scenario.turn_prompt_tokens)

            async def played(share):
                while running.played.completed < share * everything:
                    await asyncio.sleep(0.02)

            await played(0.2)
            port, child = running.engines[0]
            child.kill()
            await child.wait()
            await running.until(lambda view: sum(view["accepting"]) == ENGINES - 1)
            await running.start_engine(port)
            await running.until(lambda view: sum(view["accepting"]) == ENGINES)
            await played(0.5)
            for other, _ in running.engines:
                async with running.http.post(f"http://127.0.0.1:{other}/reset_prefix_cache") as answer:
                    assert answer.status == 200
            await running.ask("weights_updated", {"version": 1})
            await playing
            await running.nothing_is_left()
            assert running.played.completed == everything, "every session came to its end"
            assert running.played.left > 0
            assert (await running.ask("stats"))["stats"]["held"] > 0, "there was more than fits"

    asyncio.run(play())
