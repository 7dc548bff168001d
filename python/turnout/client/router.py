"""A router elsewhere, with the face of `turnout.aio`."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from typing import TYPE_CHECKING, Any, Final, Self, Unpack
from urllib.parse import urlsplit

import msgspec

from turnout.client.call import Caller, error_of
from turnout.client.turn import RemoteTurn
from turnout.errors import InvalidArgument, ServerUnreachable, TurnoutError
from turnout.server import schema
from turnout.server.binary import pack_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from turnout.client.arguments import PromptArguments, TurnArguments

BEAT_S: Final = 10.0
"""Between two signs of life, s; six that fail to come end the sessions of their owner."""
LONGEST_WAIT_S: Final = 30.0
"""One request waits so long; then the same turn is asked for again, s."""
UNKNOWN_PAUSES_S: Final = (0.1, 1.0)
"""A cancelled submit may reach the server after its abort: an abort of nothing is tried again after these times, s."""


def connect(
    url: str,
    *,
    token: str | None = None,
    owner: str | None = "",
    patience_s: float = 120.0,
    beat_s: float = BEAT_S,
) -> RemoteRouter:
    """A client of `turnout serve`, for `async with`.

    Args:
        url: The server's address.
        token: Its bearer token; None = it has none.
        owner: Who answers for the sessions that begin here: sends a beat every `beat_s`, and the server ends them after
            60 s of silence, or when the client is closed. Empty = a name is made up; None = nobody does.
        patience_s: How long a server that is away is waited for, s.
        beat_s: Between two beats, s.

    Returns:
        The client.

    Raises:
        InvalidArgument: The address is none, or a time is not above 0.

    Example:
        >>> connect("localhost:8077")
        Traceback (most recent call last):
        turnout.errors.InvalidArgument: url: got 'localhost:8077', accepted is an address such as 'http://10.0.0.1:8077'
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        accepted = "an address such as 'http://10.0.0.1:8077'"
        raise InvalidArgument(f"url: got {url!r}, accepted is {accepted}", "url", repr(url), accepted)
    for name, value in (("patience_s", patience_s), ("beat_s", beat_s)):
        if not value > 0:
            raise InvalidArgument(f"{name}: got {value!r}, accepted is a time above 0", name, repr(value), "above 0 s")
    if owner == "":
        owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    return RemoteRouter(url, token, owner, patience_s, beat_s)


