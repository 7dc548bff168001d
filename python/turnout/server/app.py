"""The server put together: router, journal, feeds, routes and HTTP, started and ended in the right order."""

from __future__ import annotations

import contextlib
import hmac
import logging
from typing import TYPE_CHECKING, NamedTuple

from starlette.applications import Starlette
from starlette.responses import JSONResponse

from turnout import __version__, aio, record
from turnout.adapters.proxies.gate import Gate
from turnout.adapters.proxies.http_gate import gate_routes
from turnout.adapters.proxies.opening import opened
from turnout.errors import InternalError
from turnout.feeds import Fleet
from turnout.server.dashboard import PAGE_PATHS, dashboard_routes
from turnout.server.decisions import PREFIX, decision_routes
from turnout.server.health import failure_of, health_routes, until_failed
from turnout.server.listeners import Listeners
from turnout.server.log_events import EventLog
from turnout.server.logs import say
from turnout.server.metrics import Counted, Metrics
from turnout.server.proxy import Proxy
from turnout.server.proxy_routes import proxy_routes
from turnout.server.standby import Standby
from turnout.server.state import StateDirectory, make_router
from turnout.server.workers import engine_at, worker_routes

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

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
    metrics = Metrics(routed, fleet, None if proxy is None else proxy.counts)
    decisions = decision_routes(routed, timed=metrics.timed)
    # Requests first: routes are looked at one after the other.
    callers: list[BaseRoute] = [] if proxy is None else [*proxy_routes(proxy)]
    callers += [] if gate is None else gate_routes(gate)
    callers += [route for route in decisions if route.path not in OPERATOR_PATHS]
    operators: list[BaseRoute] = [route for route in decisions if route.path in OPERATOR_PATHS | READ_PATHS]
    operators += metrics.routes() + dashboard_routes(routed, None if fleet is None else fleet.status)
    operators += [] if proxy is None else worker_routes(proxy)
    health = health_routes(routed)

    def app(routes: list[BaseRoute]) -> ASGIApp:
        made: ASGIApp = Starlette(routes=routes)
        return Counted(made if config.token is None else BearerToken(made, config.token), metrics)

    if config.admin_port is None:
        # A read that both sides have is found at its first place.
        return Apps(app([*callers, *operators, *health]), None)
    return Apps(app([*callers, *health]), app([*operators, *health]))


async def run(
    config: ServeConfig,
    stop: asyncio.Event,
    started: Callable[[dict[str, str]], object],
    stands_by: Callable[[dict[str, str]], object] | None = None,
) -> None:
    """Serve until told to stop.

    Args:
        config: Settings.
        stop: Set to end. Held turns stay in the state where one is kept; whoever waits is answered.
        started: Called once it serves, with its address as `url`, as `admin_url` that for operators, and those of the
            ways in for proxies.
        stands_by: Called before that by a server that stands by, with those where it answers so far.

    Raises:
        InvalidArgument: The address cannot be listened at, or the state cannot be written.
        RecordError: The state cannot be gone on from.
        InternalError: The router has failed; its state is as it was before that.
    """
    say(logging.INFO, "start", f"turnout {__version__} starts", version=__version__, policy=config.policy)
    with contextlib.ExitStack() as files:
        directory = config.directory
        standby = Standby(directory) if directory is not None and config.state.standby else None
        state = None if directory is None or standby is not None else files.enter_context(StateDirectory(directory))
        ports = {"url": config.port} | ({} if config.admin_port is None else {"admin_url": config.admin_port})
        async with Listeners(config.host, ports) as listeners:
            if standby is not None:
                listeners.answer_with(*(standby.app for _ in ports))
                say(logging.INFO, "standby", f"standby: {listeners.urls['url']}", **listeners.urls)
                if stands_by is not None:
                    stands_by(listeners.urls)
                state = await standby.wait(stop)
                if state is None:
                    return
                files.enter_context(state)
                say(logging.INFO, "takeover", "takeover: the state is free", directory=str(state.path))
            await _serve(config, stop, started, state, listeners)
    say(logging.INFO, "stopped", "stopped")


async def _serve(
    config: ServeConfig,
    stop: asyncio.Event,
    started: Callable[[dict[str, str]], object],
    state: StateDirectory | None,
    listeners: Listeners,
) -> None:
    """Serve with a state that is this process' own, or with none."""
    router = make_router(config, state)
    with contextlib.ExitStack() as files:
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
        async with fleet, proxy, EventLog(routed, fleet), opened(gate, config.host, config.gates) as ways_in:
            listeners.answer_with(*(app for app in make_apps(routed, config, fleet, proxy, gate) if app is not None))
            urls = listeners.urls | ways_in
            say(logging.INFO, "ready", f"ready: {urls['url']}", **urls)
            started(urls)
            await listeners.wait(stop.wait(), until_failed(routed))
            if problem := failure_of(routed):
                # Of no use to anybody: who waits is answered, and a new process or the standby goes on from the state.
                say(logging.ERROR, "failed", problem)
                failure = InternalError(problem)
                routed.fail(failure)
                await listeners.stop()
                raise failure
            left = {name: router.stats()[name] for name in ("open_turns", "held_turns")}
            say(logging.INFO, "stop", "stop: who waits is answered", **left)
            # First everybody who waits is answered, then the connections may end.
            await routed.close(keep_turns=state is not None)
            await listeners.stop()
