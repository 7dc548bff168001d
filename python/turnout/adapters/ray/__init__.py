"""One router for many processes, in a Ray actor: `make_actor` and `TurnoutActor` here, `TurnoutClient` in each caller.

```python
actor = make_actor([Replica("10.0.0.1:8000", kv_tokens=788_000)], name="turnout")
async with TurnoutClient(actor) as client:
    async with client.turn(prompt_ids, session="trajectory-17") as turn:
        turn.complete(output=await generate(turn.replica, prompt_ids))
    await client.end_session("trajectory-17")
```
"""

from __future__ import annotations

from turnout.errors import MissingExtra

try:
    import ray as _ray  # noqa: F401 - says at once what is missing
except ImportError as error:
    raise MissingExtra("the Ray actor needs ray: pip install 'turnout[ray]'") from error

from turnout.adapters.ray.actor import MAX_CONCURRENCY, TurnoutActor, make_actor
from turnout.adapters.ray.client import ActorTurn, TurnoutClient
from turnout.adapters.shared.host import RouterHost
from turnout.adapters.shared.messages import Hello, Placement

__all__ = [
    "MAX_CONCURRENCY",
    "ActorTurn",
    "Hello",
    "Placement",
    "RouterHost",
    "TurnoutActor",
    "TurnoutClient",
    "make_actor",
]
