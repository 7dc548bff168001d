"""The gate over plain HTTP: for nginx, for Envoy's `ext_authz`, for whatever can ask with a copy of a request.

Below `/turnout/gate/`: `place/` submits a turn and waits while it is held, `choose/` only chooses; what follows is the
path of the request, whose method, headers and body are the request's. The answer has no body: its headers say where
the request goes. `end` says that a placed one has ended.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.routing import Route

from turnout.adapters.proxies.asked import read
from turnout.adapters.proxies.gate import Refused

if TYPE_CHECKING:
    from starlette.requests import Request

    from turnout.adapters.proxies.gate import Gate, Passage

PREFIX: Final = "/turnout/gate/"
REQUEST_ID: Final = "x-request-id"
LOCATION: Final = "x-turnout-accel"
"""nginx names the location in which it goes on; the answer gives it back as `X-Accel-Redirect`."""
ATTEMPT: Final = "x-turnout-attempt"
METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
MOST_BODY_BYTES: Final = 64 << 20
CLIENT_LEFT: Final = 499
"""What nginx logs for a client that closed its connection."""
TOO_LONG: Final = 413


class HttpGate:
    """The handlers.

    Args:
        gate: Where requests become turns.
    """

    def __init__(self, gate: Gate) -> None:
        """Keep the gate."""
        self._gate = gate

    def routes(self) -> list[Route]:
        """The routes below `/turnout/gate/`."""
        return [
            Route(f"{PREFIX}place/{{path:path}}", self._place, methods=METHODS),
            Route(f"{PREFIX}choose/{{path:path}}", self._choose, methods=METHODS),
            Route(f"{PREFIX}end", self._end, methods=["GET", "POST"]),
        ]

    async def _choose(self, request: Request) -> Response:
        try:
            passage = await self._gate.choose(read(dict(request.headers), await _body(request)))
        except Refused as refused:
            return _refusal(refused)
        return _admission(passage, request)

    async def _place(self, request: Request) -> Response:
        headers = dict(request.headers)
        identity = headers.get(REQUEST_ID)
        if not identity:
            message = f"{REQUEST_ID}: got nothing, accepted is an id by which the request is ended"
            return _refusal(Refused(400, "no_request_id", message))
        attempt = headers.get(ATTEMPT, "0")
        try:
            asked = read(headers, await _body(request))
            number = int(attempt) if attempt.isdecimal() else 0
            entering = asyncio.ensure_future(self._gate.enter(asked, identity, attempt=number))
            leaving = asyncio.ensure_future(_left(request))
            try:
                await asyncio.wait({entering, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not entering.done():
                    return Response(status_code=CLIENT_LEFT)  # nobody is there to read it
                passage = await entering
            finally:
                # Also when the server ends: what is not placed then is given up.
                entering.cancel()
                leaving.cancel()
                await asyncio.gather(entering, leaving, return_exceptions=True)
        except Refused as refused:
            return _refusal(refused)
        return _admission(passage, request)

    async def _end(self, request: Request) -> Response:
        """`?id=`, `status=` as the client got it, `done=OK` where the response came to its end, `served=` by whom."""
        said = request.query_params
        passage = self._gate.passage(said.get("id", ""))
        if passage is not None:
            status = said.get("status", "")
            code = int(status) if status.isdecimal() else 0
            passage.served(said.get("served", "").strip())
            passage.ended_with(code, cut=said.get("done") != "OK")
        # Also for one that is not known: it may be told twice.
        return Response(status_code=204)


def gate_routes(gate: Gate) -> list[Route]:
    """The routes of the gate.

    Args:
        gate: Where requests become turns.

    Returns:
        Routes below `/turnout/gate/`.
    """
    return HttpGate(gate).routes()


async def _body(request: Request) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MOST_BODY_BYTES:
            raise Refused(TOO_LONG, "too_long", f"body: got more than {MOST_BODY_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


async def _left(request: Request) -> None:
    """Return when the caller goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _admission(passage: Passage, request: Request) -> Response:
    headers = {
        "x-gateway-destination-endpoint": ",".join(passage.addresses),
        "x-turnout-replica": passage.address,
        "x-turnout-turn": passage.turn or "",
    }
    location = request.headers.get(LOCATION)
    if location is not None:
        headers["x-accel-redirect"] = location
    return Response(status_code=200, headers=headers)


def _refusal(refused: Refused) -> Response:
    headers: dict[str, Any] = refused.headers
    return Response(refused.body, refused.status, headers)
