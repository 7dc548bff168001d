"""One request's life: held, sent to an engine, passed back; whatever happens, its turn is ended exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import aiohttp
import msgspec

from turnout.errors import InvalidTokens, RouterClosed, TurnEnded, TurnoutError
from turnout.server import headers as crossing
from turnout.server.dialects import parse
from turnout.server.explain import explain
from turnout.server.reading import Reading
from turnout.server.replies import MOST_BODY_BYTES, status_of
from turnout.server.upstream import MOST_ANSWER_BYTES, Failure, error_body, failure_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from multidict import CIMultiDict
    from starlette.types import Receive, Scope, Send

    from turnout import Decision
    from turnout.server.dialects import Dialect
    from turnout.server.outputs import Output
    from turnout.server.proxy import Proxy
    from turnout.server.tokens import PromptTokens

COMMENT: Final = b": held\n\n"
JSON_HEADERS: Final = [(b"content-type", b"application/json")]
EVENT_HEADERS: Final = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
BAD_REQUEST: Final = 400
SERVER_ERROR: Final = 500
NOT_IMPLEMENTED: Final = 501


class _Refused(Exception):
    """The request is answered with an error.

    Args:
        status: HTTP status.
        message: What was wrong.
        kind: Its type.
        headers: Sent along.
    """

    def __init__(self, status: int, message: str, kind: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.headers = status, message, kind, list(headers)


class Exchange:
    """One request and its answer. It watches its own turn, as `turnout.aio` has it.

    Args:
        proxy: What it belongs to.
        dialect: How it speaks.
        scope: Of ASGI.
        receive: Of ASGI.
        send: Of ASGI.
    """

    def __init__(self, proxy: Proxy, dialect: Dialect, scope: Scope, receive: Receive, send: Send) -> None:
        self.loop = asyncio.get_running_loop()
        self._proxy, self._dialect = proxy, dialect
        self._scope, self._receive, self._send = scope, receive, send
        self._task: asyncio.Task[Any] | None = None
        self._turn = f"p-{secrets.token_hex(8)}"
        self._open = False
        self._left = False
        self._lost: Decision | None = None
        self._started = False
        self._passed = False
        self._answered = False
        self._commenting: asyncio.Task[None] | None = None
        self._prompt: PromptTokens | None = None
        self._output: Output | None = None
        self._samples = 1
        self._text_ids: list[int] | None = None
        self._infer: tuple[str | None, list[str]] | None = None

    # Life

    async def run(self) -> None:
        """Serve it. Returns when it is answered, or when its caller has left."""
        self._task = asyncio.current_task()
        body = await self._read_body()
        if body is None:
            return
        leaving = asyncio.create_task(self._watch_caller())
        try:
            await self._serve(body)
        except asyncio.CancelledError:
            if not self._left or self._task is None:
                raise
            self._task.uncancel()
            self._proxy.counts["left"] += 1
        except _Refused as refused:
            await self._refuse(refused.status, refused.message, refused.kind, refused.headers)
        except TurnoutError as error:
            await self._refuse(status_of(error), str(error), type(error).__name__)
        finally:
            leaving.cancel()
            if self._open:
                self._abort()

    def tell_lost(self, decision: Decision) -> None:
        """Note that the turn is lost while it runs, and stop working on it: called by the router's shell."""
        self._open = False
        if self._lost is None and not self._answered and self._task is not None:
            self._lost = decision
            self._task.cancel()

    async def _read_body(self) -> bytes | None:
        """The body; None when the caller left before its end, or was refused."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size > MOST_BODY_BYTES:
                await self._refuse(413, f"body: accepted is at most {MOST_BODY_BYTES} bytes", "InvalidArgument")
                return None
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _watch_caller(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        # The same word comes when the answer is complete.
        if not self._answered and self._task is not None:
            self._left = True
            self._task.cancel()

    async def _serve(self, raw: bytes) -> None:
        proxy, pairs = self._proxy, self._scope["headers"]
        asked = self._dialect.read(parse(raw))
        self._samples = asked.samples
        who = proxy.identify(crossing.lower(pairs), asked.body)
        await proxy.models.look()
        engines = proxy.models.serving(asked.model)
        if not engines:
            raise _Refused(503, "no engine has joined", "no_replica", self._retry_after())
        alive = proxy.alive(engines)
        prompt = self._prompt = await proxy.tokens.of(asked, alive)
        if self._dialect.ask_output is not None and proxy.config.ask_output:
            raw = msgspec.json.encode(self._dialect.ask_output(asked.body))
        arguments = proxy.arguments(asked, who, prompt, engines)
        sent = crossing.to_engine(pairs, token=proxy.own_token, api_key=proxy.config.engine_api_key)
        query = self._scope.get("query_string", b"").decode("latin-1")
        path = f"{self._dialect.path}?{query}" if query else self._dialect.path
        if arguments["session"] is None and proxy.config.infer_sessions:
            self._infer = (asked.model, alive)
        deadline_s = time.monotonic() + proxy.config.wait_s
        failure = None
        for attempt in range(proxy.config.attempts):
            decision = await self._place(prompt, arguments, attempt, deadline_s, stream=asked.stream)
            if decision is None:
                break
            proxy.counts["attempts"] += 1
            failure = await self._attempt(decision, raw, sent, path, stream=asked.stream)
            if failure is None:
                return
            if not failure.elsewhere or attempt + 1 == proxy.config.attempts:
                break
            # The next attempt takes this one's place, and is kept off its replica: so it is not aborted before.
            proxy.counts["retries"] += 1
            arguments["candidates"] = proxy.candidates(engines)
        if self._open:
            self._abort()
        if failure is not None:
            await self._fail(failure)

    # Waiting

    async def _place(
        self, prompt: PromptTokens, arguments: dict[str, Any], attempt: int, deadline_s: float, *, stream: bool
    ) -> Decision | None:
        """Wait until it is placed; None for a retry that finds no place in time."""
        began_s = time.monotonic()
        self._lost = None
        ticking = self.loop.call_later(self._proxy.config.comment_s, self._begin_comments) if stream else None
        try:
            decision = await self._proxy.routed.place(
                prompt.tokens,
                turn=self._turn,
                attempt=attempt,
                wait_s=max(0.0, deadline_s - began_s),
                watcher=self,
                **arguments,
            )
        except asyncio.CancelledError:
            lost: Decision | None = self._lost
            if lost is None or self._left or self._task is None:
                raise
            self._task.uncancel()
            decision = lost
        except TurnEnded as ended:
            raise _Refused(409, str(ended), "TurnEnded") from ended
        except RouterClosed as closed:
            raise _Refused(503, str(closed), "RouterClosed", self._retry_after()) from closed
        finally:
            if ticking is not None:
                ticking.cancel()
                await self._end_comments()
        self._open = decision.placed
        if decision.placed:
            return decision
        if attempt:
            return None
        words = explain(decision, time.monotonic() - began_s)
        self._proxy.counts[decision.status] += 1
        if decision.held or decision.status == "expired" or decision.reason == "line_full":
            status = 503 if decision.reason == "line_full" else 429
            raise _Refused(status, words, decision.reason, self._retry_after())
        if decision.reason == "too_large":
            raise _Refused(400, words, "context_length_exceeded")
        raise _Refused(409 if decision.reason == "session_ended" else 503, words, decision.reason, self._retry_after())

    def _retry_after(self) -> list[tuple[bytes, bytes]]:
        return [(b"retry-after", str(math.ceil(self._proxy.config.retry_after_s)).encode())]

    def _begin_comments(self) -> None:
        self._commenting = asyncio.create_task(self._comment())

    async def _comment(self) -> None:
        """Keep the caller's connection alive while it is held."""
        if not self._started:
            await self._start(200, EVENT_HEADERS, None)
        while True:
            await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})
            await asyncio.sleep(self._proxy.config.comment_s)

    async def _end_comments(self) -> None:
        commenting, self._commenting = self._commenting, None
        if commenting is not None:
            commenting.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await commenting

    # At an engine

    async def _attempt(
        self, decision: Decision, raw: bytes, sent: CIMultiDict[str], path: str, *, stream: bool
    ) -> Failure | None:
        """Ask one engine; None when the caller has its answer, be it whole or broken off after its first byte."""
        name = decision.replica or ""
        try:
            return await self._ask(name, raw, sent, path, stream=stream)
        except asyncio.CancelledError:
            lost = self._lost
            if lost is None or self._left or self._task is None:
                raise
            self._task.uncancel()
            failure = Failure(502, explain(lost, 0.0), elsewhere=lost.reason in {"replica_lost", "unconfirmed"})
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            failure = failure_of(error, name)
        self._proxy.counts["broken"] += 1
        if not self._passed:
            return failure
        self._abort()
        await self._break_off(failure)
        return None

    async def _ask(self, name: str, raw: bytes, sent: CIMultiDict[str], path: str, *, stream: bool) -> Failure | None:
        output = self._output = self._dialect.output()
        engine = self._proxy.fleet.engines().get(name)
        if engine is None:
            return Failure(502, f"engine {name} has left", elsewhere=True)
        async with self._proxy.post(engine.url + path, raw, sent) as answer:
            status = answer.status
            if stream and status < BAD_REQUEST and answer.content_type == "text/event-stream":
                await self._relay(answer, name, output)
                return None
            body = await _whole(answer)
            kept = crossing.to_caller(answer.raw_headers)
            if status >= SERVER_ERROR and status != NOT_IMPLEMENTED:
                return Failure(status, f"engine {name} answered {status}", elsewhere=True, body=body, headers=kept)
        output.read(body)
        await self._finish(good=status < BAD_REQUEST)
        await self._reply(status, body, kept, name)
        return None

    async def _relay(self, answer: aiohttp.ClientResponse, name: str, output: Output) -> None:
        """Pass events on as they come, byte for byte, and read them beside."""
        reading = Reading(output, cumulative=self._dialect.cumulative)
        kept = crossing.to_caller(answer.raw_headers)
        async for chunk in answer.content.iter_any():
            count = reading.feed(chunk, now_s=time.monotonic())
            if count is not None:
                self._proxy.routed.progress(self._turn, count)
            if reading.done and self._open:
                # Before its last event is passed on: the caller's next turn may come at once.
                reading.end()
                await self._finish(good=True)
            if not self._started:
                await self._start(answer.status, kept, name)
            self._passed = True
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        if self._open:
            reading.end()
            await self._finish(good=output.finished)
        if not self._started:
            await self._start(answer.status, kept, name)
        self._passed = self._answered = True
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    # The books

    async def _finish(self, *, good: bool) -> None:
        """The engine has answered: complete the turn, or abort it where the answer is none."""
        output = self._output
        if not good or output is None or output.failed or output.aborted:
            self._abort()
            return
        await self._learn_ids(output)
        self._open = False
        ids, count = self._generated()
        cached = _cached(output, self._prompt)
        routed = self._proxy.routed
        try:
            routed.complete(self._turn, ids, output_tokens=count, cached_tokens=cached)
        except InvalidTokens:
            routed.complete(self._turn, output_tokens=output.tokens(), cached_tokens=cached)
        self._proxy.counts["completed"] += 1

    def _abort(self) -> None:
        """End the turn unfinished; what came of it stays its history."""
        self._open = False
        ids, count = self._generated()
        reason: Literal["cancelled", "error"] = "cancelled" if self._left else "error"
        self._proxy.counts["aborted"] += 1
        try:
            self._proxy.routed.abort(self._turn, ids, output_tokens=count, reason=reason)
        except InvalidTokens:
            self._proxy.routed.abort(self._turn, reason=reason)

    async def _learn_ids(self, output: Output) -> None:
        """Where the session was not named, the next turn is known by what stands in this one: ids of the answer too."""
        text = output.text() if self._samples == 1 else None
        if self._infer is not None and self._prompt is not None and self._prompt.ids and text and not output.ids():
            self._text_ids = await self._proxy.tokens.of_answer(text, *self._infer)

    def _generated(self) -> tuple[Any, int | None]:
        """(ids or units, count) of the answer so far: one of them, as exact as the answer allows."""
        output, prompt = self._output, self._prompt
        if output is None or prompt is None:
            return None, None
        if self._samples > 1:
            # No sample continues the session: how many tokens they were is all that counts.
            return None, output.tokens()
        if prompt.ids:
            ids = output.ids() or self._text_ids
            return (ids, None) if ids else (None, output.tokens())
        text = output.text()
        units = None if text is None else prompt.output_units(text)
        return (None, output.tokens()) if units is None or not len(units) else (units, None)

    # Answers

    async def _start(self, status: int, kept: crossing.Pairs, name: str | None) -> None:
        own = [(b"x-turnout-turn", self._turn.encode())]
        if name is not None:
            own.append((b"x-turnout-replica", name.encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": [*kept, *own]})
        self._started = True

    async def _reply(self, status: int, body: bytes, kept: crossing.Pairs, name: str | None) -> None:
        """A whole answer; within a stream that has begun with comments, as an event."""
        if self._started:
            await self._end_stream(b"data: " + body.replace(b"\n", b" ") + b"\n\n")
            return
        await self._start(status, [*kept, (b"content-length", str(len(body)).encode())], name)
        self._passed = self._answered = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _end_stream(self, last: bytes) -> None:
        self._answered = True
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def _refuse(self, status: int, message: str, kind: str, extra: Iterable[tuple[bytes, bytes]] = ()) -> None:
        self._proxy.counts["refused"] += 1
        await self._reply(status, error_body(message, kind, status), [*JSON_HEADERS, *extra], None)

    async def _fail(self, failure: Failure) -> None:
        """No engine served it: the caller gets the last one's own words where there are some."""
        self._proxy.counts["failed"] += 1
        if failure.body is not None:
            await self._reply(failure.status, failure.body, failure.headers, None)
        else:
            body = error_body(failure.words, "engine_failed", failure.status)
            await self._reply(failure.status, body, JSON_HEADERS, None)

    async def _break_off(self, failure: Failure) -> None:
        """The engine is gone in the middle of a stream: say so in an event of its own, and end it."""
        body = error_body(failure.words, "engine_failed", failure.status)
        await self._end_stream(b"\n\ndata: " + body + b"\n\n")


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > MOST_ANSWER_BYTES:
            raise aiohttp.ClientPayloadError("the answer is too long")
        parts.append(part)
    return b"".join(parts)


def _cached(output: Output, prompt: PromptTokens | None) -> int | None:
    """Prompt tokens that were cached. Units are no tokens: their share is taken."""
    cached, total = output.cached_tokens, output.prompt_tokens
    if prompt is None or prompt.ids or cached is None or not total:
        return cached
    return len(prompt.tokens) * cached // total
