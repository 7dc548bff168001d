"""The actor: `RouterHost` with room for every caller that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import ray

from turnout.adapters.shared.host import RouterHost

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnout import Replica, Workload

MAX_CONCURRENCY: Final = 131_072
"""Calls that may be open at once. Ray's default of 1,000 deadlocks: completions queue behind the callers that wait."""

TurnoutActor: Any = ray.remote(max_concurrency=MAX_CONCURRENCY, max_restarts=-1, max_task_retries=-1)(RouterHost)
"""Actor class of `RouterHost`: it starts anew when it dies, and calls that were open are made again."""


def make_actor(
    replicas: Iterable[Replica] = (),
    workloads: Iterable[Workload] = (),
    *,
    name: str | None = None,
    options: dict[str, Any] | None = None,
    **settings: Any,  # noqa: ANN401 - as RouterHost
) -> Any:  # noqa: ANN401 - a Ray actor handle
    """Start the actor, or find the one of this name.

    Args:
        replicas: The fleet, as for `RouterHost`.
        workloads: Classes of sessions.
        name: Name under which every process finds it; None = only by its handle.
        options: Further actor options of Ray, such as `lifetime="detached"`, `namespace` or `resources`.
        **settings: Further arguments of `RouterHost`.

    Returns:
        The actor's handle.
    """
    chosen = dict(options or {})
    if name is not None:
        chosen |= {"name": name, "get_if_exists": True}
    return TurnoutActor.options(**chosen).remote(list(replicas), list(workloads), **settings)
