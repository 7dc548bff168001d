"""One engine: found, followed, lost, found again. Everything it does happens in tasks of its own."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import zmq
import zmq.asyncio

from turnout._core import load_report
from turnout.config import Replica
from turnout.errors import InvalidArgument, TurnoutError, UnknownReplica
from turnout.feeds.discovery import Discovered, discover
from turnout.feeds.fetch import Answer, ask
from turnout.feeds.health import Health
from turnout.feeds.metrics import Reading, read_loads, read_metrics
from turnout.feeds.shortfall import Evidence, HitMonitor
from turnout.feeds.status import EngineStatus, FeedState, FeedStatus, State
from turnout.feeds.stream import Sink, Stream

if TYPE_CHECKING:
    import aiohttp

    from turnout._core import Outcome
    from turnout.feeds.config import Engine, Timing

NOT_FOUND = 404
COMPUTED_BLOCKS = 8
"""Whole blocks that were computed without an event: a prompt that fills them must have stored them."""


class Target(Sink, Protocol):
    """What a fleet is told to: a `turnout.Router`, or the asyncio router, whose events have the same signatures."""

    def add_replica(self, replica: Replica) -> Outcome:
        """As `turnout.Router.add_replica`."""
        ...

    def set_replica(self, replica: Replica) -> Outcome:
        """As `turnout.Router.set_replica`."""
        ...

    def drain_replica(self, name: str) -> Outcome:
        """As `turnout.Router.drain_replica`."""
        ...

    def remove_replica(self, name: str) -> Outcome:
        """As `turnout.Router.remove_replica`."""
        ...

    def lose_replica(self, name: str) -> Outcome:
        """As `turnout.Router.lose_replica`."""
        ...

    def end_feeds(self, replica: str) -> Outcome:
        """As `turnout.Router.end_feeds`."""
        ...

    @property
    def observe(self) -> Any:  # noqa: ANN401 - keyword arguments of `turnout.Router.observe`
        """As `turnout.Router.observe`."""
        ...


class Watch:
    """Follows one engine until `stop`.

    Args:
        engine: Which one.
        target: What is told.
        timing: How often, and how long to wait.
        session: The HTTP client.
        context: The ZMQ context.
        present: Whether the router has the replica already.
    """

    def __init__(  # noqa: PLR0913 - one place makes it
        self,
        engine: Engine,
        target: Target,
        timing: Timing,
        session: aiohttp.ClientSession,
        context: zmq.asyncio.Context,
        *,
        present: bool,
    ) -> None:
        self.engine = engine
        self.target = target
        self.timing = timing
        self.session = session
        self.context = context
        self.present = present
        self.health = Health(timing, began_s=time.monotonic())
        self.found: Discovered | None = None
        self.reading = Reading()
        self.monitor = HitMonitor()
        self.streams: list[Stream] = []
        self.draining = False
        self.deaths = 0
        self.restarts = 0
        self._read_s: float | None = None
        self._returned: tuple[State, float] | None = None
        self._shown: tuple[State, float] = ("joining", time.monotonic())
        self._feed_stale = ""
        self._silences = 0
        self._quiet: tuple[int, int] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._main: asyncio.Task[None] | None = None

    # Life

    def start(self) -> None:
        """Begin to follow it."""
        self._main = asyncio.create_task(self._run(), name=f"turnout feed of {self.engine.name}")

    async def stop(self) -> None:
        """Stop following it; the router keeps its replica and judges it by own decisions."""
        if self._main is not None:
            self._main.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._main
        await self._stop_following()
        if self.present:
            with contextlib.suppress(UnknownReplica):
                self.target.end_feeds(self.engine.name)

    def resume(self) -> None:
        """Open it again after a drain."""
        self.draining = False
        if self.present:
            with contextlib.suppress(UnknownReplica):
                self.target.set_replica(self._replica())

    async def _run(self) -> None:
        while True:
            started = time.monotonic()
            await self._look()
            await asyncio.sleep(max(0.0, self.timing.health_period_s - (time.monotonic() - started)))

    async def _look(self) -> None:
        answer = await ask(self.session, self.engine.url + "/health", self.timing)
        now = time.monotonic()
        self._note(answer, now)
        life = self.health.life(now)
        if life == "dead":
            if self.found is not None or self.present:
                await self._lost()
        elif self.found is None:
            if answer.good or answer.status == NOT_FOUND:
                await self._join()
        elif life == "stale":
            self._stale_feed("the engine is silent")
        elif self._feed_stale == "the engine is silent":
            self._feed_again()

    def _note(self, answer: Answer, now: float) -> None:
        if answer.good or answer.status == NOT_FOUND:
            self.health.good(now)
        elif answer.outcome == "silent":
            self.health.silent(answer.says)
        else:
            self.health.refused(now, answer.says or f"/health answers {answer.status}")

    async def _join(self) -> None:
        """It answers: find out what it is, open its replica, follow its feeds."""
        found = await discover(self.session, self.engine, self.timing)
        first = self.deaths == 0
        before, self.reading = self.reading, found.reading
        if not first:
            restarted = _started_anew(before, found.reading)
            self.restarts += restarted
            self._returned = ("restarted" if restarted else "back", time.monotonic())
        self.found = found
        self._open()
        self._follow(found)

    def _replica(self) -> Replica:
        engine, reading = self.engine, self.reading
        base = engine.replica or Replica(engine.name)
        told = engine.kv_tokens if engine.kv_tokens is not None else reading.kv_tokens
        return replace(
            base,
            name=engine.name,
            kv_tokens=base.kv_tokens if told is None else told,
            block_tokens=reading.block_tokens or base.block_tokens,
        )

    def _open(self) -> None:
        if self.draining and self.present:
            return
        try:
            self.target.set_replica(self._replica()) if self.present else self.target.add_replica(self._replica())
        except UnknownReplica:
            self.target.add_replica(self._replica())
        except InvalidArgument:
            # Somebody else added it in the meantime: it is set as learned.
            self.target.set_replica(self._replica())
        self.present = True
        if self.draining:
            self.target.drain_replica(self.engine.name)
        # Numbers of an earlier life of the feed would make this one look old.
        self.target.end_feeds(self.engine.name)

    async def _lost(self) -> None:
        await self._stop_following()
        self.deaths += 1
        self.found = None
        self.health.reached = False
        self._returned = None
        if self.present:
            self.present = False
            with contextlib.suppress(UnknownReplica):
                self.target.lose_replica(self.engine.name)

    def _restarted(self, rank: int | None = None) -> None:
        """A new process, whose cache is empty: the requests of the old one are gone with it."""
        self.restarts += 1
        self._returned = ("restarted", time.monotonic())
        with contextlib.suppress(UnknownReplica):
            self.target.lose_replica(self.engine.name)
        self.present = False
        self._open()
        self._feed_stale = ""
        self.reading = replace(self.reading, started_at_s=None, prompt_tokens_total=None, cached_tokens_total=None)
        for stream in self.streams:
            if stream.source.rank != rank:
                stream.begin_anew()

    # Feeds

    def _follow(self, found: Discovered) -> None:
        self._feed_stale = ""
        self._quiet = None
        self.streams = [
            Stream(self.engine.name, source, self.target, self.timing, self.context, self._heard, self._restarted)
            for source in found.sources
        ]
        self._tasks = [asyncio.create_task(stream.run()) for stream in self.streams]
        self._tasks.append(asyncio.create_task(self._read()))
        self._tasks.extend(asyncio.create_task(self._loads(endpoint)) for endpoint in found.load_endpoints)

    async def _stop_following(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in self.streams:
            stream.connected = False

    def _heard(self) -> None:
        self.health.sign(time.monotonic())
        if self._feed_stale and self._feed_stale != "the engine is silent":
            self._feed_again()

    def _stale_feed(self, why: str) -> None:
        if self._feed_stale or not self.streams:
            return
        self._feed_stale = why
        with contextlib.suppress(UnknownReplica):
            self.target.end_feeds(self.engine.name)

    def _feed_again(self) -> None:
        """Own decisions were in force: what was known is gone, so everything is asked for anew."""
        self._feed_stale = ""
        self._silences = 0
        with contextlib.suppress(UnknownReplica):
            self.target.end_feeds(self.engine.name)
        for stream in self.streams:
            stream.begin_anew()

    def _check_silence(self, now: float) -> None:
        """Prompts were computed, and no event came: asked for once, then the feed is stale."""
        computed = self.reading.computed_tokens_total
        batches = sum(stream.counts["batches"] for stream in self.streams)
        seen, at = self._quiet or (-1, 0)
        if computed is None or batches != seen or computed < at:
            self._quiet = None if computed is None else (batches, computed)
            self._silences = 0
            return
        block = self.reading.block_tokens or 1
        heard = max((stream.heard_s or 0.0 for stream in self.streams), default=0.0)
        if computed - at < COMPUTED_BLOCKS * block or now - heard < self.timing.feed_stale_after_s:
            return
        self._silences += 1
        if self._silences == 1:
            for stream in self.streams:
                stream.resync()
        else:
            self._stale_feed("prompts were computed, and no event came")

    # Numbers

    async def _read(self) -> None:
        while True:
            answer = await ask(self.session, self.engine.url + "/metrics", self.timing)
            reading = read_metrics(answer.body, rank=self.engine.rank) if answer.good else Reading()
            if reading.running is None and self.found is not None and self.found.kind == "sglang":
                loads = await ask(self.session, self.engine.url + "/v1/loads", self.timing)
                reading = read_loads(loads.json(), rank=self.engine.rank)
            if reading.kind is not None:
                self._take(reading)
            await asyncio.sleep(self.timing.metrics_period_s)

    def _take(self, reading: Reading) -> None:
        now = time.monotonic()
        before = self.reading
        known = {name: value for name in Reading.__slots__ if (value := getattr(reading, name)) is not None}
        if _started_anew(before, reading):
            self._restarted()
        self.reading = replace(self.reading, **known)
        self._read_s = now
        if self.health.refusals == 0:
            self.health.sign(now)
        capacity = self.engine.kv_tokens is None and reading.kv_tokens
        with contextlib.suppress(UnknownReplica):
            self.target.observe(
                self.engine.name,
                kv_fraction=reading.kv_fraction,
                running=reading.running,
                waiting=reading.waiting,
                preemptions_total=reading.preemptions_total,
                kv_tokens=capacity or None,
            )
        self._check_silence(now)

    async def _loads(self, endpoint: str) -> None:
        """SGLang's load reports: fresher than polling, and a heartbeat every second."""
        socket = self.context.socket(zmq.SUB)
        rows: dict[int, dict[str, Any]] = {}
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, 64)
            socket.setsockopt(zmq.IPV6, 1)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(endpoint)
            while True:
                frames = await socket.recv_multipart()
                with contextlib.suppress(TurnoutError):
                    report = load_report(frames[-1])
                    rows[report["rank"] or 0] = report
                    self._take_loads(list(rows.values()))
        finally:
            socket.close(0)

    def _take_loads(self, rows: list[dict[str, Any]]) -> None:
        capacity = sum(row["kv_tokens"] for row in rows)
        used = sum(row["used_tokens"] for row in rows)
        self.reading = replace(
            self.reading,
            kv_fraction=min(1.0, used / capacity) if capacity else None,
            running=sum(row["running"] for row in rows),
            waiting=sum(row["waiting"] for row in rows),
        )
        self._read_s = time.monotonic()
        self.health.sign(self._read_s)
        reading = self.reading
        with contextlib.suppress(UnknownReplica):
            self.target.observe(
                self.engine.name, kv_fraction=reading.kv_fraction, running=reading.running, waiting=reading.waiting
            )

    # What is shown

    def _state(self, now: float) -> State:
        life: State = self.health.life(now)
        if life == "joining" and self.deaths:
            life = "dead"
        if life == "up" and self.found is None:
            life = "dead" if self.deaths else "joining"
        if life == "up" and self._returned is not None and now - self._returned[1] < self.timing.settle_s:
            life = self._returned[0]
        if self.draining and life not in {"dead", "stale", "joining"}:
            life = "draining"
        if self._shown[0] != life:
            self._shown = (life, now)
        return life

    def _feed(self, now: float, *, exact: bool) -> FeedStatus:
        ranks = tuple(stream.status(now) for stream in self.streams)
        state: FeedState = "partial"
        reason = "own decisions count as well: what was stored before the first event is not known"
        if not ranks:
            reason = (
                "off by configuration" if self.engine.kv_events == "off" else "the engine publishes no cache events"
            )
            return FeedStatus("off", reason, ranks)
        if any(stream.given_up for stream in self.streams):
            state, reason = "unreadable", "its messages cannot be read"
        elif self._feed_stale:
            state, reason = "stale", self._feed_stale
        elif exact:
            state, reason = "whole", ""
        elif any(rank.batches == 0 for rank in ranks):
            state, reason = "connecting", "no event yet"
        return FeedStatus(state, reason, ranks)

    def status(self, *, exact: bool) -> EngineStatus:
        """What is known now.

        Args:
            exact: Whether the router has its feed whole.
        """
        now = time.monotonic()
        state = self._state(now)
        reading, found = self.reading, self.found
        seen = self.health.alive_s
        replica = self._replica()
        queries, hits = reading.prompt_tokens_total, reading.cached_tokens_total
        evidence = Evidence(
            prefix_caching=reading.prefix_caching,
            engine_hit_share=hits / queries if queries and hits is not None else None,
            exact=exact,
            kv_told=self.engine.kv_tokens is not None,
        )
        missing = "; ".join(found.missing) if found is not None else ""
        return EngineStatus(
            name=self.engine.name,
            url=self.engine.url,
            kind=self.engine.kind if found is None else found.kind,
            version="" if found is None else found.version,
            state=state,
            reason=self.health.says or missing,
            since_s=now - self._shown[1],
            seen_s=None if seen is None else now - seen,
            kv_tokens=replica.kv_tokens if math.isfinite(replica.kv_tokens) else None,
            block_tokens=reading.block_tokens,
            prefix_caching=reading.prefix_caching,
            kv_fraction=reading.kv_fraction,
            running=reading.running,
            waiting=reading.waiting,
            metrics_age_s=None if self._read_s is None else now - self._read_s,
            deaths=self.deaths,
            restarts=self.restarts,
            feed=self._feed(now, exact=exact),
            shortfall=self.monitor.judge(evidence),
        )


def _started_anew(before: Reading, now: Reading) -> bool:
    """Whether two readings are of different processes: another start, or a count that fell back."""
    if before.started_at_s is not None and now.started_at_s is not None:
        return now.started_at_s > before.started_at_s + 1.0
    old, new = before.prompt_tokens_total, now.prompt_tokens_total
    return old is not None and new is not None and new < old
