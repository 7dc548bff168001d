"""A server that stands by: it waits for the state of another one on the same disk, and goes on with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse

from turnout.server.logs import say
from turnout.server.state import JOURNAL, StateDirectory, open_lock, owner_of, try_lock

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import Receive, Scope, Send

LOOK_S: Final = 0.05
"""Between two looks at the lock: a blocking wait could not be ended by a signal."""
REHEARSE_S: Final = 5.0
"""Between two looks at whether there is something to rehearse."""
GROWTH: Final = 2
"""A journal is read again when it is another one, or so many times as large as before."""


class Standby:
    """Waits until no other process writes a state. Meanwhile it reads what it would go on from, and says so.

    The journal is replayed now and then, as a rehearsal: one that could not be gone on from is known before it is
    needed, and the file is in memory when it is. A process of its own does that: the lock is looked at all the while.

    Args:
        path: The directory of the state.

    Raises:
        InvalidArgument: It cannot be written.
    """

    def __init__(self, path: Path) -> None:
        """Open the lock."""
        self.path = path
        self.rehearsed: dict[str, float | int] = {}
        self.problem = ""
        self._lock = open_lock(path)
        self._seen = (0, 0)

    async def wait(self, stop: asyncio.Event) -> StateDirectory | None:
        """Wait for the state.

        Args:
            stop: Set to give up.

        Returns:
            The state, this process' own now; None when it was told to stop.
        """
        rehearsing = asyncio.create_task(self._rehearse())
        try:
            while not stop.is_set():
                if try_lock(self._lock):
                    lock, self._lock = self._lock, -1
                    return StateDirectory(self.path, lock=lock)
                await asyncio.sleep(LOOK_S)
            return None
        finally:
            rehearsing.cancel()
            await asyncio.gather(rehearsing, return_exceptions=True)
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    async def _rehearse(self) -> None:
        """Replay the journal whenever that is worth it."""
        journal = self.path / JOURNAL
        while True:
            # Until the other process has begun it, there is none.
            with contextlib.suppress(FileNotFoundError):
                stat = journal.stat()
                number, size = self._seen
                if stat.st_ino != number or stat.st_size >= GROWTH * size or self.problem:
                    self._seen = (stat.st_ino, stat.st_size)
                    await self._replay(journal, stat.st_size)
            await asyncio.sleep(REHEARSE_S)

    async def _replay(self, journal: Path, size_bytes: int) -> None:
        began = time.perf_counter()
        command = (sys.executable, "-m", "turnout.cli", "replay", str(journal))
        nowhere, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(*command, stdin=nowhere, stdout=nowhere, stderr=pipe)
        try:
            _, errors = await child.communicate()
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        before, self.problem = self.problem, ""
        if child.returncode:
            self.problem = errors.decode("utf-8", "replace").strip() or f"turnout replay exits with {child.returncode}"
            if not before:
                text = f"standby: the state cannot be gone on from: {self.problem}"
                say(logging.ERROR, "standby_unreadable", text, directory=str(self.path))
            return
        self.rehearsed = {"journal_bytes": size_bytes, "took_s": round(time.perf_counter() - began, 3)}

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What a server answers that stands by: that it lives, and that it is not asked."""
        if scope["type"] != "http":
            return
        if scope["path"] == "/healthz":
            await JSONResponse({"status": "alive"})(scope, receive, send)
            return
        owner = owner_of(self._lock) if self._lock >= 0 else "?"
        words = f"standby: process {owner} has the state; ask there, and here again when it is gone"
        if scope["path"] == "/readyz":
            problems = [words, *([f"the state cannot be read: {self.problem}"] if self.problem else [])]
            said = {"status": "standby", "problems": problems, "rehearsed": self.rehearsed}
        else:
            error = {"type": "RouterClosed", "message": words, "argument": "", "value": "", "accepted": ""}
            said = {"error": error}
        await JSONResponse(said, 503, {"Retry-After": "1"})(scope, receive, send)
