"""What a decision costs over HTTP: `turnout serve` in a process of its own, `turnout.client` in this one.

.venv/bin/python benches/python/bench_client.py [--tokens 8192] [--turns 3000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time

import numpy as np

from turnout import Replica, Router, Workload, client

REPLICAS = 8


async def measure(url: str, tokens: int, turns: int, in_flight: int) -> None:
    """Place and complete turns of new sessions, `in_flight` at a time; print times per call."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 1 << 17, tokens, dtype=np.uint32) for _ in range(64)]
    took: dict[str, list[float]] = {"submit": [], "complete": []}

    async with client.connect(url) as remote:

        async def work(worker: int) -> None:
            for turn in range(worker, turns, in_flight):
                session = f"{in_flight}-{turn}"
                begun = time.perf_counter()
                decision = await remote.submit(prompts[turn % len(prompts)], session=session)
                placed = time.perf_counter()
                await remote.complete(decision.turn, output_tokens=16)
                took["complete"].append(time.perf_counter() - placed)
                took["submit"].append(placed - begun)
                await remote.end_session(session)

        begun = time.perf_counter()
        await asyncio.gather(*(work(worker) for worker in range(in_flight)))
        whole = time.perf_counter() - begun
    for name, times in took.items():
        quantiles = statistics.quantiles(times, n=100)
        shown = f"p50 {quantiles[49] * 1e3:7.3f} ms  p99 {quantiles[98] * 1e3:7.3f} ms"
        print(f"{in_flight:3d} in flight, {tokens} tokens, {name:8s} {shown}")
    print(f"{in_flight:3d} in flight: {3 * turns / whole:,.0f} calls/s")


def bound(tokens: int, turns: int) -> None:
    """The same decision in the process: what HTTP adds to."""
    router = Router([Replica(f"r{at}", kv_tokens=10_000_000) for at in range(REPLICAS)], [Workload("default")])
    prompts = [np.random.default_rng(at).integers(0, 1 << 17, tokens, dtype=np.uint32) for at in range(64)]
    begun = time.perf_counter()
    for turn in range(turns):
        decision = router.submit(prompts[turn % len(prompts)], session=f"{turn}")
        router.complete(decision.turn, output_tokens=16)
        router.end_session(f"{turn}")
    print(f"in the process: {(time.perf_counter() - begun) / turns / 3 * 1e6:.1f} us per call")


async def main() -> None:
    """Start the server, measure, end it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8_192)
    parser.add_argument("--turns", type=int, default=3_000)
    asked = parser.parse_args()
    bound(asked.tokens, asked.turns)
    command = [sys.executable, "-m", "turnout.cli", "serve", "--port", "0", "--policy", "open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:  # noqa: S603, ASYNC220 - our own, at the start
        assert server.stdout is not None  # noqa: S101 - piped above
        url = json.loads(server.stdout.readline())["url"]
        async with client.connect(url) as remote:
            for at in range(REPLICAS):
                await remote.add_replica(f"r{at}", kv_tokens=1e7)
        for in_flight in (1, 32):
            await measure(url, asked.tokens, asked.turns, in_flight)
        server.terminate()


if __name__ == "__main__":
    asyncio.run(main())
