"""What a decision costs through the Ray actor: `.venv-hosts/bin/python benches/hosts/ray_calls.py`.

Prints one line per prompt length: latency of a placement alone, and turns per second (place, complete, end of the
session) with 1,000 callers in one process, next to the bytes that a prompt takes in the message.
"""

from __future__ import annotations

import asyncio
import statistics
import time

import numpy as np
import ray

from turnout import Prompt, Replica
from turnout.adapters.ray import TurnoutClient, make_actor

CALLERS = 1_000
TURNS = 10_000
ALONE = 300


async def measure(tokens: int) -> str:
    """Measure prompts of one length."""
    actor = make_actor([Replica(f"r{i}", kv_tokens=1e12) for i in range(8)], policy="block-time")
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 1 << 31, tokens, dtype=np.int64) for _ in range(100)]
    async with TurnoutClient(actor) as client:
        alone = []
        for i in range(ALONE):
            began = time.perf_counter()
            placement = await client.place(prompts[i % 100], session=f"a{i}")
            alone.append(time.perf_counter() - began)
            client.complete(placement.turn)
            await client.end_session(f"a{i}")
        numbers = iter(range(TURNS))

        async def caller() -> None:
            for i in numbers:
                async with client.turn(prompts[i % 100], session=f"s{i}", max_new_tokens=100) as turn:
                    turn.complete(output=prompts[0][:100])
                client.end_session(f"s{i}")

        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        turns_per_s = TURNS / (time.perf_counter() - began)
    packed = len(Prompt(prompts[0], hash_key=bytes(16)).pack())
    ray.kill(actor)
    p50, p99 = statistics.median(alone) * 1e3, statistics.quantiles(alone, n=100)[98] * 1e3
    return f"{tokens:>8} {packed:>8} {p50:>8.2f} {p99:>8.2f} {turns_per_s:>10.0f}"


def main() -> None:
    """Measure and print."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    print("  tokens    bytes   p50 ms   p99 ms    turns/s")
    for tokens in (100, 4_096, 32_768):
        print(asyncio.run(measure(tokens)), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
