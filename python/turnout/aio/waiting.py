"""Who waits for which turn: futures of held turns, watchers of running ones, over threads and event loops."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from turnout._core import Decision


class Watcher(Protocol):
    """Somebody who runs a turn and wants to know when it is lost."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop in which it is told."""

    def tell_lost(self, decision: Decision) -> None:
        """The turn is lost; called in `loop`."""


@dataclass(slots=True, eq=False)
class Waiter:
    """One call that waits for one turn.

    Attributes:
        loop: The event loop that it waits in.
        future: What it waits for: the decision that ends the waiting, or an error.
    """

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Decision]

    def tell(self, told: Decision | Exception) -> bool:
        """Wake it, from whichever thread.

        Args:
            told: The decision, or the error that it gets instead.

        Returns:
            False when its loop is closed: nobody is there any more.
        """
        return call_in(self.loop, self._set, told)

    def _set(self, told: Decision | Exception) -> None:
        if self.future.done():
            return
        if isinstance(told, Exception):
            self.future.set_exception(told)
        else:
            self.future.set_result(told)


@dataclass(slots=True, eq=False)
class Entry:
    """A turn that somebody waits for or runs.

    Attributes:
        decision: The latest decision about it.
        session: Its session, as submitted.
        workload: Its workload, as submitted.
        since_s: When it was submitted, monotonic s.
        held: Whether it waits in the line.
        waiters: Calls that wait for it.
        watchers: Those who run it.
    """

    decision: Decision
    session: str | None
    workload: str | None
    since_s: float
    held: bool
    waiters: list[Waiter] = field(default_factory=list)
    watchers: list[Watcher] = field(default_factory=list)


def call_in(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> bool:
    """Call something in an event loop: at once in its own thread, else soon.

    Args:
        loop: The loop.
        call: What to call.
        *arguments: With what.

    Returns:
        False when the loop is closed.
    """
    try:
        if asyncio.get_running_loop() is loop:
            call(*arguments)
            return True
    except RuntimeError:
        pass  # no loop runs in this thread
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        return False
    return True


def tell_all(waiters: Iterable[Waiter], told: Decision | Exception) -> bool:
    """Wake all of them.

    Args:
        waiters: The waiters.
        told: What they are told.

    Returns:
        Whether anybody was there to hear it.
    """
    heard = [waiter.tell(told) for waiter in waiters]
    return any(heard)
