"""The decision API: every event of the router over HTTP, below `/turnout/v1/`."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.routing import Route

from turnout import Replica, __version__
from turnout.errors import InvalidArgument, TurnConflict, TurnoutError
from turnout.server import binary, schema
from turnout.server.fleet_json import replicas_of, view_of
from turnout.server.openapi import document
from turnout.server.owners import SILENCE_S, Owners
from turnout.server.recent import Recent
from turnout.server.replies import Refused, answer_media, error_of, read_message, reply, status_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    import turnout
    from turnout.aio import AsyncRouter

PREFIX: Final = "/turnout/v1/"
Timed = Callable[[str, float], None]
Handler = Callable[[Any, "Request"], Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that can be asked.

    Attributes:
        name: Last part of the path; that of the router's method.
        takes: The message; None = GET without a body.
        gives: The answer.
        says: What it does, in a sentence.
        query: Names of required query parameters, of a GET.
    """

    name: str
    takes: type[schema.Message] | None
    gives: type
    says: str
    query: tuple[str, ...] = ()


OPERATIONS: Final = (
    Operation("submit", schema.Submit, schema.Decision, "Decide about a turn; wait up to wait_s while it is held."),
    Operation("submit_batch", schema.SubmitBatch, schema.Batch, "Decide about many turns, in order; none waits."),
    Operation("choose", schema.Choose, schema.Decision, "Choose a replica for a turn that is not tracked."),
    Operation("peek", schema.Peek, schema.Holders, "Which replicas hold a prefix of a prompt or a session."),
    Operation("progress", schema.Progress, schema.Outcome, "Report output so far: first token, then every 512 or 1 s."),
    Operation("complete", schema.End, schema.Outcome, "End a turn: prompt and output become history."),
    Operation("abort", schema.Abort, schema.Outcome, "End a held or placed turn early."),
    Operation("fork", schema.Fork, schema.Outcome, "Start a session on the history of another."),
    Operation("hint", schema.Hint, schema.Outcome, "Say what is expected of a session: gap, output, priority."),
    Operation("end_session", schema.EndSession, schema.Outcome, "End a session; its open turns are aborted."),
    Operation("beat", schema.Beat, schema.BeatReply, "An owner lives; answers which of its turns were lost."),
    Operation("owner_lost", schema.Owner, schema.Outcome, "An owner is gone: end its sessions."),
    Operation("replicas", None, schema.Replicas, "The fleet as it is now."),
    Operation("add_replica", schema.ReplicaSpec, schema.Outcome, "Add a replica."),
    Operation("set_replica", schema.ReplicaSpec, schema.Outcome, "Give a replica a new configuration; opens it again."),
    Operation("drain_replica", schema.ReplicaName, schema.Outcome, "Let a replica run dry."),
    Operation("remove_replica", schema.ReplicaName, schema.Outcome, "Drain a replica and let it go."),
    Operation("lose_replica", schema.ReplicaName, schema.Outcome, "Remove a replica that is gone."),
    Operation("weights_updated", schema.WeightsUpdated, schema.Outcome, "Note new weights."),
    Operation("observe", schema.Observe, schema.Outcome, "Note what an engine reports about itself."),
    Operation("kv_events", schema.KvEvents, schema.Outcome, "Apply a batch of cache events of an engine."),
    Operation("stats", None, schema.Stats, "Counters since the start, and sizes now."),
    Operation("view", None, schema.View, "The measured state of the fleet, all columns."),
    Operation("explain", None, schema.Explanation, "Why a turn waits, or where it went.", ("turn",)),
    Operation("info", None, schema.Info, "Version, block size, names of replicas and workloads."),
)
"""Routes, OpenAPI document and documentation follow this table."""


