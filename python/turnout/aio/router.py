"""The asyncio router: a `turnout.Router` whose events wake whoever waits.

One lock orders event, journal and outbox: whoever calls an event takes what left the outbox by it and wakes the
waiters, in the core's order, whichever thread or event loop they are in. No policy and no listener runs under it.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar, Unpack

from turnout.aio.clock import Clock
from turnout.aio.journal import SafeJournal
from turnout.aio.turn import Turn
from turnout.aio.waiting import Entry, Waiter, Watcher, call_in, tell_all
from turnout.errors import RouterClosed, TurnEnded
from turnout.router import Router

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnout._core import Decision, Outcome
    from turnout.aio.arguments import SubmitArguments
    from turnout.record import JournalWriter

P = ParamSpec("P")
T = TypeVar("T")
Listener: TypeAlias = "Callable[[Decision, str | None, str | None, float], object]"
"""Hears (decision, session, workload, time waited in s), see `AsyncRouter.listen`."""

_LOG = logging.getLogger(__name__)


class HeldTurn(NamedTuple):
    """A turn that waits in the line.

    Attributes:
        turn: Its id.
        session: Its session, as submitted.
        workload: Its workload, as submitted.
        held_s: How long it has waited, s.
        decision: The decision that held it.
    """

    turn: str
    session: str | None
    workload: str | None
    held_s: float
    decision: Decision


class _Told(NamedTuple):
    """A decision on its way to the listeners."""

    decision: Decision
    session: str | None
    workload: str | None
    waited_s: float


def _event(method: Callable[Concatenate[Router, P], T]) -> Callable[Concatenate[AsyncRouter, P], T]:
    """The same event, after which everybody is told what follows from it."""

    @functools.wraps(method)
    def event(self: AsyncRouter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._do(lambda: method(self.router, *args, **kwargs))

    return event


def _ending(
    method: Callable[Concatenate[Router, str, P], Outcome],
) -> Callable[Concatenate[AsyncRouter, str, P], Outcome]:
    """An event that ends a turn: whoever waits for that turn is told as well."""

    @functools.wraps(method)
    def ending(self: AsyncRouter, turn: str, /, *args: P.args, **kwargs: P.kwargs) -> Outcome:
        return self._do(lambda: method(self.router, turn, *args, **kwargs), ends=turn)

    return ending


class AsyncRouter:
    """A router for asyncio: `place` and `turn` wait while a turn is held; every event of the router is a method.

    The events are those of `turnout.Router`, with the same arguments, answers and errors. They never block, and may be
    called from any thread and any event loop. Make it with `turnout.aio.serve`.

    Args:
        router: The router.
        journal: Its journal, if it keeps one.

    Attributes:
        router: The router: for what changes nothing, as `stats`, `view` and `peek`.
        clock: The task that runs timers and control steps, with its counters.
        journal: What keeps the journal, with its state; None without one.
    """

    def __init__(self, router: Router, *, journal: JournalWriter | None = None) -> None:
        """Wrap it; `start` begins."""
        self.router = router
        self.clock = Clock(self)
        self.journal = None if journal is None else SafeJournal(journal)
        self._lock = threading.RLock()
        self._turns: dict[str, Entry] = {}
        self._listeners: tuple[Listener, ...] = ()
        self._closed = False

    progress = _event(Router.progress)
    fork = _event(Router.fork)
    hint = _event(Router.hint)
    end_session = _event(Router.end_session)
    owner_lost = _event(Router.owner_lost)
    add_replica = _event(Router.add_replica)
    set_replica = _event(Router.set_replica)
    drain_replica = _event(Router.drain_replica)
    remove_replica = _event(Router.remove_replica)
    lose_replica = _event(Router.lose_replica)
    weights_updated = _event(Router.weights_updated)
    observe = _event(Router.observe)
    kv_events = _event(Router.kv_events)
    reset_feed = _event(Router.reset_feed)
    end_feeds = _event(Router.end_feeds)
    expect_callers = _event(Router.expect_callers)
    set_limits = _event(Router.set_limits)
    tick = _event(Router.tick)
    complete = _ending(Router.complete)
    abort = _ending(Router.abort)

    peek = functools.wraps(Router.peek)(lambda self, *args, **kwargs: self.router.peek(*args, **kwargs))
    prompt = functools.wraps(Router.prompt)(lambda self, tokens: self.router.prompt(tokens))

    def choose(self, prompt: Any = None, **arguments: Any) -> Decision:  # noqa: ANN401 - as Router.choose
        """Choose a replica for a turn that is not tracked, see `turnout.Router.choose`."""
        self._check_open()
        decision = self._do(lambda: self.router.choose(prompt, **arguments))
        self._report([_Told(decision, arguments.get("session"), arguments.get("workload"), 0.0)])
        return decision

    def submit(self, prompt: Any = None, **arguments: Unpack[SubmitArguments]) -> Decision:  # noqa: ANN401 - as Router.submit
        """Decide about a turn without waiting, see `turnout.Router.submit`; a held one can be waited for by `place`."""
        return self._submit(prompt, arguments, None, None)

    async def place(
        self,
        prompt: Any = None,  # noqa: ANN401 - as Router.submit
        *,
        wait_s: float | None = None,
        keep: bool = False,
        watcher: Watcher | None = None,
        **arguments: Unpack[SubmitArguments],
    ) -> Decision:
        """Submit a turn and wait while it is held.

        Args:
            prompt: The prompt, see `turnout.Router.submit`.
            wait_s: Longest wait, s; after it the held decision is returned. None = until something is decided;
                `deadline_s` is how to make that `expired` after a while.
            keep: Whether a turn that is still held after `wait_s`, or whose wait is cancelled, stays in the line, to be
                asked for again by its id; else it is aborted.
            watcher: Who is told when the turn is lost while it runs.
            **arguments: As for `turnout.Router.submit`.

        Returns:
            The decision: placed, rejected, expired, lost or, after `wait_s`, held.

        Raises:
            RouterClosed: The shell is closed, or closes meanwhile.
            TurnEnded: Somebody else completed or aborted the turn meanwhile.
            TurnoutError: As for `turnout.Router.submit`.
        """
        loop = asyncio.get_running_loop()
        waiter = Waiter(loop, loop.create_future())
        decision = self._submit(prompt, arguments, waiter, watcher)
        if not decision.held:
            return decision
        try:
            async with asyncio.timeout(wait_s):
                return await waiter.future
        except TimeoutError:
            if waiter.future.done() and not waiter.future.cancelled():
                return waiter.future.result()
            return self._give_up(decision, waiter, keep=keep)
        except asyncio.CancelledError:
            # Whether it was still held or just placed: nobody will use it.
            self._give_up(decision, waiter, keep=keep)
            raise

    def turn(self, prompt: Any = None, **arguments: Unpack[SubmitArguments]) -> Turn:  # noqa: ANN401 - as Router.submit
        """A turn as a context: entered when it is placed, aborted when it is left without `complete`.

        Args:
            prompt: The prompt, see `turnout.Router.submit`.
            **arguments: As for `turnout.Router.submit`.

        Returns:
            The turn, for `async with`. Entering raises `TurnRejected`, `TurnExpired` or `TurnLost`, each with its
            decision, beside what `place` raises.
        """
        return Turn(self, prompt, arguments)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Hear every decision: for metrics, logs and dashboards.

        Args:
            listener: Called as `listener(decision, session, workload, waited_s)` by whoever caused the decision,
                outside the lock, so quick it must be; what it raises is logged.

        Returns:
            What ends the listening.
        """
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def unlisten() -> None:
            with self._lock:
                self._listeners = tuple(other for other in self._listeners if other is not listener)

        return unlisten

    def held(self, most: int | None = None) -> list[HeldTurn]:
        """The turns that wait in the line and were submitted here, oldest first.

        Args:
            most: At most so many; None = all.
        """
        now = time.monotonic()
        with self._lock:
            held = ((turn, entry) for turn, entry in self._turns.items() if entry.decision.held)
            return [
                HeldTurn(turn, entry.session, entry.workload, now - entry.since_s, entry.decision)
                for turn, entry in itertools.islice(held, most)
            ]

    @property
    def closed(self) -> bool:
        """Whether it takes no new turns any more."""
        return self._closed

    def start(self) -> None:
        """Run the clock in the running event loop."""
        self.clock.start()

    async def close(self, *, keep_turns: bool = False) -> None:
        """Take no new turns, answer everybody who waits with `RouterClosed`, and stop the clock.

        Turns that run may still be ended.

        Args:
            keep_turns: Leave held turns in the line, for a process that goes on from the journal; else they are
                aborted.
        """
        with self._lock:
            self._closed = True
        await self.clock.stop()
        self.fail(RouterClosed("router: it is closing; submit the turn again elsewhere"), keep_turns=keep_turns)

    def fail(self, error: Exception, *, keep_turns: bool = True) -> None:
        """Answer everybody who waits with an error.

        Args:
            error: The error.
            keep_turns: Leave the held turns in the line; else they are aborted.
        """
        with self._lock:
            held = {turn: entry for turn, entry in self._turns.items() if entry.decision.held}
            for turn, entry in held.items():
                waiters, entry.waiters = entry.waiters, []
                tell_all(waiters, error)
                if not keep_turns:
                    self.abort(turn)

    def superseded(self, turn: str, attempt: int) -> bool:
        """Whether a later attempt has taken the place of this one."""
        with self._lock:
            entry = self._turns.get(turn)
            return entry is not None and entry.decision.attempt > attempt

    def unwatch(self, turn: str, watcher: Watcher) -> None:
        """The watcher does not run the turn any more."""
        with self._lock:
            entry = self._turns.get(turn)
            if entry is not None and watcher in entry.watchers:
                entry.watchers.remove(watcher)
                self._forget_unused(turn, entry)

    def _check_open(self) -> None:
        if self._closed:
            raise RouterClosed("router: it is closed and takes no new turns")

    def _submit(
        self,
        prompt: Any,  # noqa: ANN401 - as Router.submit
        arguments: SubmitArguments,
        waiter: Waiter | None,
        watcher: Watcher | None,
    ) -> Decision:
        with self._lock:
            # Under the lock: a turn that entered after `close` has answered everybody would wait for ever.
            self._check_open()
            decision = self.router.submit(prompt, **arguments)
            # Entered before the outbox is emptied, by whomever: what comes for it finds its waiter.
            told = self._enter(decision, arguments, waiter, watcher)
            told += self._collect()
        self._report(told)
        return decision

    def _enter(
        self, decision: Decision, arguments: SubmitArguments, waiter: Waiter | None, watcher: Watcher | None
    ) -> list[_Told]:
        """Note who waits for a turn, or runs it; under the lock."""
        session, workload = arguments.get("session"), arguments.get("workload")
        entry = self._turns.get(decision.turn)
        repeated = entry is not None and entry.decision.attempt == decision.attempt
        if entry is None:
            if not decision.held and watcher is None:
                return [_Told(decision, session, workload, 0.0)]
            entry = Entry(decision, session, workload, time.monotonic())
            self._turns[decision.turn] = entry
        entry.decision = decision
        if watcher is not None and (decision.held or decision.placed):
            entry.watchers.append(watcher)
        if waiter is not None and decision.held:
            entry.waiters.append(waiter)
        elif not decision.held:
            # Waiters of an earlier attempt hear of this one: there is no other any more.
            waiters, entry.waiters = entry.waiters, []
            tell_all(waiters, decision)
            self._forget_unused(decision.turn, entry)
        return [] if repeated else [_Told(decision, session, workload, 0.0)]

    def _do(self, call: Callable[[], T], *, ends: str | None = None) -> T:
        """Do an event, and tell everybody what follows from it."""
        with self._lock:
            answer = call()
            if ends is not None:
                self._ended(ends)
            told = self._collect()
        self._report(told)
        return answer

    def _ended(self, turn: str) -> None:
        """A turn was completed or aborted; under the lock."""
        entry = self._turns.pop(turn, None)
        if entry is not None:
            tell_all(entry.waiters, TurnEnded(f"turn: {turn!r} was ended by another call while it was waited for"))

    def collect(self) -> None:
        """Tell everybody what left the outbox meanwhile, as after limits that were set past the shell."""
        self._do(lambda: None)

    def _collect(self) -> list[_Told]:
        """Empty the outbox and wake; under the lock. The journal is safe before anybody acts on a decision."""
        told: list[_Told] = []
        while True:
            if self.journal is not None:
                self.journal.flush()
            orphans: list[str] = []
            told.extend([self._wake(decision, orphans) for decision in self.router.drain()])
            if not orphans:
                break
            for turn in orphans:
                self.router.abort(turn)
        self.clock.look()
        return told

    def _wake(self, decision: Decision, orphans: list[str]) -> _Told:
        """Wake who waits for a turn; placed turns whose waiters are all gone are noted."""
        entry = self._turns.get(decision.turn)
        if entry is None:
            return _Told(decision, None, None, 0.0)
        waited_s = time.monotonic() - entry.since_s if entry.decision.held else 0.0
        entry.decision = decision
        waiters, entry.waiters = entry.waiters, []
        heard = tell_all(waiters, decision)
        if decision.placed:
            if waiters and not heard:
                self._turns.pop(decision.turn, None)
                orphans.append(decision.turn)
        else:
            watchers, entry.watchers = entry.watchers, []
            for watcher in watchers:
                call_in(watcher.loop, watcher.tell_lost, decision)
        self._forget_unused(decision.turn, entry)
        return _Told(decision, entry.session, entry.workload, waited_s)

    def _forget_unused(self, turn: str, entry: Entry) -> None:
        if not entry.decision.held and not entry.watchers and self._turns.get(turn) is entry:
            del self._turns[turn]

    def _give_up(self, decision: Decision, waiter: Waiter, *, keep: bool) -> Decision:
        """A wait is over before the turn is decided. Answers the latest decision."""
        with self._lock:
            if waiter.future.done() and not waiter.future.cancelled() and waiter.future.exception() is None:
                decision = waiter.future.result()
            entry = self._turns.get(decision.turn)
            if entry is not None:
                if waiter in entry.waiters:
                    entry.waiters.remove(waiter)
                if entry.decision.attempt > decision.attempt or entry.waiters:
                    return decision  # a later attempt, or another call, still wants it
                decision = entry.decision
            if not keep and (decision.held or decision.placed):
                self.abort(decision.turn)
        return decision

    def _report(self, told: list[_Told]) -> None:
        """Tell the listeners; outside the lock."""
        for word in told if self._listeners else ():
            for listener in self._listeners:
                try:
                    listener(*word)
                except Exception:  # noqa: BLE001 - a broken listener must not break the decision
                    _LOG.exception("a listener to decisions failed")
