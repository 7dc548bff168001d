"""The routes of the proxy: requests of OpenAI and SGLang, models, health, ends of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from turnout.server.dialects import DIALECTS, TOKEN_IN
from turnout.server.upstream import error_body

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from turnout.server.dialects import Dialect
    from turnout.server.proxy import Proxy

ALIASES: Final = (("/skyrl/v1/generate", TOKEN_IN),)
"""Other names under which trainers ask."""


class _Endpoint:
    """An ASGI application of one dialect."""

    def __init__(self, proxy: Proxy, dialect: Dialect) -> None:
        self._proxy, self._dialect = proxy, dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._proxy.serve(self._dialect, scope, receive, send)


class ProxyRoutes:
    """The handlers beside the requests themselves.

    Args:
        proxy: The proxy.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            Route("/v1/models", self.models),
            Route("/health", self.health),
            Route("/finish_session", self.finish_session, methods=["POST"]),
            Route("/v1/sessions/{session:path}", self.delete_session, methods=["DELETE"]),
        ]

    async def models(self, _: Request) -> Response:
        """The union of what the engines serve."""
        await self._proxy.models.look()
        return _json({"object": "list", "data": self._proxy.models.cards()})

    async def health(self, _: Request) -> Response:
        """200 when some engine accepts turns, as the routers of others have it."""
        ready = bool(self._proxy.routed.router.view().accepting.any())
        return Response(status_code=200 if ready else 503)

    async def finish_session(self, request: Request) -> Response:
        """End a session, named in the query or in the body."""
        session = request.query_params.get("session_id")
        if not session:
            try:
                body = msgspec.json.decode(await request.body() or b"{}")
            except (msgspec.DecodeError, UnicodeDecodeError):
                body = None
            session = body.get("session_id") if isinstance(body, dict) else None
        if not isinstance(session, str) or not session:
            return _error("session_id: accepted is the name of a session, in the query or in a JSON body", 400)
        return self._end(session)

    async def delete_session(self, request: Request) -> Response:
        """End a session, named in the path."""
        return self._end(request.path_params["session"])

    def _end(self, session: str) -> Response:
        return _json({"session_id": session, "status": self._proxy.end_session(session)})


def request_routes(proxy: Proxy) -> list[Route]:
    """The routes of requests to engines: put them first, routes are looked at one after the other.

    Args:
        proxy: The proxy.

    Returns:
        The routes.
    """
    served = [*((dialect.path, dialect) for dialect in DIALECTS), *ALIASES]
    return [Route(path, _Endpoint(proxy, dialect), methods=["POST"]) for path, dialect in served]


def proxy_routes(proxy: Proxy) -> list[Route]:
    """The routes of a proxy.

    Args:
        proxy: The proxy.

    Returns:
        The routes, those of requests first.
    """
    return [*request_routes(proxy), *ProxyRoutes(proxy).routes()]


def _json(content: Any, status: int = 200) -> Response:  # noqa: ANN401 - whatever JSON can say
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def _error(message: str, status: int) -> Response:
    return Response(error_body(message, "InvalidArgument", status), status, media_type="application/json")