class Decisions:
    """The handlers of the decision API.

    Args:
        routed: The asynchronous router.
        timed: Called with the name of an operation and the time that the router took, s, waiting not included.
        silence_s: Silence after which an owner is gone, s.
    """

    def __init__(self, routed: AsyncRouter, *, timed: Timed | None = None, silence_s: float = SILENCE_S) -> None:
        self.routed = routed
        self.recent = Recent(routed)
        self.owners = Owners(routed, silence_s)
        self._timed = timed

    def routes(self) -> list[Route]:
        """The routes.

        Returns:
            One per operation, and the OpenAPI document.
        """
        routes = [self._route(operation) for operation in OPERATIONS]
        opened = binary.encode(document(PREFIX, OPERATIONS, __version__), binary.JSON)

        async def openapi(_: Request) -> Response:
            return Response(opened, media_type=binary.JSON)

        return [*routes, Route(f"{PREFIX}openapi.json", openapi, methods=["GET"])]

    def _route(self, operation: Operation) -> Route:
        handler: Handler = getattr(self, f"_{operation.name}")
        codec = None if operation.takes is None else binary.Codec(operation.takes)

        async def endpoint(request: Request) -> Response:
            media = answer_media(request)
            try:
                message = None if codec is None else await read_message(request, codec)
                begun = time.perf_counter()
                answer = handler(message, request)
                if self._timed is not None:
                    self._timed(operation.name, time.perf_counter() - begun)
                return reply(await answer if isinstance(answer, Awaitable) else answer, media)
            except Refused as refused:
                return reply(schema.ErrorReply(error=refused.error), media, refused.status)
            except TurnoutError as error:
                return reply(schema.ErrorReply(error=error_of(error)), media, status_of(error))

        return Route(PREFIX + operation.name, endpoint, methods=["GET" if codec is None else "POST"])

    def _decide(self, message: schema.Turn) -> tuple[turnout.Decision, dict[str, Any]]:
        """Submit; and the arguments with which to ask again."""
        arguments = _submit_arguments(message)
        try:
            decision = self.routed.submit(**arguments)
        except TurnConflict:
            # It left the line while nobody waited for it; the router only knows that it has ended.
            ended = self.recent.ended(arguments["turn"], message.attempt)
            if ended is None:
                raise
            return ended, arguments
        if message.owner is not None:
            self.owners.heard(message.owner, decision.turn if decision.placed or decision.held else None)
        return decision, arguments

    def _submit(self, message: schema.Submit, request: Request) -> schema.Decision | Awaitable[schema.Decision]:
        decision, arguments = self._decide(message)
        if decision.held and message.wait_s > 0:
            return self._wait(arguments, message, request)
        return schema.decision_of(decision)

    async def _wait(self, arguments: dict[str, Any], message: schema.Submit, request: Request) -> schema.Decision:
        """Wait for a held turn as long as its caller does."""
        turn = arguments["turn"]
        waiting = asyncio.ensure_future(self.routed.place(wait_s=message.wait_s, keep=True, **arguments))
        leaving = asyncio.ensure_future(_left(request))
        here = False
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            here = not leaving.done()
            # Nobody reads the answer to a caller that has left; what it says is true all the same.
            return schema.decision_of(await waiting if here else self.routed.submit(**arguments))
        finally:
            for task in (waiting, leaving):
                task.cancel()
            await asyncio.gather(waiting, leaving, return_exceptions=True)
            if not here and not message.keep:
                self.routed.abort(turn)
                self.owners.ended(turn)

    def _submit_batch(self, message: schema.SubmitBatch, _: Request) -> schema.Batch:
        items = []
        for turn in message.turns:
            try:
                items.append(schema.BatchItem(decision=schema.decision_of(self._decide(turn)[0])))
            except TurnoutError as error:
                items.append(schema.BatchItem(error=error_of(error)))
        return schema.Batch(decisions=items)

    def _choose(self, message: schema.Choose, _: Request) -> schema.Decision:
        return schema.decision_of(self.routed.choose(**_prompt_arguments(message)))

    def _peek(self, message: schema.Peek, _: Request) -> schema.Holders:
        prompt = binary.unpack_tokens(message.prompt, message.token_bytes, "prompt")
        found = self.routed.peek(prompt, session=message.session, namespace=message.namespace)
        return schema.Holders(holders=[schema.Holder(replica=name, cached_tokens=cached) for name, cached in found])

    def _progress(self, message: schema.Progress, _: Request) -> schema.Outcome:
        return schema.outcome_of(self.routed.progress(message.turn, message.output_tokens, served_by=message.served_by))

    def _complete(self, message: schema.End, _: Request) -> schema.Outcome:
        return self._end(self.routed.complete, message)

    def _abort(self, message: schema.Abort, _: Request) -> schema.Outcome:
        return self._end(self.routed.abort, message, reason=message.reason, retry=message.retry)

    def _end(self, event: Callable[..., turnout.Outcome], message: schema.End, **more: Any) -> schema.Outcome:  # noqa: ANN401 - of abort
        if message.output is not None and message.outputs is not None:
            accepted = "output, or outputs of several samples"
            raise InvalidArgument(f"outputs: got output too, accepted is {accepted}", "outputs", "output too", accepted)
        output = binary.unpack_tokens(message.output, message.token_bytes, "output")
        if message.outputs is not None:
            output = [binary.unpack_tokens(sample, message.token_bytes, "outputs") for sample in message.outputs]
        names = ("output_tokens", "prompt_tokens", "cached_tokens", "served_by", "keep")
        outcome = event(message.turn, output, **{name: getattr(message, name) for name in names}, **more)
        self.owners.ended(message.turn)
        return schema.outcome_of(outcome)

    def _fork(self, message: schema.Fork, _: Request) -> schema.Outcome:
        return schema.outcome_of(self.routed.fork(message.session, message.child))

    def _hint(self, message: schema.Hint, _: Request) -> schema.Outcome:
        expected = {name: getattr(message, name) for name in ("idle_s", "expected_tokens", "priority")}
        return schema.outcome_of(self.routed.hint(message.session, **expected))

    def _end_session(self, message: schema.EndSession, _: Request) -> schema.Outcome:
        return schema.outcome_of(self.routed.end_session(message.session, completed=message.completed))

    def _beat(self, message: schema.Beat, _: Request) -> schema.BeatReply:
        return self.owners.beat(message.owner, message.since_seq)

    def _owner_lost(self, message: schema.Owner, _: Request) -> schema.Outcome:
        return schema.outcome_of(self.owners.gone(message.owner))

    def _replicas(self, _: None, __: Request) -> schema.Replicas:
        return schema.Replicas(replicas=replicas_of(self.routed.router.view()))

    def _add_replica(self, message: schema.ReplicaSpec, _: Request) -> schema.Outcome:
        return schema.outcome_of(self.routed.add_replica(_replica(message)))

    def _set_replica(self, message: schema.ReplicaSpec, _: Request) -> schema.Outcome:
        return schema.outcome_of(self.routed.set_replica(_replica(message)))

    def _drain_replica(self, message: schema.ReplicaName, _: Request) -> schema.Outcome:
        return schema.outcome_of(self.routed.drain_replica(message.name))

    def _remove_replica(self, message: schema.ReplicaName, _: Request) -> schema.Outcome:
        return schema.outcome_of(self.routed.remove_replica(message.name))

    def _lose_replica(self, message: schema.ReplicaName, _: Request) -> schema.Outcome:
        return schema.outcome_of(self.routed.lose_replica(message.name))

    def _weights_updated(self, message: schema.WeightsUpdated, _: Request) -> schema.Outcome:
        outcome = self.routed.weights_updated(message.version, mode=message.mode, replica=message.replica)
        return schema.outcome_of(outcome)

    def _observe(self, message: schema.Observe, _: Request) -> schema.Outcome:
        fields = ("kv_fraction", "running", "waiting", "preemptions_total", "kv_tokens")
        reports = {name: getattr(message, name) for name in fields}
        return schema.outcome_of(self.routed.observe(message.replica, **reports))

    def _kv_events(self, message: schema.KvEvents, _: Request) -> schema.Outcome:
        outcome = self.routed.kv_events(message.replica, message.payload, sequence=message.sequence, rank=message.rank)
        return schema.outcome_of(outcome)

    def _stats(self, _: None, __: Request) -> schema.Stats:
        return schema.Stats(stats=self.routed.router.stats())

    def _view(self, _: None, __: Request) -> schema.View:
        return view_of(self.routed.router.view())

    def _explain(self, _: None, request: Request) -> schema.Explanation:
        turn = request.query_params.get("turn")
        if not turn:
            raise InvalidArgument("turn: got nothing, accepted is ?turn=<id>", "turn", "", "?turn=<id>")
        return self.recent.explain(turn)

    def _info(self, _: None, __: Request) -> schema.Info:
        router = self.routed.router
        return schema.Info(
            version=__version__,
            instance=self.owners.instance,
            block_tokens=router.block_tokens,
            silence_s=self.owners.silence_s,
            replicas=list(router.replicas),
            workloads=list(router.workloads),
        )


