"""Engines that join and leave in the dialect of sglang-router, all three of its generations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from turnout.errors import InvalidArgument, TurnoutError
from turnout.feeds import Engine
from turnout.server.upstream import error_body

if TYPE_CHECKING:
    from starlette.requests import Request

    from turnout.server.proxy import Proxy
    from turnout.server.proxy_config import ProxyConfig

ACCEPTED: Final = 202
REGULAR: Final = ("regular", None)


class Workers:
    """The handlers: an engine's id is the name of its replica.

    Args:
        proxy: The proxy whose engines they are.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def routes(self) -> list[Route]:
        """`/workers` and, as it was before, `/add_worker`, `/remove_worker` and `/list_workers`."""
        return [
            Route("/workers", self.listed, methods=["GET"]),
            Route("/workers", self.add, methods=["POST"]),
            Route("/workers/{worker:path}", self.one, methods=["GET"]),
            Route("/workers/{worker:path}", self.remove, methods=["DELETE"]),
            Route("/add_worker", self.add_by_query, methods=["POST"]),
            Route("/remove_worker", self.remove_by_query, methods=["POST"]),
            Route("/list_workers", self.urls, methods=["GET"]),
        ]

    async def listed(self, _: Request) -> Response:
        """All engines."""
        workers = self._workers()
        return _json({"workers": workers, "total": len(workers), "stats": {"regular_count": len(workers)}})

    async def one(self, request: Request) -> Response:
        """One engine, by id or address."""
        name = self._named(request.path_params["worker"])
        found = [worker for worker in self._workers() if worker["id"] == name]
        return _json(found[0]) if found else _unknown(request.path_params["worker"])

    async def add(self, request: Request) -> Response:
        """An engine joins."""
        try:
            body = msgspec.json.decode(await request.body())
            if not isinstance(body, dict) or not isinstance(body.get("url"), str):
                raise InvalidArgument("url: accepted is the address of an engine", "url", "", "an address")
            if body.get("worker_type") not in REGULAR:
                kind = body.get("worker_type")
                raise InvalidArgument(
                    f"worker_type: got {kind!r}, accepted is 'regular'", "worker_type", str(kind), "'regular'"
                )
            engine = self._add(body["url"])
        except (TurnoutError, msgspec.DecodeError, UnicodeDecodeError) as error:
            return Response(error_body(str(error), type(error).__name__, 400), 400, media_type="application/json")
        location = f"/workers/{engine.name}"
        accepted = {"status": "accepted", "worker_id": engine.name, "url": engine.url, "location": location}
        return _json(accepted, ACCEPTED)

    async def remove(self, request: Request) -> Response:
        """An engine leaves, by id or address: nothing new is sent there, what runs goes on."""
        worker = request.path_params["worker"]
        name = self._named(worker)
        if name is None:
            return _unknown(worker)
        await self._proxy.fleet.remove(name)
        return _json({"status": "accepted", "worker_id": name}, ACCEPTED)

    async def add_by_query(self, request: Request) -> Response:
        """`POST /add_worker?url=...`."""
        url = await _url_of(request)
        try:
            self._add(url)
        except TurnoutError as error:
            return PlainTextResponse(str(error), 400)
        return PlainTextResponse(f"Successfully added worker: {url}")

    async def remove_by_query(self, request: Request) -> Response:
        """`POST /remove_worker?url=...`."""
        url = await _url_of(request)
        name = self._named(url)
        if name is None:
            return PlainTextResponse(f"Worker {url} not found", 404)
        await self._proxy.fleet.remove(name)
        return PlainTextResponse(f"Successfully removed worker: {url}")

    async def urls(self, _: Request) -> Response:
        """`GET /list_workers`."""
        return _json({"urls": [engine.url for engine in self._proxy.fleet.engines().values()]})

    def _add(self, url: str) -> Engine:
        """Follow an engine; one that is followed already is accepted, as it registers again when it restarts."""
        name = self._named(url)
        fleet = self._proxy.fleet
        return fleet.engine(name) if name is not None else fleet.add(engine_at(url, self._proxy.config))

    def _named(self, worker: str) -> str | None:
        """The name of an engine that is given by id or address; None when it is not followed."""
        engines = self._proxy.fleet.engines()
        if worker in engines:
            return worker
        return next((name for name, engine in engines.items() if engine.url == worker.rstrip("/")), None)

    def _workers(self) -> list[dict[str, Any]]:
        view = self._proxy.routed.router.view()
        row = {name: at for at, name in enumerate(view.replicas)}
        return [
            {
                "id": name,
                "url": engine.url,
                "model_id": next(iter(self._proxy.models.of(name)), "unknown"),
                "worker_type": "regular",
                "connection_mode": "http",
                "is_healthy": name in row and bool(view.accepting[row[name]]),
                "load": int(view.running_turns[row[name]]) if name in row else 0,
                "priority": 50,
                "cost": 1.0,
            }
            for name, engine in self._proxy.fleet.engines().items()
        ]


def engine_at(url: str, config: ProxyConfig) -> Engine | str:
    """An engine as the fleet shall follow it: its cache events know nothing of prompts that are compared as text.

    Args:
        url: Its address.
        config: Where tokens come from.

    Returns:
        What `turnout.feeds.Fleet` takes.

    Raises:
        InvalidArgument: It is no address.
    """
    if config.tokens != "text":
        return url
    return Engine(url.partition("://")[2].strip("/") or url, url, kv_events="off")


def worker_routes(proxy: Proxy) -> list[Route]:
    """The routes by which engines join and leave.

    Args:
        proxy: The proxy.

    Returns:
        The routes.
    """
    return Workers(proxy).routes()


async def _url_of(request: Request) -> str:
    """The address, in the query or in a JSON body."""
    url = request.query_params.get("url") or request.query_params.get("worker_url")
    if url:
        return url
    try:
        body = msgspec.json.decode(await request.body() or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return str(body.get("url", "")) if isinstance(body, dict) else ""


def _json(content: Any, status: int = 200) -> Response:  # noqa: ANN401 - whatever JSON can say
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _unknown(worker: str) -> Response:
    body = error_body(f"Worker {worker} not found", "UnknownReplica", 404)
    return Response(body, 404, media_type="application/json")
