"""The server put together: router, journal, feeds, routes and HTTP, started and ended in the right order."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from typing import TYPE_CHECKING, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from turnout import __version__, aio, record
from turnout.adapters.proxies.gate import Gate
from turnout.adapters.proxies.http_gate import gate_routes
from turnout.adapters.proxies.opening import opened
from turnout.feeds import Fleet
from turnout.listening import HttpServer, listen
from turnout.server.dashboard import PAGE_PATHS, dashboard_routes
from turnout.server.decisions import PREFIX, decision_routes
from turnout.server.log_events import EventLog
from turnout.server.logs import say
from turnout.server.metrics import Counted, Metrics
from turnout.server.proxy import Proxy
from turnout.server.proxy_routes import proxy_routes
from turnout.server.state import StateDirectory, make_router
from turnout.server.workers import engine_at

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from turnout.server.config import ServeConfig

OPEN_PATHS = frozenset({"/healthz", "/readyz"}) | PAGE_PATHS
"""What may be asked without a token: by a load balancer, and the page that asks a person for it."""

_OPERATIONS = {"add_replica", "set_replica", "drain_replica", "remove_replica", "lose_replica", "weights_updated"}
_INSIGHTS = {"observe", "kv_events", "stats", "view", "explain"}
OPERATOR_PATHS = frozenset(PREFIX + name for name in _OPERATIONS | _INSIGHTS)
"""What is at the port for operators alone, where there is one."""
READ_PATHS = frozenset(PREFIX + name for name in ("replicas", "info", "openapi.json"))
"""What is at both."""

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


class Apps(NamedTuple):
    """What is served where.

    Attributes:
        public: For callers; for everybody where there is no port for operators.
        admin: For operators, where they have a port of their own.
    """

    public: ASGIApp
    admin: ASGIApp | None


def make_apps(
    routed: aio.AsyncRouter,
    config: ServeConfig,
    fleet: Fleet | None = None,
    proxy: Proxy | None = None,
    gate: Gate | None = None,
) -> Apps:
    """The applications, behind the token where there is one.

    Args:
        routed: The router.
        config: Settings.
        fleet: The engines that are followed.
        proxy: What passes requests to them.
        gate: What other proxies ask.

    Returns:
        One, or two with a port for operators: then nothing of theirs is at the public one.
    """
    metrics = Metrics(routed, fleet)
    decisions = decision_routes(routed, timed=metrics.timed)
    callers: list[BaseRoute] = [route for route in decisions if route.path not in OPERATOR_PATHS]
    callers += [] if gate is None else gate_routes(gate)
    callers += [] if proxy is None else proxy_routes(proxy)
    operators: list[BaseRoute] = [route for route in decisions if route.path in OPERATOR_PATHS | READ_PATHS]
    operators += metrics.routes() + dashboard_routes(routed, None if fleet is None else fleet.status)
    health = health_routes(routed)

    def app(routes: list[BaseRoute]) -> ASGIApp:
        made: ASGIApp = Starlette(routes=routes)
        return Counted(made if config.token is None else BearerToken(made, config.token), metrics)

    if config.admin_port is None:
        # A read that both sides have is found at its first place.
        return Apps(app([*callers, *operators, *health]), None)
    return Apps(app([*callers, *health]), app([*operators, *health]))


def http_server(app: ASGIApp) -> HttpServer:
    """An HTTP server that logs nothing by itself, and is bounded in what it waits for.

    Args:
        app: What it serves.

    Returns:
        The server, not started.
    """
    settings = uvicorn.Config(
        app,
        http="h11",
        server_header=False,
        log_config=None,
        lifespan="off",
        access_log=False,
        timeout_graceful_shutdown=STOP_S,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
    )
    return HttpServer(settings)


async def run(config: ServeConfig, stop: asyncio.Event, started: Callable[[dict[str, str]], None]) -> None:
    """Serve until told to stop.

    Args:
        config: Settings.
        stop: Set to end. Held turns stay in the state where one is kept; whoever waits is answered.
        started: Called once it listens, with its address as `url`, as `admin_url` that for operators, and as `ext_proc`
            and `spoe` those for proxies.

    Raises:
        InvalidArgument: The address cannot be listened at, or the state cannot be written.
        RecordError: The state cannot be gone on from.
    """
    say(logging.INFO, "start", f"turnout {__version__} starts", version=__version__, policy=config.policy)
    with contextlib.ExitStack() as files:
        directory = config.directory
        state = None if directory is None else files.enter_context(StateDirectory(directory))
        router = make_router(config, state)
        sockets = {"url": files.enter_context(listen(config.host, config.port))}
        if config.admin_port is not None:
            sockets["admin_url"] = files.enter_context(listen(config.host, config.admin_port))
        journal = None
        if state is not None:
            fsync, rotate_bytes = config.state.fsync, config.state.rotate_bytes
            writer = record.JournalWriter(router, state.journal, fsync=fsync, rotate_bytes=rotate_bytes)
            journal = files.enter_context(writer)
        routed = aio.AsyncRouter(router, journal=journal)
        routed.start()
        engines = [engine_at(each, config.proxy) if isinstance(each, str) else each for each in config.engines]
        fleet = Fleet(routed, engines, timing=config.feeds)
        proxy = Proxy(routed, fleet, config.proxy, own_token=config.token is not None)
        gate = Gate(routed, hold_s=config.gates.hold_s)
        apps = [app for app in make_apps(routed, config, fleet, proxy, gate) if app is not None]
        async with fleet, proxy, EventLog(routed, fleet), opened(gate, config.host, config.gates) as ways_in:
            servers = [http_server(app) for app in apps]
            pairs = zip(servers, sockets.values(), strict=True)
            serving = [asyncio.create_task(server.serve(sockets=[socket])) for server, socket in pairs]
            urls = {name: _url(socket) for name, socket in sockets.items()} | ways_in
            say(logging.INFO, "ready", f"ready: {urls['url']}", **urls)
            started(urls)
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({*serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            stats = router.stats()
            left = {"open_turns": stats["open_turns"], "held_turns": stats["held_turns"]}
            say(logging.INFO, "stop", "stop: who waits is answered", **left)
            # First everybody who waits is answered, then the connections may end.
            await routed.close(keep_turns=state is not None)
            for server in servers:
                server.should_exit = True
            await asyncio.gather(*serving)
    say(logging.INFO, "stopped", "stopped")


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
