"""The server put together: router, journal, feeds, routes and HTTP, started and ended in the right order."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from turnout import aio, policies, record
from turnout.adapters.proxies.gate import Gate
from turnout.adapters.proxies.opening import opened
from turnout.feeds import Fleet
from turnout.listening import HttpServer, listen
from turnout.router import Router
from turnout.server.decisions import decision_routes

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from turnout.server.config import ServeConfig

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""What a load balancer may ask without a token."""

MOST_HEADER_BYTES = 64 << 10
STOP_S = 5
"""Time that running requests get at the end, s."""


class BearerToken:
    """Refuses whoever does not bring the token.

    Args:
        app: The application behind it.
        token: The token.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        """Keep both."""
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through or refuse."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            # Compared in constant time, so that the answer's timing tells nothing of the token.
            if not hmac.compare_digest(given, self._expected):
                error = {
                    "type": "Unauthorized",
                    "message": "Authorization: accepted is 'Bearer' and the server's token",
                }
                refused = JSONResponse({"error": error}, 401, {"WWW-Authenticate": "Bearer"})
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)


def make_router(config: ServeConfig) -> Router:
    """The router: gone on with where its journal ends, or a new one.

    Args:
        config: Settings.

    Returns:
        The router.

    Raises:
        RecordError: The journal cannot be used. It is left as it is.
        UnknownPolicy: No policy has this name.
    """
    policy = policies.lookup(config.policy)
    if config.journal is not None and config.journal.exists():
        return record.restore(config.journal, policy=policy, reattach_s=config.reattach_s)
    return Router((), config.workload_list(), policy=policy)


def health_routes(routed: aio.AsyncRouter) -> list[Route]:
    """`/healthz`: the process answers. `/readyz`: it can place turns.

    Args:
        routed: The router.

    Returns:
        The routes.
    """

    async def alive(_: Request) -> JSONResponse:
        return JSONResponse({"status": "alive"})

    async def ready(_: Request) -> JSONResponse:
        problems = []
        if routed.closed or not routed.clock.alive:
            problems.append("the router's clock does not run")
        elif not routed.router.view().accepting.any():
            problems.append("no replica accepts turns")
        status = 503 if problems else 200
        return JSONResponse({"status": "not ready" if problems else "ready", "problems": problems}, status)

    return [Route("/healthz", alive), Route("/readyz", ready)]


def make_app(routed: aio.AsyncRouter, config: ServeConfig) -> ASGIApp:
    """The application.

    Args:
        routed: The router.
        config: Settings.

    Returns:
        It, behind the token where there is one.
    """
    app = Starlette(routes=[*decision_routes(routed), *health_routes(routed)])
    return app if config.token is None else BearerToken(app, config.token)


async def run(config: ServeConfig, stop: asyncio.Event, started: Callable[[str, dict[str, str]], None]) -> None:
    """Serve until told to stop.

    Args:
        config: Settings.
        stop: Set to end. Held turns stay in the journal where one is kept; whoever waits is answered.
        started: Called with the server's address, and those of the ways in for proxies, once it listens.

    Raises:
        InvalidArgument: The address cannot be listened at.
        RecordError: The journal cannot be used.
    """
    router = make_router(config)
    listening = listen(config.host, config.port)
    host, port = listening.getsockname()[:2]
    try:
        with contextlib.ExitStack() as files:
            journal = None
            if config.journal is not None:
                journal = files.enter_context(record.JournalWriter(router, config.journal))
            routed = aio.AsyncRouter(router, journal=journal)
            routed.start()
            settings: dict[str, Any] = {"log_config": None, "lifespan": "off", "timeout_graceful_shutdown": STOP_S}
            settings["h11_max_incomplete_event_size"] = MOST_HEADER_BYTES
            server = HttpServer(uvicorn.Config(make_app(routed, config), http="h11", server_header=False, **settings))
            gate = Gate(routed, hold_s=config.gate_hold_s)
            ports = {"ext_proc_port": config.ext_proc_port, "spoe_port": config.spoe_port}
            async with Fleet(routed, config.engines), opened(gate, config.host, **ports) as ways_in:
                serving = asyncio.create_task(server.serve(sockets=[listening]))
                started(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", ways_in)
                stopping = asyncio.create_task(stop.wait())
                await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                # First everybody who waits is answered, then the connections may end.
                await routed.close(keep_turns=config.journal is not None)
                server.should_exit = True
                await serving
    finally:
        listening.close()
