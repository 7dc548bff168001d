"""The decision API of `turnout serve`, from asyncio: `async with client.connect(url) as remote`.

The face is that of `turnout.aio`: `remote.turn(...)` waits while a turn is held, leaving its block without `complete`
aborts it, and errors are those of `turnout.errors`. A lost connection or a restarted server is waited for; a turn that
is held meanwhile keeps its place.
"""

from __future__ import annotations

from turnout.client.blocking import Blocking, BlockingTurn
from turnout.client.router import RemoteRouter, connect
from turnout.client.turn import RemoteTurn

__all__ = ["Blocking", "BlockingTurn", "RemoteRouter", "RemoteTurn", "connect"]
