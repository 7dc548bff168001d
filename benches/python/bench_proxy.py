"""What the proxy costs: requests through `turnout serve` against the same requests sent to the engine itself.

Starts one model engine and one server as processes of their own; this process is the client. Each connection sends one
request after the other, always the same prompt in a session of its own, so that the engine has little to do.

    python benches/python/bench_proxy.py --seconds 5 --tokens 1000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TICKS = os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def process(*options: str) -> AsyncIterator[tuple[str, int]]:
    """Run a command of turnout; yields its address and process id."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "turnout.cli", *options, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None  # noqa: S101 - for the type checker
    try:
        yield json.loads(await child.stdout.readline())["url"], child.pid
    finally:
        child.terminate()
        await child.wait()


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, s."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def one(session: aiohttp.ClientSession, url: str, body: bytes, name: str, until_s: float) -> list[float]:
    """Requests of one connection; their times, s."""
    headers = {"Content-Type": "application/json", "X-Session-ID": name}
    times = []
    while time.perf_counter() < until_s:
        begun = time.perf_counter()
        async with session.post(url, data=body, headers=headers) as answer:
            await answer.read()
            if answer.status != 200:  # noqa: PLR2004 - HTTP
                raise RuntimeError(f"{answer.status}: {await answer.text()}")
        times.append(time.perf_counter() - begun)
    return times


async def load(
    url: str, path: str, bodies: list[bytes], seconds: float, pid: int | None
) -> tuple[float, float, float, float]:
    """(requests/s, p50 s, p99 s, CPU of the process per request, s) with one connection for each body."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for length in (seconds / 4, seconds):  # the first warms up
            before, begun = cpu_s(pid) if pid else 0.0, time.perf_counter()
            jobs = [one(session, url + path, body, f"c{at}", begun + length) for at, body in enumerate(bodies)]
            times = sorted(each for done in await asyncio.gather(*jobs) for each in done)
            took = time.perf_counter() - begun
        spent = (cpu_s(pid) - before) / len(times) if pid else 0.0
    return len(times) / took, statistics.median(times), times[int(len(times) * 0.99)], spent


def bodies_of(kind: str, connections: int, tokens: int) -> list[bytes]:
    """One request body for each connection."""
    made = []
    for at in range(connections):
        body: dict[str, object] = {"model": "turnout-model", "max_tokens": 1}
        if kind == "chat":
            body["messages"] = [{"role": "user", "content": f"{at:08d}" + "x" * (tokens - 8)}]
        else:
            body["prompt"] = [1_000 + at, *range(1_000, 1_000 + tokens - 1)]
        if kind == "stream":
            body |= {"stream": True, "max_tokens": 64}
        made.append(json.dumps(body).encode())
    return made


async def main(options: argparse.Namespace) -> None:
    """Run and print a table."""
    heads = ("request", "connections", "direct: 1/s, p50, p99 ms", "through: 1/s, p50, p99 ms", "added p50, p99 ms")
    print(f"| {' | '.join(heads)} | CPU ms |")
    print("|---|--:|--:|--:|--:|--:|")
    engine = ("engine", "--speed", "10000", "--kv-tokens", "4000000")
    async with (
        process(*engine) as (direct, _),
        process("serve", "--port", "0", "--engine", direct, *options.serve) as (through, pid),
        aiohttp.ClientSession() as session,
    ):
        while True:
            async with session.get(f"{through}/readyz") as answer:
                if answer.status == 200:  # noqa: PLR2004 - HTTP
                    break
            await asyncio.sleep(0.05)
        for kind in options.kind:
            path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
            for connections in options.connections:
                bodies = bodies_of(kind, connections, options.tokens)
                a = await load(direct, path, bodies, options.seconds, None)
                b = await load(through, path, bodies, options.seconds, pid)
                cells = [f"{rate:,.0f}, {p50 * 1e3:.1f}, {p99 * 1e3:.1f}" for rate, p50, p99, _ in (a, b)]
                added = f"{(b[1] - a[1]) * 1e3:.1f}, {(b[2] - a[2]) * 1e3:.1f}"
                print(f"| {kind} | {connections} | {cells[0]} | {cells[1]} | {added} | {b[3] * 1e3:.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="per figure")
    parser.add_argument("--tokens", type=int, default=1_000, help="of a prompt")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32, 512])
    parser.add_argument("--kind", nargs="+", default=["ids", "stream", "chat"], choices=["ids", "stream", "chat"])
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="options of `turnout serve`")
    asyncio.run(main(parser.parse_args()))
