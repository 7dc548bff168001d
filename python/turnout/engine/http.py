"""HTTP as the faces share it: bodies in, JSON and event streams out, and requests that end when the client leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.responses import Response

from turnout.errors import TurnoutError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

T = TypeVar("T")
_ENCODER = msgspec.json.Encoder()
CLIENT_GONE = 499


class RequestError(Exception):
    """A request cannot be served.

    Args:
        message: What was wrong.
        param: The field, where there is one.
        status: HTTP status.
    """

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.status = message, param, status


def json(content: Any, status: int = 200) -> Response:  # noqa: ANN401 - whatever JSON can say
    """Make a JSON response.

    Args:
        content: What it says.
        status: HTTP status.

    Returns:
        The response.
    """
    return Response(_ENCODER.encode(content), status, media_type="application/json")


def error(message: str, *, param: str | None = None, status: int = 400) -> Response:
    """Make an error of the OpenAI shape.

    Args:
        message: What was wrong.
        param: The field, where there is one.
        status: HTTP status.

    Returns:
        The response.
    """
    kind = "NotFoundError" if status == 404 else "BadRequestError" if status < 500 else "InternalServerError"  # noqa: PLR2004 - HTTP
    return json({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)


async def on_error(_: Request, raised: Exception) -> Response:
    """Answer what the faces raise.

    Args:
        raised: A `RequestError` or a `TurnoutError`.

    Returns:
        The response.
    """
    if isinstance(raised, RequestError):
        return error(raised.message, param=raised.param, status=raised.status)
    return error(str(raised), param=raised.argument if isinstance(raised, TurnoutError) else None)


async def body(request: Request, shape: type[T]) -> T:
    """Read a JSON body.

    Args:
        request: The request.
        shape: A msgspec type.

    Returns:
        The body.

    Raises:
        RequestError: It has another shape.
    """
    raw = await request.body()
    try:
        return msgspec.json.decode(raw or b"{}", type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as refused:
        raise RequestError(f"body: {refused}") from refused


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Do some work unless the client leaves first; then it is cancelled.

    Args:
        receive: The channel of the request, whose body has been read.
        work: The work.

    Returns:
        Its result, or None when the client has left.
    """
    doing, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        doing.cancel()
        gone.cancel()
        await asyncio.gather(doing, gone, return_exceptions=True)


async def answer(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Answer with what some work makes, unless the client leaves first.

    Args:
        request: The request, whose body has been read.
        work: Makes the response.

    Returns:
        The response.
    """
    made = await while_connected(request.receive, work)
    return made if made is not None else Response(status_code=CLIENT_GONE)


class EventStream(Response):
    """Server-sent events, and `[DONE]`.

    Args:
        source: Contents of the events.
        end: Called at the end, also when the client leaves before it.
    """

    media_type = "text/event-stream"

    def __init__(self, source: AsyncGenerator[Any, None], end: Callable[[], None]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._source, self._end = source, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - the ASGI signature
        """Send the events.

        Args:
            scope: Of ASGI.
            receive: Of ASGI.
            send: Of ASGI.
        """
        try:
            await while_connected(receive, self._send(send))
        finally:
            self._end()
            await self._source.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for content in self._source:
            data = b"data: " + _ENCODER.encode(content) + b"\n\n"
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})
