"""The actor class that verl constructs: pre-decorated, because verl's own `ray.remote` would let 1,000 callers in.

Completions queue behind the callers that wait, so that with more of them than the actor has room for nothing moves.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import ray
from ray.exceptions import ActorDiedError

from turnout.adapters.ray import MAX_CONCURRENCY
from turnout.adapters.verl.host import VerlHost

PING_S: Final = 0.5
"""A server that does not answer in time is busy, not dead, s."""


class _Balancer(VerlHost):
    """`VerlHost` with eyes for dead actors."""

    async def _is_dead(self, handle: Any) -> bool:  # noqa: ANN401 - an actor handle
        try:
            async with asyncio.timeout(PING_S):
                await handle.__ray_ready__.remote()
        except TimeoutError:
            return False
        except ActorDiedError:
            return True
        return False


TurnoutBalancer: Any = ray.remote(max_concurrency=MAX_CONCURRENCY, max_restarts=-1, max_task_retries=-1)(_Balancer)
"""`router_class: turnout.adapters.verl.TurnoutBalancer`"""
