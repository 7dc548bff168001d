"""The asyncio shell: turns that wait while they are held, and the clock and control loop that a router needs.

```python
async with aio.serve(router) as routed:
    async with routed.turn(tokens, session="trajectory-17") as turn:
        turn.complete(output=await generate(turn.replica, tokens))
    routed.end_session("trajectory-17")
```
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from turnout.aio.arguments import SubmitArguments
from turnout.aio.router import AsyncRouter, HeldTurn
from turnout.aio.turn import Turn
from turnout.errors import RouterClosed, TurnEnded, TurnExpired, TurnLost, TurnNotPlaced, TurnRejected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from turnout.record import JournalWriter
    from turnout.router import Router

__all__ = [
    "AsyncRouter",
    "HeldTurn",
    "RouterClosed",
    "SubmitArguments",
    "Turn",
    "TurnEnded",
    "TurnExpired",
    "TurnLost",
    "TurnNotPlaced",
    "TurnRejected",
    "serve",
]


@asynccontextmanager
async def serve(router: Router, *, journal: JournalWriter | None = None) -> AsyncIterator[AsyncRouter]:
    """Run a router's clock and control loop in the running event loop, and answer whoever waits.

    Leaving the block closes the shell: held turns are aborted and everybody who waits gets `RouterClosed`.

    Args:
        router: The router. Its events go through the shell from now on, never past it.
        journal: Its journal; flushed before any decision is acted on. It stays the caller's to close.

    Yields:
        The shell.

    Example:
        >>> import asyncio
        >>> from turnout import Replica, Router, aio, policies
        >>> router = Router([Replica("r0", kv_tokens=100_000)], policy=policies.BlockTime())
        >>> async def rollout():
        ...     async with aio.serve(router) as routed:
        ...         async with routed.turn([1, 2, 3], session="s") as turn:
        ...             turn.complete(output=[4, 5])
        ...         routed.end_session("s")
        ...         return turn.replica
        >>> asyncio.run(rollout())
        'r0'
    """
    routed = AsyncRouter(router, journal=journal)
    routed.start()
    try:
        yield routed
    finally:
        await routed.close()
