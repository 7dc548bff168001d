"""The router inside the actor: a plain asyncio class, so that it can be used and tested without Ray.

Operations come in batches and never block; a held turn is waited for in a call of its own. Everything may be asked
twice: Ray repeats calls when the actor starts anew, and the router answers a repetition as it did before.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from turnout import aio, policies, record
from turnout.adapters.shared.messages import Hello, Placement, unpacked
from turnout.errors import InvalidArgument, TurnoutError
from turnout.router import Router

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from turnout import Decision, Replica, Workload
    from turnout.adapters.shared.messages import Answer, Operation

SILENCE_S: Final = 60.0
"""Six beats of ten seconds."""

DECISIONS: Final = ("submit", "choose")
EVENTS: Final = (
    "progress",
    "complete",
    "abort",
    "fork",
    "end_session",
    "hint",
    "owner_lost",
    "add_replica",
    "set_replica",
    "drain_replica",
    "remove_replica",
    "lose_replica",
    "weights_updated",
    "observe",
    "kv_events",
)
ENDS: Final = ("complete", "abort")


class RouterHost:
    """A router with its clock, journal and owners, asked in batches of operations.

    Args:
        replicas: The fleet at the start; those that a journal does not know are added to its fleet.
        workloads: Classes of sessions.
        policy: Name of a shipped policy, or `package.module:Class`.
        journal: File that keeps the state over restarts of the actor: on the disk of its node, or a shared one.
        reattach_s: After a restart: time within which clients name their open turns, s.
        silence_s: Silence after which the sessions of an owner end, s.
        **settings: Further arguments of `turnout.Router`.

    Raises:
        InvalidArgument: A value is out of range.
        UnknownPolicy: No policy has this name.
        RecordError: The journal cannot be used. It is left as it is.

    Example:
        >>> import asyncio
        >>> from turnout import Replica
        >>> async def ask():
        ...     host = RouterHost([Replica("r0", kv_tokens=100_000)])
        ...     [placement] = await host.call([("submit", {"prompt": [1, 2, 3], "turn": "t"})])
        ...     [status] = await host.call([("complete", {"turn": "t", "output": [4]})])
        ...     await host.close()
        ...     return placement.replica, status
        >>> asyncio.run(ask())
        ('r0', 'done')
    """

    def __init__(  # noqa: PLR0913 - keyword arguments
        self,
        replicas: Iterable[Replica] = (),
        workloads: Iterable[Workload] = (),
        *,
        policy: str = "block-time",
        journal: str | None = None,
        reattach_s: float = 120.0,
        silence_s: float = SILENCE_S,
        **settings: Any,  # noqa: ANN401 - as Router
    ) -> None:
        """Make or restore the router; the clock starts with the first call, in the loop that serves it."""
        chosen = policies.lookup(policy)
        if journal is not None and Path(journal).exists():
            router = record.restore(journal, policy=chosen, reattach_s=reattach_s)
            for replica in replicas:
                if replica.name not in router.replicas:
                    router.add_replica(replica)
        else:
            router = Router(replicas, workloads, policy=chosen, **settings)
        writer = None if journal is None else record.JournalWriter(router, journal)
        self._routed = aio.AsyncRouter(router, journal=writer)
        self._writer = writer
        self._routed.listen(self._hear)
        self._instance = secrets.token_hex(8)
        self._waits: dict[str, asyncio.Task[Placement]] = {}
        self._silence_s = silence_s
        self._owners: dict[str, float] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def hello(self) -> Hello:
        """What a client needs once: key and block size."""
        self._start()
        router = self._routed.router
        return Hello(router.hash_key, router.block_tokens, self._instance)

    async def call(self, operations: Sequence[Operation]) -> list[Answer]:
        """Do events in their order, none of which waits.

        Args:
            operations: (name, arguments) of `submit`, `choose`, `peek` or an event of the router.

        Returns:
            For each: a `Placement`, the status of its outcome, what `peek` returns, or the error that it raised.
        """
        self._start()
        return [self._answer(name, arguments) for name, arguments in operations]

    async def wait(self, turn: str) -> Placement | None:
        """Wait for a held turn.

        Args:
            turn: Its id.

        Returns:
            The decision that ends the waiting; None when nothing is known of it (submit it again).

        Raises:
            TurnEnded: It was ended by another call meanwhile.
            RouterClosed: The router is closing.
        """
        self._start()
        task = self._waits.get(turn)
        if task is None:
            return None
        # Shielded: the call may be given up and made again, the turn keeps its place.
        placement = await asyncio.shield(task)
        self._waits.pop(turn, None)
        return placement

    async def beat(self, owner: str) -> str:
        """Note a sign of life of an owner.

        Args:
            owner: The owner.

        Returns:
            The instance: another one than before means that open turns must be named again.
        """
        self._start()
        self._owners[owner] = time.monotonic()
        return self._instance

    async def status(self) -> dict[str, int]:
        """The router's counters and sizes, see `turnout.Router.stats`, and `waits`: turns that somebody waits for."""
        self._start()
        return {**self._routed.router.stats(), "waits": len(self._waits)}

    async def finished(self) -> dict[str, int]:
        """Sessions that ended as completed, by workload."""
        view = self._routed.router.view()
        return dict(zip(view.workloads, view.finished.tolist(), strict=True))

    async def books(self) -> dict[str, float]:
        """Recompute the books from scratch, and what is charged, committed and reserved on the fleet, tokens.

        Raises:
            InternalError: They do not agree; the message says where.
        """
        self._start()
        self._routed.router.audit()
        view = self._routed.router.view()
        return {
            name: float(getattr(view, name).sum()) for name in ("charge_tokens", "commit_tokens", "reserved_tokens")
        }

    async def close(self) -> None:
        """Answer everybody who waits, stop the clock and close the journal."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._routed.close(keep_turns=self._writer is not None)
        await asyncio.gather(*self._waits.values(), return_exceptions=True)
        if self._writer is not None:
            self._writer.close()

    def _start(self) -> None:
        """Run the clock in the loop of the first call: Ray makes the object outside of it."""
        if not self._tasks:
            self._routed.start()
            self._tasks = [asyncio.get_running_loop().create_task(each) for each in self._background()]

    def _background(self) -> list[Coroutine[Any, Any, None]]:
        """What runs beside the calls."""
        return [self._listen_for_owners()]

    def _answer(self, name: str, arguments: dict[str, Any]) -> Answer:
        try:
            return self._do(name, unpacked(arguments, self._routed.router.hash_key))
        except (TurnoutError, TypeError) as error:  # TypeError: an argument that the event does not have
            return error

    def _do(self, name: str, arguments: dict[str, Any]) -> Answer:
        if name in DECISIONS:
            owner = arguments.get("owner")
            if owner is not None:
                self._owners[owner] = time.monotonic()
            decision = getattr(self._routed, name)(**arguments)
            if decision.held and decision.turn not in self._waits:
                self._wait_for(decision.turn, arguments)
            return Placement.of(decision)
        if name == "peek":
            return self._routed.peek(**arguments)
        if name not in EVENTS:
            accepted = ", ".join((*DECISIONS, "peek", *EVENTS))
            raise InvalidArgument(f"operation: got {name!r}, accepted is {accepted}", "operation", repr(name), accepted)
        if name in ENDS:
            turn = arguments.pop("turn")
            outcome = getattr(self._routed, name)(turn, **arguments)
            self._waits.pop(turn, None)
            return outcome.status
        return getattr(self._routed, name)(**arguments).status

    def _wait_for(self, turn: str, arguments: dict[str, Any]) -> None:
        """Stand in the line for the caller: it hears when it asks, also after a call of it was lost."""

        async def wait() -> Placement:
            # The same submit again: it joins the turn that is held already.
            return Placement.of(await self._routed.place(**{**arguments, "turn": turn}, keep=True))

        task = asyncio.get_running_loop().create_task(wait())
        task.add_done_callback(_hear_quietly)
        self._waits[turn] = task

    def _hear(self, decision: Decision, session: str | None, workload: str | None, waited_s: float) -> None:
        """Forget waits of turns that are lost or expired and that nobody may ask for any more."""
        del session, workload, waited_s
        task = self._waits.get(decision.turn)
        if task is not None and decision.status in {"lost", "expired"}:
            loop = task.get_loop()
            loop.call_later(self._silence_s, self._waits.pop, decision.turn, None)

    async def _listen_for_owners(self) -> None:
        while True:
            await asyncio.sleep(self._silence_s / 6)
            silent_since = time.monotonic() - self._silence_s
            for owner in [owner for owner, heard in self._owners.items() if heard < silent_since]:
                del self._owners[owner]
                self._routed.owner_lost(owner)


def _hear_quietly(task: asyncio.Task[Placement]) -> None:
    """Whoever asks for the turn gets the error; where nobody does, it was ended by those who would."""
    if not task.cancelled():
        task.exception()
