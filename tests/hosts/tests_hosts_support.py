"""What the tests of several hosts need."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest


def prompt_of(number, tokens):
    """A prompt that shares nothing with that of another number."""
    return np.random.default_rng(number).integers(0, 1 << 31, tokens, dtype=np.int64)


async def until(condition, what="a condition"):
    """Wait for what other processes bring about."""
    for _ in range(3_000):
        if await condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"waited 30 s for {what}")


async def assert_empty(actor):
    """No open turn, nobody who waits, no reservation and no charge; answers the counters."""

    async def empty():
        stats = await actor.status.remote()
        return not (stats["open_turns"] or stats["held_turns"] or stats["waits"] or stats["live_sessions"])

    try:
        await until(empty, "the books to be empty")
    finally:
        print(await actor.status.remote())
    books = await actor.books.remote()
    assert books == {"charge_tokens": 0, "commit_tokens": 0, "reserved_tokens": 0}
    return await actor.status.remote()
