"""One call of the decision API: packed, sent, sent again where that is safe, and its errors made typed again."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import aiohttp
import msgspec

from turnout import errors
from turnout.server import schema
from turnout.server.binary import MSGPACK

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

PREFIX: Final = "/turnout/v1/"
ANSWER_S: Final = 30.0
"""Longest time for an answer, beside what a turn waits by request, s."""
CONNECT_S: Final = 10.0
KEEP_ALIVE_S: Final = 4.0
"""Shorter than the server keeps an idle connection, so that none is used that it is about to close, s."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
OK: Final = 200
SERVER_ERRORS: Final = 500

_ERROR: Final = msgspec.msgpack.Decoder(schema.ErrorReply)
_ERROR_JSON: Final = msgspec.json.Decoder(schema.ErrorReply)


def error_of(error: schema.Error) -> errors.TurnoutError:
    """The typed error that a message names.

    Args:
        error: The message.

    Returns:
        The error, to be raised.

    Example:
        >>> error_of(schema.Error(type="UnknownReplica", message="name: got 'r9'", argument="name"))
        UnknownReplica("name: got 'r9'", 'name', '', '')
    """
    kind = getattr(errors, error.type, None)
    if not (isinstance(kind, type) and issubclass(kind, errors.TurnoutError)):
        kind = errors.TurnoutError
    return kind(error.message, error.argument, error.value, error.accepted)


class _Away(Exception):
    """Nobody answered, or only somebody in between; `sent` = the server may have got the request."""

    def __init__(self, says: str, *, sent: bool) -> None:
        super().__init__(says)
        self.sent = sent


class _Request(NamedTuple):
    """What is sent; the server may think for `wait_s` before it answers."""

    method: str
    name: str
    body: bytes | None = None
    query: Mapping[str, str] | None = None
    wait_s: float = 0.0


class Caller:
    """Sends requests to one server.

    Args:
        url: Its address.
        token: What it wants as a bearer token; None = nothing.
        patience_s: How long a server that is away is waited for, s.
    """

    def __init__(self, url: str, token: str | None, patience_s: float) -> None:
        self.url = url.rstrip("/")
        self.patience_s = patience_s
        headers = {"Content-Type": MSGPACK, "Accept": MSGPACK}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        # Every turn that waits has a connection of its own, so their number is not bounded here.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        self._session = aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout)
        self._decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {}

    async def close(self) -> None:
        """End the connections."""
        await self._session.close()

    async def post(self, name: str, message: schema.Message, gives: type[T], *, again: bool = True) -> T:
        """Ask an operation with a message.

        Args:
            name: The operation.
            message: The message.
            gives: Type of the answer.
            again: Whether sending it twice does what sending it once does. Otherwise it is sent again only where
                the server cannot have got it.

        Returns:
            The answer.

        Raises:
            ServerUnreachable: Nobody answered for `patience_s`, or it is not known whether the request arrived.
            TurnoutError: As the operation's; of the same class.
        """
        body = msgspec.msgpack.encode(message)
        wait_s = message.wait_s if isinstance(message, schema.Submit) else 0.0
        return await self._ask(_Request("POST", name, body, wait_s=wait_s), gives, again=again)

    async def get(self, name: str, gives: type[T], **query: str) -> T:
        """Ask an operation that takes no message.

        Args:
            name: The operation.
            gives: Type of the answer.
            **query: Its parameters.

        Returns:
            The answer.

        Raises:
            ServerUnreachable: Nobody answered for `patience_s`.
            TurnoutError: As the operation's; of the same class.
        """
        return await self._ask(_Request("GET", name, query=query), gives, again=True)

    async def _ask(self, request: _Request, gives: type[T], *, again: bool) -> T:
        loop = asyncio.get_running_loop()
        since: float | None = None
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                async with asyncio.timeout(ANSWER_S + request.wait_s):
                    status, body, media = await self._send(request)
                return self._read(status, body, media, gives)
            except (_Away, TimeoutError) as away:
                says = str(away) or f"no answer in {ANSWER_S + request.wait_s:g} s"
                sent = not isinstance(away, _Away) or away.sent
                since = loop.time() if since is None else since
                if (sent and not again) or loop.time() - since + pause_s > self.patience_s:
                    accepted = "a server that answers"
                    message = f"url: {self.url} does not answer {request.name}: {says}"
                    raise errors.ServerUnreachable(message, "url", self.url, accepted) from away
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads callers, hides nothing
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _send(self, request: _Request) -> tuple[int, bytes, str]:
        address = self.url + PREFIX + request.name
        try:
            sending = self._session.request(request.method, address, data=request.body, params=request.query)
            async with sending as answer:
                return answer.status, await answer.read(), answer.content_type
        except aiohttp.ClientConnectorError as refused:
            raise _Away(str(refused), sent=False) from refused
        except (aiohttp.ClientError, OSError) as lost:
            raise _Away(f"{type(lost).__name__}: {lost}", sent=True) from lost

    def _read(self, status: int, body: bytes, media: str, gives: type[T]) -> T:
        """The answer, or the error that it is."""
        if status == OK:
            decoder = self._decoders.get(gives)
            if decoder is None:
                decoder = self._decoders[gives] = msgspec.msgpack.Decoder(gives)
            try:
                answer: T = decoder.decode(body)
            except (msgspec.MsgspecError, UnicodeDecodeError) as strange:
                message = f"url: {self.url} answers otherwise than turnout serve: {strange}"
                raise errors.ServerUnreachable(message, "url", self.url, "the address of turnout serve") from strange
            return answer
        try:
            error = (_ERROR if media == MSGPACK else _ERROR_JSON).decode(body).error
        except (msgspec.MsgspecError, UnicodeDecodeError):
            if status >= SERVER_ERRORS:
                raise _Away(f"status {status}", sent=True) from None  # somebody in between, whose server is away
            message = f"url: {self.url} answers with status {status}"
            raise errors.ServerUnreachable(message, "url", self.url, "the address of turnout serve") from None
        if error.type == "RouterClosed":
            raise _Away(error.message, sent=False)  # it is ending and has done nothing with this
        raise error_of(error)