def decision_routes(
    routed: AsyncRouter, *, timed: Timed | None = None, silence_s: float = SILENCE_S
) -> Sequence[Route]:
    """The routes of the decision API.

    Args:
        routed: The asynchronous router.
        timed: Called with the name of an operation and the time that the router took, s: `Metrics.timed`.
        silence_s: Silence after which an owner is gone, s.

    Returns:
        Routes below `/turnout/v1/`.
    """
    return Decisions(routed, timed=timed, silence_s=silence_s).routes()


async def _left(request: Request) -> None:
    """Return when the caller goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _prompt_arguments(message: schema.Prompted) -> dict[str, Any]:
    return {
        "prompt": binary.unpack_tokens(message.prompt, message.token_bytes, "prompt"),
        "append": binary.unpack_tokens(message.append, message.token_bytes, "append"),
        "base_tokens": message.base_tokens,
        "prompt_tokens": message.prompt_tokens,
        "session": message.session,
        "workload": message.workload,
        "namespace": message.namespace,
        "max_new_tokens": message.max_new_tokens,
        "expected_tokens": message.expected_tokens,
        "candidates": message.candidates,
        "avoid": message.avoid,
        "bias": message.bias,
    }


def _submit_arguments(message: schema.Turn) -> dict[str, Any]:
    return {
        **_prompt_arguments(message),
        # Named here when the caller does not: a wait asks again for the same turn.
        "turn": message.turn if message.turn is not None else f"h-{secrets.token_hex(8)}",
        "attempt": message.attempt,
        "parent": message.parent,
        "samples": message.samples,
        "group": message.group,
        "group_size": message.group_size,
        "priority": message.priority,
        "at": message.at,
        "owner": message.owner,
        "hold": message.hold,
        "deadline_s": message.deadline_s,
    }


def _replica(message: schema.ReplicaSpec) -> Replica:
    rates = {
        name: value
        for name in ("prefill_tokens_per_s", "decode_s_per_kv_token")
        if isinstance(value := getattr(message, name), float)
    }
    kv_tokens = float("inf") if message.kv_tokens is None else message.kv_tokens
    return Replica(message.name, kv_tokens=kv_tokens, block_tokens=message.block_tokens, **rates)
