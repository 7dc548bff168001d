"""Whether the process lives, and whether it can place turns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.responses import JSONResponse
from starlette.routing import Route

from turnout.errors import InternalError

if TYPE_CHECKING:
    from starlette.requests import Request

    from turnout.aio import AsyncRouter


LOOK_S: Final = 0.5
"""Between two looks at whether the router has failed."""


def health_routes(routed: AsyncRouter) -> list[Route]:
    """`/healthz`: a restart would not help. `/readyz`: it can place turns.

    A router that has failed answers no more. Its process ends soon; until then `/healthz` says no as well.

    Args:
        routed: The router.

    Returns:
        The routes.
    """

    async def alive(_: Request) -> JSONResponse:
        problem = failure_of(routed)
        return _answer("alive", "failed", [problem] if problem else [])

    async def ready(_: Request) -> JSONResponse:
        problem = failure_of(routed)
        if problem:
            return _answer("ready", "failed", [problem])
        if routed.closed or not routed.clock.alive:
            return _answer("ready", "not ready", ["the router's clock does not run"])
        problems = [] if routed.router.view().accepting.any() else ["no replica accepts turns"]
        return _answer("ready", "not ready", problems)

    return [Route("/healthz", alive), Route("/readyz", ready)]


def failure_of(routed: AsyncRouter) -> str:
    """What a failed router says of itself.

    Args:
        routed: The router.

    Returns:
        The words; none where it has not failed.
    """
    try:
        routed.router.stats()
    except InternalError as error:
        return f"the router has failed: {error}"
    # What the clock found may be known to nobody else: it stops then.
    ended = not routed.closed and not routed.clock.alive and routed.clock.last_error
    return f"the router has failed: {routed.clock.last_error}" if ended else ""


async def until_failed(routed: AsyncRouter) -> str:
    """Wait for the router to fail.

    Args:
        routed: The router.

    Returns:
        What it says then.
    """
    while not (problem := failure_of(routed)):  # noqa: ASYNC110 - whoever meets the failure knows of no event
        await asyncio.sleep(LOOK_S)
    return problem


def _answer(good: str, bad: str, problems: list[str]) -> JSONResponse:
    return JSONResponse({"status": bad if problems else good, "problems": problems}, 503 if problems else 200)
