"""The cache events of one rank: subscribe, hand each message to the router, close gaps by replay.

The messages go to the router as they came; nothing is decoded here. Only their numbers are looked at: a number that is
not above the last one heard means that the engine started anew, because a publisher never goes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Protocol

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from turnout.errors import InvalidArgument, UnknownReplica
from turnout.feeds.status import RankStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnout._core import Outcome
    from turnout.feeds.config import KvSource, Timing

END = (2**64 - 1).to_bytes(8, "big")
"""Number of the message that ends a replay."""
YIELD_EVERY = 32
"""Messages after which others get the event loop, so that a burst of events delays no decision."""
POLL_MS = 250
UNREADABLE = 10
"""Messages in a row that cannot be read, after which a feed is given up."""
REPLAY_ROUNDS = 8
REPLAY_FAILURES = 3
FRAMES = 2


class Sink(Protocol):
    """What takes the events: a `turnout.Router`, or the asyncio router."""

    def kv_events(self, replica: str, payload: bytes, *, sequence: int, rank: int | None = None) -> Outcome:
        """As `turnout.Router.kv_events`."""
        ...

    def reset_feed(self, replica: str, *, rank: int = 0, next_sequence: int = 0) -> Outcome:
        """As `turnout.Router.reset_feed`."""
        ...


class Stream:
    """One rank's feed. `run` ends when it is cancelled, or when the engine was found restarted.

    Args:
        name: The replica.
        source: Where it publishes.
        sink: Takes the events.
        timing: Limits of waiting and of queues.
        context: The ZMQ context.
        heard: Called at each message: a sign of life.
        restarted: Called when the numbers began anew, before the first message of the new engine is applied.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - one place makes it
        self,
        name: str,
        source: KvSource,
        sink: Sink,
        timing: Timing,
        context: zmq.asyncio.Context,
        heard: Callable[[], None],
        restarted: Callable[[int], None],
    ) -> None:
        self.name = name
        self.source = source
        self.sink = sink
        self.timing = timing
        self.context = context
        self.heard = heard
        self.restarted = restarted
        self.connected = False
        self.given_up = False
        self.heard_s: float | None = None
        self.next: int | None = None
        self._live: int | None = None
        self._anew = False
        self._resync = asyncio.Event()
        self._bad = 0
        self._failed_replays = 0
        self._no_replay_before_s = 0.0
        self._since_yield = 0
        self.counts = dict.fromkeys(("batches", "gaps", "replays", "replayed", "resets", "restarts", "unreadable"), 0)

    def status(self, now: float) -> RankStatus:
        """What became of it so far."""
        age = None if self.heard_s is None else now - self.heard_s
        source = self.source
        return RankStatus(
            rank=source.rank,
            endpoint=source.endpoint,
            replayable=source.replay_endpoint is not None,
            connected=self.connected,
            next_sequence=self.next,
            age_s=age,
            **self.counts,
        )

    def begin_anew(self) -> None:
        """Forget where the feed was: the router knows nothing of this rank (any more)."""
        self._live = None
        self._anew = True
        self.next = None
        self.given_up = False
        self._bad = 0
        self._no_replay_before_s = 0.0
        self._resync.set()

    def resync(self) -> None:
        """Ask for what may have been missed, when nothing is heard although something should be."""
        self._resync.set()

    async def run(self) -> None:
        """Follow the feed until cancelled."""
        socket = self.context.socket(zmq.SUB)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, int(self.timing.queue_batches))
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
        # A peer that vanished without closing is noticed by its silence on the level of the connection.
        socket.setsockopt(zmq.HEARTBEAT_IVL, 2_000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10_000)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt_string(zmq.SUBSCRIBE, self.source.topic)
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        watching = asyncio.create_task(self._watch(monitor))
        try:
            socket.connect(self.source.endpoint)
            self._resync.set()
            while True:
                if self._resync.is_set():
                    self._resync.clear()
                    await self._catch_up()
                if await socket.poll(POLL_MS):
                    await self._message(await socket.recv_multipart())
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
            socket.disable_monitor()
            monitor.close(0)
            socket.close(0)

    async def _watch(self, monitor: Any) -> None:  # noqa: ANN401 - zmq's own type differs by context
        while True:
            event = (await recv_monitor_message(monitor))["event"]
            self.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if self.connected:
                self._resync.set()

    async def _message(self, frames: list[bytes]) -> None:
        if len(frames) < FRAMES or len(frames[-2]) != len(END):
            self.counts["unreadable"] += 1
            return
        sequence, payload = int.from_bytes(frames[-2], "big"), frames[-1]
        self.heard()
        self.heard_s = time.monotonic()
        if self._anew and self._resync.is_set():
            # What came before is asked for first: once this message was applied, the rest would count as missed.
            self._resync.clear()
            await self._catch_up()
        self._anew = False
        if self._live is not None and sequence <= self._live:
            self.counts["restarts"] += 1
            self.restarted(self.source.rank)
            self.begin_anew()
            self._resync.clear()
            self._live = sequence
            await self._catch_up()
        self._live = sequence
        if self.next is not None and sequence < self.next:
            # A replay brought it already. The router must not see it again: a second number 0 means a restart to it.
            return
        missing = self._apply(sequence, payload)
        if missing is not None:
            self.counts["gaps"] += 1
            await self._replay(missing)
            if self._apply(sequence, payload) is not None:
                self._reset(sequence)
                self._apply(sequence, payload)
        await self._yield()

    async def _catch_up(self) -> None:
        """Ask for everything from the next number on; at the beginning for all that the engine still has."""
        await self._replay(0 if self.next is None else self.next)

    def _reset(self, sequence: int) -> None:
        self.counts["resets"] += 1
        with contextlib.suppress(UnknownReplica):
            self.sink.reset_feed(self.name, rank=self.source.rank, next_sequence=sequence)
        self.next = sequence

    def _apply(self, sequence: int, payload: bytes) -> int | None:
        """Hand a batch to the router; the number that it misses, if it does."""
        if self.given_up:
            return None
        try:
            outcome = self.sink.kv_events(self.name, payload, sequence=sequence, rank=self.source.rank)
        except InvalidArgument:
            self.counts["unreadable"] += 1
            self._bad += 1
            # What it said is lost, so what is known of the cache may be wrong from here on.
            self._reset(sequence + 1)
            self.given_up = self._bad >= UNREADABLE
            return None
        except UnknownReplica:
            return None
        self._bad = 0
        if outcome.status == "gap":
            return outcome.replay_from
        if outcome.status == "done":
            self.counts["batches"] += 1
            self.next = sequence + 1
        return None

    async def _yield(self) -> None:
        self._since_yield += 1
        if self._since_yield >= YIELD_EVERY:
            self._since_yield = 0
            await asyncio.sleep(0)

    async def _replay(self, start: int) -> int:
        """Ask for batches from a number on, again where the answer has holes; how many were applied."""
        applied = 0
        now = time.monotonic()
        if self.source.replay_endpoint is None or self.given_up or now < self._no_replay_before_s:
            return 0
        for _ in range(REPLAY_ROUNDS):
            before = self.counts["batches"]
            self.counts["replays"] += 1
            hole = await self._replay_once(self.source.replay_endpoint, start)
            news = self.counts["batches"] - before
            self.counts["replayed"] += news
            applied += news
            if hole is None or news == 0:
                break
            start = hole
        return applied

    async def _replay_once(self, endpoint: str, start: int) -> int | None:
        """One request; the first number that is missing in its answer, if one is."""
        hole: int | None = None
        first = True
        socket = self.context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, int(self.timing.queue_batches))
            socket.setsockopt(zmq.IPV6, 1)
            socket.connect(endpoint)
            await socket.send_multipart([b"", start.to_bytes(8, "big")])
            while await socket.poll(int(1_000 * self.timing.replay_timeout_s)):
                frames = await socket.recv_multipart()
                self._failed_replays = 0
                if len(frames) < FRAMES or frames[-2] == END or len(frames[-2]) != len(END):
                    return hole
                sequence = int.from_bytes(frames[-2], "big")
                missing = self._apply(sequence, frames[-1])
                if missing is not None and first:
                    # The engine keeps the latest batches alone: what precedes the first of its answer is gone for good.
                    self._reset(sequence)
                    missing = self._apply(sequence, frames[-1])
                first = False
                if hole is None:
                    hole = missing
                await self._yield()
            self._failed_replays += 1
            if self._failed_replays >= REPLAY_FAILURES:
                self._failed_replays = 0
                self._no_replay_before_s = time.monotonic() + self.timing.replay_retry_s
            return hole
        finally:
            socket.close(0)
