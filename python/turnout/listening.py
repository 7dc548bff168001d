"""What every HTTP server here needs: a socket, a server that leaves signals alone, and a word when to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from typing import TYPE_CHECKING, Final

import uvicorn

from turnout.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKLOG: Final = 2_048
"""Connections that may wait to be accepted."""


class HttpServer(uvicorn.Server):
    """Leaves the signals of the process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Catch nothing."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Make a listening socket for a server.

    Args:
        host: Address or name of this machine.
        port: Port; 0 = any free one.

    Returns:
        The socket.

    Raises:
        InvalidArgument: The address is not of this machine, or the port is taken.

    Example:
        >>> with listen("127.0.0.1", 0) as listening:
        ...     listening.getsockname()[0]
        '127.0.0.1'
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit it. Without it every answer waits for the caller's delayed acknowledgement.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listening.bind(address)
            listening.listen(BACKLOG)  # who connects before the server is up waits instead of being refused
            listening.setblocking(False)  # noqa: FBT003 - the standard library's signature
        except BaseException:
            listening.close()
            raise
    except OSError as refused:
        message = f"port: got {host}:{port} ({refused}), accepted is an address of this machine and a free port"
        raise InvalidArgument(message, "port", f"{host}:{port}", "a free port") from refused
    return listening


def stop_on_signals() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set, in the running event loop.

    Returns:
        The event.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop
