"""One request at one engine: sent, answered, and every way in which that fails."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec

if TYPE_CHECKING:
    from turnout.server.headers import Pairs
    from turnout.server.proxy_config import ProxyConfig

KEEP_ALIVE_S: Final = 3.0
"""Engines close idle connections after 5 s: whoever is sooner never writes into one that is closing."""
LARGE_BYTES: Final = 1 << 19
MOST_ANSWER_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an engine did not answer, and what the caller is told if none does.

    Attributes:
        status: HTTP status.
        words: What happened.
        elsewhere: Whether another engine may do better.
        body: The engine's own answer; None = there is none.
        headers: Headers of that answer.
    """

    status: int
    words: str
    elsewhere: bool
    body: bytes | None = None
    headers: Pairs = field(default_factory=list)


def payload(body: bytes) -> Any:  # noqa: ANN401 - what aiohttp sends
    """A body as aiohttp wants it: long ones in pieces, so that nobody else waits while they are written.

    Args:
        body: The bytes.

    Returns:
        Them, or a stream of them whose length is known.
    """
    return body if len(body) < LARGE_BYTES else io.BytesIO(body)


def open_client(config: ProxyConfig) -> aiohttp.ClientSession:
    """The HTTP client for engines, in the running event loop.

    Args:
        config: Its time limits.

    Returns:
        The client: no limit on connections, no cookies, no proxy of the environment; answers are left as they come.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=config.connect_timeout_s, sock_read=config.idle_timeout_s)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=timeout,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent",),
        read_bufsize=1 << 18,
    )


def failure_of(error: BaseException, engine: str) -> Failure:
    """What an exception of the client means.

    Args:
        error: The exception.
        engine: The engine's name.

    Returns:
        504 for an engine that is silent, 502 for one that cannot be reached or broke off.
    """
    if isinstance(error, aiohttp.SocketTimeoutError):
        return Failure(504, f"engine {engine} was silent for too long", elsewhere=False)
    if isinstance(error, (aiohttp.ConnectionTimeoutError, TimeoutError)):
        return Failure(502, f"engine {engine} could not be reached in time", elsewhere=True)
    if isinstance(error, aiohttp.ClientConnectorError):
        return Failure(502, f"engine {engine} could not be reached", elsewhere=True)
    return Failure(502, f"engine {engine} broke off its answer ({type(error).__name__})", elsewhere=True)


def error_body(message: str, kind: str, status: int) -> bytes:
    """An error of OpenAI's shape.

    Args:
        message: What was wrong.
        kind: Its type.
        status: HTTP status.

    Returns:
        JSON.

    Example:
        >>> error_body("too late", "timeout", 504)
        b'{"error":{"message":"too late","type":"timeout","param":null,"code":504}}'
    """
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})
