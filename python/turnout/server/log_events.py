"""What is worth a line of the log, noticed: replicas, feeds, weights, policy, and turns that came to nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, Self

from turnout.control import state_of
from turnout.errors import InternalError
from turnout.server.logs import say

if TYPE_CHECKING:
    from types import TracebackType

    import turnout
    from turnout.aio import AsyncRouter
    from turnout.feeds import EngineStatus, Fleet

PERIOD_S: Final = 1.0
"""Between two looks; each walks over all sessions, as a control step does."""
QUIET_S: Final = 10.0
"""Of one kind of failed turn, at most one line in so long."""

FAILED: Final = {"rejected": logging.WARNING, "lost": logging.WARNING, "expired": logging.INFO}
BROKEN_FEEDS: Final = frozenset({"stale", "unreadable"})


class EventLog:
    """Watches a router and its engines, and says what changed. Use it as an asynchronous context.

    Args:
        routed: The router.
        fleet: The engines that are followed.
    """

    def __init__(self, routed: AsyncRouter, fleet: Fleet | None = None) -> None:
        """Know nothing yet."""
        self._routed = routed
        self._fleet = fleet
        self._task: asyncio.Task[None] | None = None
        self._replicas: dict[str, int] = {}
        self._seen: set[str] = set()
        self._feeds: dict[str, str] = {}
        self._wrong: set[str] = set()
        self._errors = 0
        self._said: dict[tuple[str, str], float] = {}
        self._unsaid: Counter[tuple[str, str]] = Counter()

    async def __aenter__(self) -> Self:
        """Begin."""
        self._unlisten = self._routed.listen(self._hear)
        self._task = asyncio.create_task(self._run(), name="turnout event log")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, with the last look."""
        self._unlisten()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._summarise(float("inf"))

    async def _run(self) -> None:
        while True:
            try:
                self.look()
            except InternalError:
                return  # the clock has said so
            await asyncio.sleep(PERIOD_S)

    def look(self) -> None:
        """Compare with the last look and say what changed."""
        view = self._routed.router.view()
        self._routed.collect()
        engines = {} if self._fleet is None else {engine.name: engine for engine in self._fleet.status().engines}
        versions = [int(version) for version in view.weight_version]
        self._look_at_replicas(dict(zip(view.replicas, versions, strict=True)), engines)
        for name, engine in engines.items():
            self._look_at_feed(name, engine)
        control, clock = state_of(self._routed.router), self._routed.clock
        errors = control.failures + clock.failures
        if errors > self._errors:
            says = control.last_error or clock.last_error
            row = control.consecutive_failures
            say(
                logging.ERROR,
                "policy_error",
                f"policy: {says}",
                failures=errors,
                in_a_row=row,
                new=errors - self._errors,
            )
            self._errors = errors
        self._summarise(time.monotonic())

    def _look_at_replicas(self, now: dict[str, int], engines: dict[str, EngineStatus]) -> None:
        before, self._replicas = self._replicas, now
        for name in now.keys() - before.keys():
            engine = engines.get(name)
            event = "replica_back" if name in self._seen else "replica_joined"
            details = {} if engine is None else {"url": engine.url, "kind": engine.kind, "kv_tokens": engine.kv_tokens}
            say(logging.INFO, event, f"{event.replace('_', ' ')}: {name}", replica=name, **details)
        self._seen |= now.keys()
        for name in before.keys() - now.keys():
            engine = engines.get(name)
            dead = engine is not None and engine.state == "dead"
            why = engine.reason if engine is not None and dead else ""
            event, level = ("replica_lost", logging.WARNING) if dead else ("replica_left", logging.INFO)
            say(level, event, f"{event.replace('_', ' ')}: {name}", replica=name, reason=why)
        for name in now.keys() & before.keys():
            if now[name] != before[name]:
                text = f"weights updated: {name} has version {now[name]}"
                say(logging.INFO, "weights_updated", text, replica=name, version=now[name], before=before[name])

    def _look_at_feed(self, name: str, engine: EngineStatus) -> None:
        state = engine.feed.state
        before = self._feeds.get(name, "off")
        self._feeds[name] = state
        if state in BROKEN_FEEDS and before not in BROKEN_FEEDS:
            text = f"feed {state}: {name}, {engine.feed.reason}"
            say(logging.WARNING, f"feed_{state}", text, replica=name, reason=engine.feed.reason)
        elif before in BROKEN_FEEDS and state not in BROKEN_FEEDS:
            say(logging.INFO, "feed_back", f"feed back: {name}", replica=name, status=state)
        if engine.shortfall.wrong != (name in self._wrong):
            self._wrong ^= {name}
            if engine.shortfall.wrong:
                cause, share = engine.shortfall.cause, round(engine.shortfall.share, 3)
                text = f"turns miss what was forecast in the cache of {name}: {cause}"
                say(logging.WARNING, "hit_shortfall", text, replica=name, missing_share=share, reason=cause)

    def _hear(self, decision: turnout.Decision, session: str | None, workload: str | None, waited_s: float) -> None:
        level = FAILED.get(decision.status)
        if level is None:
            return
        kind, now = (decision.status, decision.reason), time.monotonic()
        if now - self._said.get(kind, float("-inf")) < QUIET_S:
            self._unsaid[kind] += 1
            return
        self._said[kind] = now
        say(
            level,
            f"turn_{decision.status}",
            f"turn {decision.status}: {decision.reason}",
            reason=decision.reason,
            turn=decision.turn,
            session=session,
            workload=workload,
            replica=decision.replica,
            waited_s=round(waited_s, 3),
        )

    def _summarise(self, now: float) -> None:
        """Say how many more there were of what was said once."""
        for kind in [kind for kind in self._unsaid if now - self._said[kind] >= QUIET_S]:
            status, reason = kind
            more = self._unsaid.pop(kind)
            self._said[kind] = time.monotonic()
            say(FAILED[status], f"turns_{status}", f"{more} more turns {status}: {reason}", reason=reason, turns=more)