class RemoteRouter:
    """The router behind a server. Make it with `connect`, and use it with `async with`.

    Its events are those of `turnout.Router`, with the same errors; all wait for the answer. A connection that breaks is
    made again and the event is sent again, for at most `patience_s`; events that are not the same when they are sent
    twice (`fork`, `remove_replica`, `lose_replica`, `choose`) only where the server cannot have got them.

    Attributes:
        owner: Who answers for the sessions; None = nobody.
        running: Turns in their blocks, by id.
    """

    def __init__(self, url: str, token: str | None, owner: str | None, patience_s: float, beat_s: float) -> None:
        """Keep the settings; `async with` begins."""
        self.owner = owner
        self.running: dict[str, RemoteTurn] = {}
        self._settings = (url, token, patience_s)
        self._beat_s = beat_s
        self._caller: Caller | None = None
        self._beats: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, list[int]] = {}
        self._name = secrets.token_hex(6)
        self._count = 0
        self._instance = ""
        self._since_seq = 0

    async def __aenter__(self) -> Self:
        """Connect: the server answers, and the token is its."""
        self._caller = Caller(*self._settings)
        try:
            self._instance = (await self.info()).instance
            await self._beat()
        except BaseException:
            await self._caller.close()
            raise
        if self.owner is not None:
            self._beats = asyncio.create_task(self._run_beats(), name="turnout client")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give up what runs here, and end the owner's sessions."""
        if self._beats is not None:
            self._beats.cancel()
            await asyncio.gather(self._beats, return_exceptions=True)
        caller = self._call
        # At the end nobody waits for a server that is away: silence tells it the same.
        caller.patience_s = 0.0
        for turn in list(self.running):
            self.give_up(turn)
        await asyncio.gather(*self._leaving, return_exceptions=True)
        try:
            if self.owner is not None:
                await caller.post("owner_lost", schema.Owner(owner=self.owner), schema.Outcome)
        except ServerUnreachable:
            pass
        finally:
            await caller.close()

    @property
    def _call(self) -> Caller:
        if self._caller is None:
            raise InvalidArgument(
                "remote: not connected, accepted is a call inside `async with connect(...)`", "remote", "", "connected"
            )
        return self._caller

    # Turns

    def turn(self, prompt: Any = None, **arguments: Unpack[TurnArguments]) -> RemoteTurn:  # noqa: ANN401 - as Router.submit
        """A turn as a context: entered when it is placed, aborted when it is left without `complete`.

        Args:
            prompt: The prompt, see `turnout.Router.submit`.
            **arguments: As for `turnout.Router.submit`.

        Returns:
            The turn, for `async with`. Entering raises `TurnRejected`, `TurnExpired` or `TurnLost`, each with its
            decision, beside what `place` raises.

        Raises:
            InvalidTokens: The prompt cannot be used.
        """
        return RemoteTurn(self, self._submit_message(prompt, arguments))

    async def place(
        self,
        prompt: Any = None,  # noqa: ANN401 - as Router.submit
        *,
        wait_s: float | None = None,
        keep: bool = False,
        **arguments: Unpack[TurnArguments],
    ) -> schema.Decision:
        """Submit a turn and wait while it is held.

        Args:
            prompt: The prompt, see `turnout.Router.submit`.
            wait_s: Longest wait, s; after it the held decision is returned. None = until something is decided.
            keep: Whether a turn that is still held after `wait_s`, or whose wait is cancelled, stays in the line, to be
                asked for again by its id; else it is aborted.
            **arguments: As for `turnout.Router.submit`.

        Returns:
            The decision: placed, rejected, expired, lost or, after `wait_s`, held.

        Raises:
            ServerUnreachable: The server was away for longer than `patience_s`.
            TurnEnded: Somebody else completed or aborted the turn meanwhile.
            InvalidArgument: `wait_s` is below 0.
            TurnoutError: As for `turnout.Router.submit`.
        """
        if wait_s is not None and not wait_s >= 0:
            accepted = "a time of at least 0 s, or None"
            raise InvalidArgument(f"wait_s: got {wait_s!r}, accepted is {accepted}", "wait_s", repr(wait_s), accepted)
        return await self.wait(self._submit_message(prompt, arguments), wait_s, keep=keep)

    async def wait(self, message: schema.Submit, wait_s: float | None, *, keep: bool) -> schema.Decision:
        """Submit a message and wait, see `place`."""
        loop = asyncio.get_running_loop()
        until = None if wait_s is None else loop.time() + wait_s
        # The server keeps the place when the connection breaks; giving it up is said in words.
        message.keep = True
        turn = message.turn or ""
        waiting = self._waiting.setdefault(turn, [])
        waiting.append(message.attempt)
        try:
            while True:
                left_s = LONGEST_WAIT_S if until is None else max(until - loop.time(), 0.0)
                message.wait_s = min(left_s, LONGEST_WAIT_S)
                decision = await self._call.post("submit", message, schema.Decision)
                if not decision.held or not message.hold or left_s <= 0.0:
                    break
        except asyncio.CancelledError:
            if not keep and not self._wanted(turn, message.attempt):
                self.give_up(turn)
            raise
        finally:
            waiting.remove(message.attempt)
            if not waiting:
                self._waiting.pop(turn, None)
        if decision.held and not keep:
            await asyncio.shield(self.give_up(decision.turn))
        return decision

    def _wanted(self, turn: str, attempt: int) -> bool:
        """Whether somebody else here waits for a turn, or runs it, in this attempt or a later one."""
        others = sorted(self._waiting[turn])
        others.remove(attempt)
        running = self.running.get(turn)
        if running is not None:
            others.append(running.decision.attempt)
        return any(other >= attempt for other in others)

    async def submit(
        self,
        prompt: Any = None,  # noqa: ANN401 - as Router.submit
        **arguments: Unpack[TurnArguments],
    ) -> schema.Decision:
        """Decide about a turn without waiting, see `turnout.Router.submit`; `place` waits for a held one."""
        return await self._call.post("submit", self._submit_message(prompt, arguments), schema.Decision)

    async def submit_batch(self, turns: Iterable[tuple[Any, TurnArguments]]) -> list[schema.Decision | TurnoutError]:
        """Decide about many turns in this order, with nothing in between: a step of group sampling.

        Args:
            turns: For each the prompt and the other arguments of `submit`.

        Returns:
            For each its decision, or what was wrong with it.
        """
        known = schema.Turn.__struct_fields__
        messages = [self._submit_message(prompt, arguments) for prompt, arguments in turns]
        fields = [{name: getattr(message, name) for name in known} for message in messages]
        batch = schema.SubmitBatch(turns=[schema.Turn(**each) for each in fields])
        answer = await self._call.post("submit_batch", batch, schema.Batch)
        return [_decided(item) for item in answer.decisions]

    async def choose(self, prompt: Any = None, **arguments: Unpack[PromptArguments]) -> schema.Decision:  # noqa: ANN401
        """Choose a replica for a turn that is not tracked, see `turnout.Router.choose`."""
        message = schema.Choose(**_packed(prompt, arguments))
        return await self._call.post("choose", message, schema.Decision, again=False)

    async def peek(
        self,
        prompt: Any = None,  # noqa: ANN401 - as Router.peek
        *,
        session: str | None = None,
        namespace: str = "",
    ) -> list[tuple[str, int]]:
        """Which replicas hold a prefix and how much, best first, see `turnout.Router.peek`."""
        message = schema.Peek(prompt=pack_tokens(prompt), session=session, namespace=namespace)
        found = await self._call.post("peek", message, schema.Holders)
        return [(holder.replica, holder.cached_tokens) for holder in found.holders]

    async def progress(self, turn: str, output_tokens: int) -> schema.Outcome:
        """Report output so far, see `turnout.Router.progress`."""
        message = schema.Progress(turn=turn, output_tokens=output_tokens)
        return await self._call.post("progress", message, schema.Outcome)

    async def complete(
        self,
        turn: str,
        output: Any = None,  # noqa: ANN401 - as Router.complete
        *,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> schema.Outcome:
        """End a turn: prompt and output become history, see `turnout.Router.complete`."""
        return await self._end("complete", turn, output, output_tokens, cached_tokens)

    async def abort(
        self,
        turn: str,
        output: Any = None,  # noqa: ANN401 - as Router.abort
        *,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
    ) -> schema.Outcome:
        """End a held or placed turn early, see `turnout.Router.abort`."""
        return await self._end("abort", turn, output, output_tokens, cached_tokens)

    async def _end(
        self,
        name: str,
        turn: str,
        output: Any,  # noqa: ANN401 - as Router.complete
        output_tokens: int | None,
        cached_tokens: int | None,
    ) -> schema.Outcome:
        packed = pack_tokens(output, "output")
        message = schema.End(turn=turn, output=packed, output_tokens=output_tokens, cached_tokens=cached_tokens)
        return await self._call.post(name, message, schema.Outcome)

    def give_up(self, turn: str) -> asyncio.Task[None]:
        """Abort a turn in a task of the client's, which whoever is cancelled need not wait for.

        Args:
            turn: The turn.

        Returns:
            The task.
        """
        self.running.pop(turn, None)
        task = asyncio.create_task(self._give_up(turn))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    async def _give_up(self, turn: str) -> None:
        try:
            for pause_s in (*UNKNOWN_PAUSES_S, 0.0):
                if (await self.abort(turn)).status != "unknown":
                    return
                await asyncio.sleep(pause_s)
        except TurnoutError:
            return  # the server is away or has failed: it ends the turn when its owner is silent

    # Sessions, replicas and the rest

    async def fork(self, session: str, child: str) -> schema.Outcome:
        """Start a session on the history of another, see `turnout.Router.fork`."""
        return await self._call.post("fork", schema.Fork(session=session, child=child), schema.Outcome, again=False)

    async def hint(
        self,
        session: str,
        *,
        idle_s: float | None = None,
        expected_tokens: int | None = None,
        priority: int | None = None,
    ) -> schema.Outcome:
        """Say what is expected of a session, see `turnout.Router.hint`."""
        message = schema.Hint(session=session, idle_s=idle_s, expected_tokens=expected_tokens, priority=priority)
        return await self._call.post("hint", message, schema.Outcome)

    async def end_session(self, session: str, *, completed: bool = True) -> schema.Outcome:
        """End a session, see `turnout.Router.end_session`."""
        message = schema.EndSession(session=session, completed=completed)
        return await self._call.post("end_session", message, schema.Outcome)

    async def replicas(self) -> list[schema.ReplicaState]:
        """The fleet as it is now."""
        return (await self._call.get("replicas", schema.Replicas)).replicas

    async def add_replica(self, name: str, **fields: Any) -> schema.Outcome:  # noqa: ANN401 - checked by the struct
        """Add a replica, see `turnout.Replica`."""
        return await self._call.post("add_replica", schema.ReplicaSpec(name=name, **fields), schema.Outcome)

    async def set_replica(self, name: str, **fields: Any) -> schema.Outcome:  # noqa: ANN401 - checked by the struct
        """Give a replica a new configuration and open it again, see `turnout.Router.set_replica`."""
        return await self._call.post("set_replica", schema.ReplicaSpec(name=name, **fields), schema.Outcome)

    async def drain_replica(self, name: str) -> schema.Outcome:
        """Let a replica run dry, see `turnout.Router.drain_replica`."""
        return await self._call.post("drain_replica", schema.ReplicaName(name=name), schema.Outcome)

    async def remove_replica(self, name: str) -> schema.Outcome:
        """Drain a replica and let it go, see `turnout.Router.remove_replica`."""
        return await self._call.post("remove_replica", schema.ReplicaName(name=name), schema.Outcome, again=False)

    async def lose_replica(self, name: str) -> schema.Outcome:
        """Remove a replica that is gone, see `turnout.Router.lose_replica`."""
        return await self._call.post("lose_replica", schema.ReplicaName(name=name), schema.Outcome, again=False)

    async def weights_updated(self, version: int, *, mode: str = "flush", replica: str | None = None) -> schema.Outcome:
        """Note new weights, see `turnout.Router.weights_updated`."""
        fields = {"version": version, "mode": mode, "replica": replica}
        message = msgspec.convert(fields, schema.WeightsUpdated)
        return await self._call.post("weights_updated", message, schema.Outcome)

    async def observe(self, replica: str, **reports: Any) -> schema.Outcome:  # noqa: ANN401 - checked by the server
        """Note what an engine reports about itself, see `turnout.Router.observe`."""
        return await self._call.post("observe", schema.Observe(replica=replica, **reports), schema.Outcome)

    async def kv_events(
        self, replica: str, payload: bytes, *, sequence: int, rank: int | None = None
    ) -> schema.Outcome:
        """Apply a batch of cache events as the engine sent it, see `turnout.Router.kv_events`."""
        message = schema.KvEvents(replica=replica, payload=payload, sequence=sequence, rank=rank)
        return await self._call.post("kv_events", message, schema.Outcome)

    async def explain(self, turn: str) -> schema.Explanation:
        """Why a turn waits, or where it went, in words."""
        return await self._call.get("explain", schema.Explanation, turn=turn)

    async def stats(self) -> dict[str, int]:
        """Counters since the start and sizes now, see `turnout.Router.stats`."""
        return (await self._call.get("stats", schema.Stats)).stats

    async def view(self) -> schema.View:
        """The measured state of the fleet, all columns."""
        return await self._call.get("view", schema.View)

    async def info(self) -> schema.Info:
        """Version of the server, block size, names of replicas and workloads."""
        return await self._call.get("info", schema.Info)

    # Beats

    async def _run_beats(self) -> None:
        while True:
            await asyncio.sleep(self._beat_s)
            try:
                await self._beat()
            except TurnoutError:
                continue  # an answer that never came is no reason to stop: the next one may

    async def _beat(self) -> None:
        """Say that this client lives, and hear which of its turns do not."""
        if self.owner is None:
            return
        message = schema.Beat(owner=self.owner, since_seq=self._since_seq)
        answer = await self._call.post("beat", message, schema.BeatReply)
        for lost in answer.lost:
            self._since_seq = max(self._since_seq, lost.seq)
            turn = self.running.get(lost.turn)
            if turn is not None:
                turn.tell_lost()
        if answer.instance != self._instance:
            self._instance = answer.instance
            await asyncio.gather(*(self._name_again(turn) for turn in list(self.running.values())))

    async def _name_again(self, turn: RemoteTurn) -> None:
        """After a restart: the server wants to hear of every open turn. One that it has forgotten goes on untracked."""
        message = msgspec.structs.replace(turn.message, wait_s=0.0, keep=True)
        try:
            decision = await self._call.post("submit", message, schema.Decision)
            if decision.replica != turn.replica or not decision.placed:
                await self.abort(turn.id)
        except TurnoutError:
            return

    def _submit_message(self, prompt: Any, arguments: Mapping[str, Any]) -> schema.Submit:  # noqa: ANN401
        fields = _packed(prompt, arguments)
        if fields.get("turn") is None:
            # Named here, so that asking again asks for the same turn.
            self._count += 1
            fields["turn"] = f"{self._name}-{self._count}"
        fields.setdefault("owner", self.owner)
        return schema.Submit(**fields)


def _packed(prompt: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - as Router.submit
    fields = dict(arguments)
    fields["prompt"] = pack_tokens(prompt)
    fields["append"] = pack_tokens(fields.get("append"), "append")
    for name in ("candidates", "bias"):
        if fields.get(name) is not None:
            fields[name] = dict(fields[name]) if name == "bias" else list(fields[name])
    return fields


def _decided(item: schema.BatchItem) -> schema.Decision | TurnoutError:
    if item.decision is not None:
        return item.decision
    if item.error is not None:
        return error_of(item.error)
    return TurnoutError("turn: the server answered neither a decision nor an error")
