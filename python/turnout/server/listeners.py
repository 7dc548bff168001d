"""Where a server listens, and what answers there now."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Self

import uvicorn

from turnout.listening import HttpServer, listen

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable
    from types import TracebackType

    from starlette.types import ASGIApp, Receive, Scope, Send

MOST_HEADER_BYTES: Final = 64 << 10
KEEP_ALIVE_S: Final = 75
"""Longer than clients keep a connection that they do not use (5 to 60 s): else one of them sends into its closing."""
STOP_S: Final = 5
"""Time that running requests get at the end, s."""


class Switch:
    """An application that can be exchanged while its server runs.

    Args:
        app: The first one.

    Attributes:
        app: The one that answers now.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Keep it."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on."""
        await self.app(scope, receive, send)


class Listeners:
    """The sockets of a server, one for each port, and their HTTP servers. Use it as an asynchronous context.

    Args:
        host: Address to listen at.
        ports: Ports by the name of their address; 0 = any free one.

    Attributes:
        urls: The addresses by name.

    Raises:
        InvalidArgument: An address cannot be listened at.

    Example:
        >>> import asyncio
        >>> async def look() -> list[str]:
        ...     async with Listeners("127.0.0.1", {"url": 0}) as listeners:
        ...         return list(listeners.urls)
        >>> asyncio.run(look())
        ['url']
    """

    def __init__(self, host: str, ports: dict[str, int]) -> None:
        """Listen; who connects waits until something answers."""
        self._sockets: dict[str, socket.socket] = {}
        try:
            for name, port in ports.items():
                self._sockets[name] = listen(host, port)
        except BaseException:
            self._close()
            raise
        self.urls = {name: _url(listening) for name, listening in self._sockets.items()}
        self._switches: list[Switch] = []
        self._servers: list[HttpServer] = []
        self._serving: list[asyncio.Task[None]] = []

    def answer_with(self, *apps: ASGIApp) -> None:
        """Answer with these from now on.

        Args:
            *apps: One for each address.
        """
        if self._switches:
            for switch, app in zip(self._switches, apps, strict=True):
                switch.app = app
            return
        self._switches = [Switch(app) for app in apps]
        self._servers = [_server(switch) for switch in self._switches]
        pairs = zip(self._servers, self._sockets.values(), strict=True)
        self._serving = [asyncio.create_task(server.serve(sockets=[listening])) for server, listening in pairs]

    async def wait(self, *reasons: Awaitable[object]) -> None:
        """Wait for the first reason to stop: one of these, or a server that ends by itself.

        Args:
            *reasons: What to wait for.
        """
        waiting = [asyncio.ensure_future(reason) for reason in reasons]
        await asyncio.wait({*self._serving, *waiting}, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def stop(self) -> None:
        """Let what is asked be answered, and end. Doing so again changes nothing."""
        for server in self._servers:
            server.should_exit = True
        serving, self._serving = self._serving, []
        await asyncio.gather(*serving)

    async def __aenter__(self) -> Self:
        """Answer itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, and close the sockets."""
        try:
            await self.stop()
        finally:
            self._close()

    def _close(self) -> None:
        for listening in self._sockets.values():
            with contextlib.suppress(OSError):
                listening.close()


def _server(app: ASGIApp) -> HttpServer:
    """An HTTP server that logs nothing by itself, and is bounded in what it waits for."""
    settings = uvicorn.Config(
        app,
        http="h11",
        server_header=False,
        log_config=None,
        lifespan="off",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
    )
    return HttpServer(settings)


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
