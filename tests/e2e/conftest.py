"""A real server for the tests: uvicorn on a free port, in the test's own event loop."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import pytest

from turnout import Replica, Router, Workload, aio
from turnout.listening import listen


class Served:
    """A running server, its router, and a way to ask it."""

    def __init__(self, routed, url, session):
        self.routed, self.url, self.session = routed, url, session

    async def call(self, name, message=None, **headers):
        """(status, body) of one operation, in JSON."""
        method = "GET" if message is None else "POST"
        path = f"{self.url}/turnout/v1/{name}"
        async with self.session.request(method, path, json=message, headers=headers) as answer:
            return answer.status, await answer.json()

    async def until(self, condition):
        """Wait for something that other tasks bring about; the test's own time limit ends it."""
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def listening(app, port=0):
    """Run an application; yields its URL."""
    import uvicorn

    sock = listen("127.0.0.1", port)
    settings = {"log_config": None, "lifespan": "off", "timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(app, **settings))
    task = asyncio.create_task(server.serve(sockets=[sock]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        sock.close()


@asynccontextmanager
async def _serving(routes, *, port=0, **router_arguments):
    from starlette.applications import Starlette

    arguments = {
        "replicas": [Replica("r0", kv_tokens=1_000), Replica("r1", kv_tokens=2_000)],
        "workloads": [Workload("agent", target=0.5), Workload("chat", target=0.5)],
        "block_tokens": 16,
        "hash_key": bytes(16),
        **router_arguments,
    }
    async with aio.serve(Router(**arguments)) as routed:
        app = Starlette(routes=list(routes(routed)))
        async with listening(app, port) as url, aiohttp.ClientSession() as session:
            yield Served(routed, url, session)


@pytest.fixture
def serving():
    """`async with serving(lambda routed: routes) as served`."""
    return _serving


@pytest.fixture
def listen_with():
    """`async with listen_with(app) as url`."""
    return listening


class Proxied(Served):
    """A server with a proxy, in front of model engines in the same event loop."""

    def __init__(self, routed, url, session, proxy, engines, clients):
        super().__init__(routed, url, session)
        self.proxy, self.engines, self._clients = proxy, engines, clients

    @property
    def names(self):
        """The replicas of the engines."""
        return [engine.url.partition("://")[2] for engine in self.engines]

    @property
    def stats(self):
        """The router's counters."""
        return self.routed.router.stats()

    def openai(self, **options):
        """A client of the `openai` package."""
        from openai import AsyncOpenAI

        client = AsyncOpenAI(base_url=f"{self.url}/v1", api_key="nobody", max_retries=0, **options)
        self._clients.append(client)
        return client

    async def raw(self, path, body, *, url=None, headers=None, method="POST"):
        """(status, headers, bytes) of one request."""
        options = {"json": body, "headers": headers or {}}
        async with self.session.request(method, f"{url or self.url}{path}", **options) as answer:
            return answer.status, answer.headers, await answer.read()

    def check_books(self, **counts):
        """No open turn, nothing reserved; and so many requests of each ending."""
        assert {name: self.proxy.counts[name] for name in counts} == counts
        assert self.stats["held_turns"] == self.stats["open_turns"] == 0
        view = self.routed.router.view()
        assert view.running_turns.sum() == 0
        assert view.reserved_tokens.sum() == 0
        self.routed.router.audit()


@asynccontextmanager
async def _proxied(
    *, engines=1, speed=500.0, dialect="both", engine=None, urls=(), own_token=False, router=None, **settings
):
    from contextlib import AsyncExitStack

    from starlette.applications import Starlette

    from turnout.engine import EngineConfig, EngineServer
    from turnout.feeds import Fleet
    from turnout.server.proxy import Proxy
    from turnout.server.proxy_config import ProxyConfig
    from turnout.server.proxy_routes import proxy_routes
    from turnout.server.workers import worker_routes

    async with AsyncExitStack() as stack:
        made = {"kv_tokens": 65_536, "speed": speed, "dialect": dialect, **(engine or {})}
        started = [await stack.enter_async_context(EngineServer(EngineConfig(**made))) for _ in range(engines)]
        arguments = {"infer_sessions": True, "hash_key": bytes(16), **(router or {})}
        routed = await stack.enter_async_context(aio.serve(Router([], **arguments)))
        fleet = await stack.enter_async_context(Fleet(routed, [*(one.url for one in started), *urls]))
        proxy = await stack.enter_async_context(Proxy(routed, fleet, ProxyConfig(**settings), own_token=own_token))
        url = await stack.enter_async_context(
            listening(Starlette(routes=[*proxy_routes(proxy), *worker_routes(proxy)]))
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        clients = []
        served = Proxied(routed, url, session, proxy, started, clients)
        try:
            await served.until(lambda: len(routed.router.replicas) == engines + len(urls))
            yield served
        finally:
            for client in clients:
                await client.close()


@pytest.fixture
def proxied():
    """`async with proxied(engines=2, wait_s=1.0) as served`."""
    return _proxied
