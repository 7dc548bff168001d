"""Time of the router's events from Python, each beside its bound, measured in the same run.

    python benches/python/bench_router.py

An operation is one call from Python. Bounds: `no-op` is the cheapest call into the extension; `hash` is
hashing the same prompt without looking anything up; `copy` is NumPy copying the same tokens.
"""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING

import numpy as np

import turnout

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 7


def best_ns(call: Callable[[], object], calls: int) -> float:
    """Nanoseconds per call, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter_ns() - start) / calls)
    return best


def cycle(router: turnout.Router, session: str, history: int) -> Callable[[], object]:
    """A turn of a known session: submit 64 appended tokens, complete with none; the history is rewound by an abort."""
    new = np.arange(64, dtype=np.uint32)

    def call() -> None:
        decision = router.submit(append=new, base_tokens=history, session=session)
        router.abort(decision.turn)

    return call


def main() -> None:
    """Measure and print."""
    print(f"{platform.machine()}, {turnout.build_info()}")
    print(f"{'operation':44s} {'ns':>10s} {'bound ns':>10s} {'ratio':>7s}  bound")
    router = turnout.Router([turnout.Replica(f"r{at}", kv_tokens=4_000_000) for at in range(8)], hash_key=bytes(16))
    noop = best_ns(router.prompt([1]).__len__, 20_000)
    rng = np.random.default_rng(0)
    rows: list[tuple[str, float, float, str]] = []
    for tokens in (1_536, 8_192, 65_536):
        prompt = rng.integers(0, 150_000, tokens).astype(np.uint32)
        session = f"s{tokens}"
        router.complete(router.submit(prompt, session=session).turn)
        calls = max(200, 4_000_000 // tokens)
        hashing = best_ns(lambda prompt=prompt: router.prompt(prompt), calls)
        copying = best_ns(prompt.copy, calls)
        rows.append((f"hash {tokens} tokens", hashing, copying, "copy"))
        rows.append(
            (f"peek {tokens} tokens, NumPy", best_ns(lambda prompt=prompt: router.peek(prompt), calls), hashing, "hash")
        )
        listed = prompt.tolist()
        rows.append(
            (
                f"peek {tokens} tokens, list",
                best_ns(lambda listed=listed: router.peek(listed), calls // 20),
                hashing,
                "hash",
            )
        )
        rows.append(
            (
                f"peek session of {tokens} tokens",
                best_ns(lambda session=session: router.peek(session=session), 20_000),
                noop,
                "no-op",
            )
        )
        rows.append(
            (
                f"submit 64 + abort, session of {tokens}",
                best_ns(cycle(router, session, tokens), 5_000),
                2 * noop,
                "2 no-op",
            )
        )
    for name, figure, bound, kind in rows:
        print(f"{name:44s} {figure:10,.0f} {bound:10,.0f} {figure / bound:7.2f}  {kind}")
    stats = router.stats()
    print(
        f"index: {stats['index_bytes']:,} bytes for {16 * stats['index_blocks']:,} tokens in {stats['index_runs']} runs"
    )


if __name__ == "__main__":
    main()
