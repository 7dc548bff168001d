"""From typed errors and structs to HTTP answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from turnout import errors
from turnout.server import binary, schema

if TYPE_CHECKING:
    from starlette.requests import Request

STATUS: Final[dict[type[errors.TurnoutError], int]] = {
    errors.UnknownReplica: 404,
    errors.UnknownWorkload: 404,
    errors.UnknownSession: 404,
    errors.UnknownTurn: 404,
    errors.HistoryMismatch: 409,
    errors.TurnConflict: 409,
    errors.TurnEnded: 409,
    errors.RouterClosed: 503,
    errors.InternalError: 503,
}
"""Every other typed error is the caller's: 400."""

MOST_BODY_BYTES: Final = 64 << 20
"""4 million tokens as numbers, 16 million packed."""


class Refused(Exception):
    """A request that is refused before any argument is read.

    Args:
        status: HTTP status.
        message: What was wrong.
        argument: `Content-Type` or `body`.
        value: The refused value.
        accepted: What is accepted.
    """

    def __init__(self, status: int, message: str, argument: str, value: str, accepted: str) -> None:
        super().__init__(message)
        self.status = status
        self.error = schema.Error(
            type="InvalidArgument", message=message, argument=argument, value=value, accepted=accepted
        )


def error_of(error: errors.TurnoutError) -> schema.Error:
    """A typed error as a message.

    Args:
        error: The error.

    Returns:
        Its name and attributes.
    """
    return schema.Error(
        type=type(error).__name__,
        message=str(error),
        argument=error.argument,
        value=error.value,
        accepted=error.accepted,
    )


def status_of(error: errors.TurnoutError) -> int:
    """The HTTP status of a typed error.

    Args:
        error: The error.

    Returns:
        400, 404, 409 or 503.

    Example:
        >>> status_of(errors.TurnConflict("turn: used before"))
        409
    """
    return STATUS.get(type(error), 400)


def reply(message: Any, media: str, status: int = 200) -> Response:  # noqa: ANN401 - any struct
    """An answer in one of the two forms.

    Args:
        message: A struct.
        media: `JSON` or `MSGPACK`.
        status: HTTP status.

    Returns:
        The response.
    """
    return Response(binary.encode(message, media), status_code=status, media_type=media)


def answer_media(request: Request) -> str:
    """The form of the answer: what `Accept` names, else that of the request.

    Args:
        request: The request.

    Returns:
        `JSON` or `MSGPACK`.
    """
    accept = request.headers.get("accept", "")
    if "msgpack" in accept:
        return binary.MSGPACK
    if binary.JSON in accept:
        return binary.JSON
    return binary.MSGPACK if binary.media_of(request.headers.get("content-type")) == binary.MSGPACK else binary.JSON


async def read_message(request: Request, codec: binary.Codec) -> Any:  # noqa: ANN401 - a struct of the codec
    """Read the body of a request.

    Args:
        request: The request.
        codec: What it must hold.

    Returns:
        The struct.

    Raises:
        Refused: The body is too long, or of another content type: a browser's form must never reach the router.
        InvalidArgument: It is no such message.
    """
    media = binary.media_of(request.headers.get("content-type"))
    if media not in binary.ACCEPTED:
        accepted = " or ".join(binary.ACCEPTED)
        raise Refused(415, f"Content-Type: got {media!r}, accepted is {accepted}", "Content-Type", media, accepted)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BODY_BYTES:
            accepted = f"at most {MOST_BODY_BYTES} bytes"
            raise Refused(413, f"body: got more than {MOST_BODY_BYTES} bytes", "body", f"> {MOST_BODY_BYTES}", accepted)
        parts.append(part)
    return codec.decode(b"".join(parts), media)
