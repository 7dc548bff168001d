"""The engine as a server, in an event loop of the caller's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any, Self

import uvicorn
import zmq
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from turnout.engine import metrics
from turnout.engine.http import RequestError, on_error
from turnout.engine.openai_face import OpenAiFace
from turnout.engine.publisher import Publisher
from turnout.engine.sglang_face import SglangFace
from turnout.engine.vllm_face import VllmFace
from turnout.engine.worker import Worker
from turnout.errors import InvalidArgument, TurnoutError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from turnout.engine.config import EngineConfig

STOP_S = 5
BACKLOG = 2_048


class _Http(uvicorn.Server):
    """Leaves the signals of the process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Catch nothing."""
        yield


class EngineServer:
    """A model engine behind HTTP and ZMQ. Use it as an asynchronous context, or `start` and `stop` it.

    Args:
        config: Settings.

    Raises:
        InvalidArgument: The engine cannot run.

    Example:
        >>> import asyncio
        >>> from turnout.engine import EngineConfig, EngineServer
        >>> async def run() -> str:
        ...     async with EngineServer(EngineConfig(kv_tokens=4096)) as engine:
        ...         return engine.ready()["event"]
        >>> asyncio.run(run())
        'ready'
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._publisher: Publisher | None = None
        self._worker: Worker | None = None
        self._http: _Http | None = None
        self._port = 0
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def worker(self) -> Worker:
        """The model on the event loop, once started."""
        if self._worker is None:
            raise InvalidArgument("engine: it is not started, accepted is after start()", "engine")
        return self._worker

    @property
    def port(self) -> int:
        """HTTP port, once started."""
        return self._port

    @property
    def url(self) -> str:
        """Where it answers, without a slash at the end."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.config.host, self.config.host)  # noqa: S104 - compared, not bound
        return f"http://[{host}]:{self._port}" if ":" in host else f"http://{host}:{self._port}"

    @property
    def kv_events_port(self) -> int | None:
        """Port of the cache events, once started; None when nothing is published."""
        return self._publisher.events_port if self._publisher else None

    @property
    def replay_port(self) -> int | None:
        """Port at which cache events are sent again."""
        return self._publisher.replay_port if self._publisher else None

    @property
    def load_port(self) -> int | None:
        """Port of the load."""
        return self._publisher.load_port if self._publisher else None

    def ready(self) -> dict[str, Any]:
        """What the command prints once the engine answers."""
        return {
            "event": "ready",
            "url": self.url,
            "host": self.config.host,
            "port": self._port,
            "kv_events_port": self.kv_events_port,
            "replay_port": self.replay_port,
            "load_port": self.load_port,
            "model": self.config.model,
            "engine": self.config.engine,
            "kv_tokens": self.worker.capacity_tokens,
            "block_tokens": self.config.block_tokens,
            "dialect": self.config.dialect,
            "speed": self.config.speed,
            "seed": self.config.seed,
        }

    async def start(self) -> None:
        """Listen; returns once it answers.

        Raises:
            InvalidArgument: A port is taken, or the engine cannot run.
        """
        config = self.config
        if config.kv_events_port is not None:
            try:
                self._publisher = Publisher(_address(config.host), config.kv_events_port)
            except zmq.ZMQError as refused:
                message = f"kv_events_port: got {config.kv_events_port} ({refused}), accepted is a free port"
                raise InvalidArgument(message, "kv_events_port", str(config.kv_events_port), "a free port") from refused
        try:
            self._worker = Worker(config, self._publisher)
            listening = _listen(config.host, config.port)
        except BaseException:
            await self.stop()
            raise
        self._port = listening.getsockname()[1]
        app = Starlette(routes=self._routes(), exception_handlers={RequestError: on_error, TurnoutError: on_error})
        settings = uvicorn.Config(
            app, lifespan="off", log_level="warning", access_log=False, timeout_graceful_shutdown=1, backlog=BACKLOG
        )
        self._http = _Http(settings)
        self._tasks = [
            asyncio.create_task(self._http.serve(sockets=[listening])),
            asyncio.create_task(self._worker.run()),
        ]
        if self._publisher is not None:
            self._tasks.append(asyncio.create_task(self._publisher.serve_replay()))
            if config.speaks("sglang"):
                self._tasks.append(asyncio.create_task(self._publisher.serve_load(self._worker.core.load_stat)))
        while not self._http.started:
            if self._tasks[0].done():
                self._tasks[0].result()
            await asyncio.sleep(0.001)

    async def wait(self, stop: asyncio.Event) -> None:
        """Wait until it shall stop, or until a part of it fails; then raise what it failed with.

        Args:
            stop: Says when.
        """
        stopping = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait({stopping, *self._tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)

    async def stop(self) -> None:
        """End what runs and close everything. Repeating it does nothing."""
        if self._worker is not None:
            self._worker.abort_named(None)
        if self._http is not None:
            self._http.should_exit = True
            await asyncio.wait(self._tasks[:1], timeout=STOP_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._http = None
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _routes(self) -> list[Route]:
        routes = [Route("/health", _health), Route("/metrics", self._metrics)]
        routes += OpenAiFace(self.worker, time.time()).routes()
        if self.config.speaks("vllm"):
            routes += VllmFace(self.worker, self._publisher).routes()
        if self.config.speaks("sglang"):
            routes += SglangFace(self.worker, self._publisher).routes()
        return routes

    async def _metrics(self, _: Request) -> Response:
        return Response(metrics.page(self.worker), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _health(_: Request) -> Response:
    return Response()


def _address(host: str) -> str:
    """Resolve a host's name: ZMQ binds to numbers alone."""
    try:
        return str(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as refused:
        message = f"host: got {host!r} ({refused}), accepted is an address of this machine"
        raise InvalidArgument(message, "host", host, "an address of this machine") from refused


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.setblocking(False)  # noqa: FBT003 - the standard library's signature
        except BaseException:
            listening.close()
            raise
    except OSError as refused:
        message = f"port: got {host}:{port} ({refused}), accepted is an address of this machine and a free port"
        raise InvalidArgument(message, "port", f"{host}:{port}", "a free port") from refused
    return listening
