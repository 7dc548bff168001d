"""The dashboard: one page that holds all it needs, and the numbers that it asks for once a second.

The page is code of this package alone: its policy forbids scripts, styles and pictures from anywhere else, and it
inserts every name that callers chose as text. It needs no token; the numbers do where the server has one.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from starlette.responses import Response
from starlette.routing import Route

from turnout.errors import InvalidArgument, TurnoutError
from turnout.server import binary, schema
from turnout.server.dashboard_data import Gatherer
from turnout.server.replies import error_of, reply, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

    from turnout.aio import AsyncRouter
    from turnout.feeds.status import FleetStatus

PAGE_PATHS: Final = frozenset({"/", "/dashboard"})
"""The page itself tells nothing, so it needs no token."""
DATA_PATH: Final = "/turnout/v1/dashboard"


def page() -> tuple[bytes, dict[str, str]]:
    """Put the page together from its three parts.

    Returns:
        The page, and its headers: scripts and styles run by their hashes alone.
    """
    folder = files("turnout.server") / "page"
    html, style, script = ((folder / f"dashboard.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    html = html.replace("/*style*/", style).replace("/*script*/", script)
    policy = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return html.encode(), headers


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def dashboard_routes(routed: AsyncRouter, fleet: Callable[[], FleetStatus] | None = None) -> list[Route]:
    """The page, and what it asks for.

    Args:
        routed: The router.
        fleet: Answers what is known of the engines now: `Fleet.status`; None = no engines are followed.

    Returns:
        `/`, `/dashboard` and `/turnout/v1/dashboard`.
    """
    body, headers = page()
    gatherer = Gatherer(routed, fleet, secrets.token_hex(8))

    async def show(_: Request) -> Response:
        return Response(body, media_type="text/html", headers=headers)

    async def data(request: Request) -> Response:
        query = request.query_params
        try:
            board = await gatherer.board(
                after=_count(query, "after"),
                find=query.get("find", ""),
                order=query.get("order", "row"),
                skip=_count(query, "skip"),
            )
        except TurnoutError as error:
            return reply(schema.ErrorReply(error=error_of(error)), binary.JSON, status_of(error))
        return reply(board, binary.JSON)

    return [*(Route(path, show) for path in sorted(PAGE_PATHS)), Route(DATA_PATH, data)]


def _count(query: Mapping[str, str], name: str) -> int:
    given = query.get(name, "0")
    # Longer numbers than any count are refused before they are read.
    if not (given.isascii() and given.isdecimal() and len(given) < 16):  # noqa: PLR2004 - digits
        accepted = "a whole number of at least 0"
        raise InvalidArgument(f"{name}: got {given[:40]!r}, accepted is {accepted}", name, given[:40], accepted)
    return int(given)
