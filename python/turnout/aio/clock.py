"""The clock of a shell: runs the router's timers when they are due, and its control steps."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING, Final

from turnout.errors import InternalError, PolicyError

if TYPE_CHECKING:
    from turnout.aio.router import AsyncRouter

SLOW_STEP_S: Final = 0.005
"""A policy that took longer runs in a thread the next time, so that it does not stop the event loop, s."""

PAUSE_S: Final = 1.0
"""Pause after a control step that failed, s."""

SHORTEST_SLEEP_S: Final = 0.0005
"""Timers due within this are run together, s."""

_LOG = logging.getLogger(__name__)


class Clock:
    """One task: sleeps until the router's `wake_at`, ticks, and takes the control step that is due.

    Args:
        routed: The shell.

    Attributes:
        steps: Control steps taken.
        failures: Those that failed.
        last_error: What the latest failure said.
        last_step_s: How long the latest step took, s.
        beat_s: When it last did anything, monotonic s.
    """

    def __init__(self, routed: AsyncRouter) -> None:
        """Keep the shell."""
        self._routed = routed
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kicked: asyncio.Event | None = None
        self._sleeps_until = -math.inf
        self.steps = 0
        self.failures = 0
        self.last_error = ""
        self.last_step_s = 0.0
        self.beat_s = time.monotonic()

    @property
    def alive(self) -> bool:
        """Whether the task runs."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Run in the running event loop. Doing so again changes nothing."""
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._kicked = asyncio.Event()
            self._task = self._loop.create_task(self._run(self._kicked), name="turnout clock")

    async def stop(self) -> None:
        """End the task."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    def look(self) -> None:
        """Something happened: sleep no longer than the router wants to be woken now. From any thread."""
        if self._loop is None or self._kicked is None or self._task is None:
            return
        wake_at = self._routed.router.wake_at
        if wake_at is None or wake_at >= self._sleeps_until - SHORTEST_SLEEP_S:
            return
        self._sleeps_until = wake_at
        try:
            self._loop.call_soon_threadsafe(self._kicked.set)
        except RuntimeError:
            self._task = None  # the loop was closed without closing the shell

    async def _run(self, kicked: asyncio.Event) -> None:
        routed = self._routed
        while True:
            try:
                routed.tick()
                if routed.router.policy is not None and routed.router.policy_due:
                    await self._step()
            except InternalError as error:
                _LOG.exception("the router has failed")
                self.last_error = str(error)
                routed.fail(error)
                return
            self.beat_s = time.monotonic()
            # Before the router is asked: who brings its next timer forward meanwhile wakes this task at once.
            kicked.clear()
            self._sleeps_until = math.inf
            wake_at = routed.router.wake_at
            self._sleeps_until = math.inf if wake_at is None else wake_at
            rest_s = None if wake_at is None else max(wake_at - time.monotonic(), SHORTEST_SLEEP_S)
            try:
                async with asyncio.timeout(rest_s):
                    await kicked.wait()
            except TimeoutError:
                pass

    async def _step(self) -> None:
        """Take a control step. A policy that fails costs a pause, never the clock."""
        router, began = self._routed.router, time.perf_counter()
        self.steps += 1
        try:
            if self.last_step_s > SLOW_STEP_S:
                await asyncio.to_thread(router.step)
            else:
                router.step()
        except InternalError:
            raise
        except PolicyError as error:
            self._failed(error)
            await asyncio.sleep(PAUSE_S)
        except Exception as error:  # noqa: BLE001 - whatever a policy breaks, the timers run on
            self._failed(error)
            await asyncio.sleep(PAUSE_S)
        self.last_step_s = time.perf_counter() - began
        self._routed.collect()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = str(error)
        _LOG.error("control step failed: %s", error)
