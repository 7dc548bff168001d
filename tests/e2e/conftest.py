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
