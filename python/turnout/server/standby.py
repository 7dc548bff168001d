"""A server that stands by: it waits for the state of another one on the same disk, and goes on with it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse

from turnout import record
from turnout.errors import RecordError
from turnout.server.logs import say
from turnout.server.state import JOURNAL, StateDirectory, open_lock, owner_of, try_lock

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.types import Receive, Scope, Send

    from turnout.router import Router

LOOK_S: Final = 0.05
"""Between two looks at the lock: a blocking wait could not be ended by a signal."""
REHEARSE_S: Final = 10.0
"""Between two rehearsals at most; a journal that has not changed is not read again."""


class Standby:
    """Waits until no other process writes a state. Meanwhile it reads what it would go on from, and says so.

    The journal is restored now and then, as a rehearsal: one that could not be gone on from is known before it is
    needed, and the file is in memory when it is.

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
        self._seen: tuple[int, int] | None = None

    async def wait(self, stop: asyncio.Event) -> StateDirectory | None:
        """Wait for the state.

        Args:
            stop: Set to give up.

        Returns:
            The state, this process' own now; None when it was told to stop.
        """
        rehearsing: asyncio.Task[None] | None = None
        due = 0.0
        try:
            while not stop.is_set():
                if try_lock(self._lock):
                    lock, self._lock = self._lock, -1
                    return StateDirectory(self.path, lock=lock)
                if time.monotonic() >= due and (rehearsing is None or rehearsing.done()):
                    due = time.monotonic() + REHEARSE_S
                    rehearsing = asyncio.create_task(asyncio.to_thread(self._rehearse))
                await asyncio.sleep(LOOK_S)
            return None
        finally:
            if rehearsing is not None:
                # A thread cannot be cancelled; what it reads, it reads to the end.
                await asyncio.gather(rehearsing, return_exceptions=True)
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def _rehearse(self) -> None:
        journal = self.path / JOURNAL
        try:
            stat = journal.stat()
        except OSError:
            return  # the other process has not begun it
        if (stat.st_ino, stat.st_size) == self._seen:
            return
        began = time.perf_counter()
        try:
            router: Router = record.restore(journal)
        except RecordError as error:
            if not self.problem:
                say(logging.ERROR, "standby_unreadable", f"standby: {error}", directory=str(self.path))
            self.problem = str(error)
            return
        self._seen, self.problem = (stat.st_ino, stat.st_size), ""
        stats = router.stats()
        self.rehearsed = {
            "journal_bytes": stat.st_size,
            "restore_s": round(time.perf_counter() - began, 3),
            "live_sessions": stats["live_sessions"],
            "open_turns": stats["open_turns"],
        }

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
