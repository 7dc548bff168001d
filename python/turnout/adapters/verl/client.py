"""What the plug-in puts into verl's `LLMServerClient`: turns asked for in batches, and told what became of them.

verl passes the server id that `_acquire_server` returned to `_release_server` untouched, and asks the handle it
returned beside it for the tokens. So the id carries the turn, and the handle notes the answer on its way.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakKeyDictionary

from ray.exceptions import ActorDiedError, RayActorError

from turnout.adapters.ray import TurnoutClient
from turnout.errors import TurnoutError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from turnout.adapters.verl.config import VerlConfig

_LOG = logging.getLogger(__name__)

ABORTED: Final = ("aborted", "abort")


class Trajectory:
    """What verl knows of the trajectory that the running task belongs to.

    Args:
        sample: The sample's fields: `data_source`, `uid`, `index` and so on.
    """

    def __init__(self, sample: Mapping[str, Any]) -> None:
        """Keep the sample; sessions are added by its turns."""
        self.sample = sample
        self._sessions: dict[str, TurnoutClient] = {}

    def add(self, session: str, client: TurnoutClient) -> None:
        """A session of it.

        Args:
            session: Its id.
            client: Who knows it.
        """
        self._sessions[session] = client

    def end(self, *, completed: bool) -> None:
        """End its sessions.

        Args:
            completed: Whether they count in the mixture.
        """
        for session, client in self._sessions.items():
            client.end_session(session, completed=completed)


_TRAJECTORY: ContextVar[Trajectory | None] = ContextVar("turnout_trajectory", default=None)


@contextmanager
def trajectory(sample: Mapping[str, Any]) -> Iterator[Trajectory]:
    """Within this block turns belong to one trajectory, which ends with it.

    Args:
        sample: The sample's fields.

    Yields:
        The trajectory.
    """
    current = Trajectory(sample)
    token = _TRAJECTORY.set(current)
    completed = False
    try:
        yield current
        completed = True
    finally:
        _TRAJECTORY.reset(token)
        current.end(completed=completed)


class Leased(str):
    """A server id with the turn that runs there.

    Attributes:
        turn: Id of the turn; empty when it is not tracked.
        session: The trajectory.
        output: What the server answered; None before.
        error: What it raised.
    """

    __slots__ = ("error", "output", "session", "turn")

    def __new__(cls, server_id: str, turn: str, session: str) -> Self:
        """The id, and the turn beside it."""
        leased = super().__new__(cls, server_id)
        leased.turn, leased.session, leased.output, leased.error = turn, session, None, None
        return leased

    turn: str
    session: str
    output: Any
    error: BaseException | None


class _Noted:
    """A server's handle whose `generate` notes what it answers; everything else is the handle's."""

    def __init__(self, handle: Any, leased: Leased) -> None:  # noqa: ANN401 - an actor handle
        self._handle, self._leased = handle, leased
        self.generate = _NotedMethod(handle.generate, leased)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - an actor's method
        return getattr(self._handle, name)


class _NotedMethod:
    def __init__(self, method: Any, leased: Leased) -> None:  # noqa: ANN401 - an actor's method
        self._method, self._leased = method, leased

    def remote(self, *args: Any, **kwargs: Any) -> _NotedCall:  # noqa: ANN401 - verl's arguments
        return _NotedCall(self._method.remote(*args, **kwargs), self._leased)


class _NotedCall:
    def __init__(self, reference: Any, leased: Leased) -> None:  # noqa: ANN401 - a Ray reference
        self._reference, self._leased = reference, leased

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:  # noqa: ANN401 - verl's TokenOutput
        try:
            self._leased.output = await self._reference
        except BaseException as error:
            self._leased.error = error
            raise
        return self._leased.output


class Feedback:
    """The turns of one `LLMServerClient` in one event loop.

    Args:
        balancer: Handle of the `TurnoutBalancer`.
    """

    def __init__(self, balancer: Any) -> None:  # noqa: ANN401 - an actor handle
        """Keep the handle; the first turn asks for the rest."""
        self._balancer = balancer
        self._client = TurnoutClient(balancer)
        self._config: VerlConfig | None = None
        self._handles: dict[str, Any] = {}

    async def acquire(self, request_id: str, fields: Mapping[str, Any]) -> tuple[str, Any]:
        """Place a turn, and wait while it is held.

        Args:
            request_id: The trajectory's id.
            fields: What verl's `generate` was called with.

        Returns:
            The server's id, which carries the turn, and its handle, which notes the answer. Where the router cannot be
            asked or refuses, some known server, untracked.

        Raises:
            RuntimeError: There are no servers, in verl's words.
        """
        current = _TRAJECTORY.get()
        try:
            if self._config is None or not self._handles:
                await self._introduce()
            arguments = self._arguments(request_id, fields, current)
            if current is not None:
                current.add(request_id, self._client)
            placement = await self._client.place(fields["prompt_ids"], **arguments)
            if placement.replica not in self._handles:
                await self._introduce()
            if placement.placed and placement.replica in self._handles:
                leased = Leased(placement.replica, placement.turn, request_id)
                return leased, _Noted(self._handles[leased], leased)
            if placement.placed:  # its server has gone meanwhile
                self._client.abort(placement.turn)
            _LOG.warning("%s is %s (%s): routed untracked", request_id, placement.status, placement.reason)
            if self._config is not None and self._config.turns == "one":
                self._client.end_session(request_id, completed=False)
        except (TurnoutError, TypeError):
            _LOG.exception("%s is routed untracked", request_id)
        if not self._handles:
            from turnout.adapters.verl.host import NO_SERVERS

            raise RuntimeError(NO_SERVERS)
        server_id = random.choice(list(self._handles))  # noqa: S311 - spreads load
        return Leased(server_id, "", request_id), self._handles[server_id]

    def release(self, leased: Leased) -> None:
        """Tell what became of a turn.

        Args:
            leased: The id that `acquire` answered.
        """
        if leased.turn:
            self._tell(leased)
            if self._config is not None and self._config.turns == "one":
                self._client.end_session(leased.session)

    def _tell(self, leased: Leased) -> None:
        if isinstance(leased.error, ActorDiedError):
            self._handles.pop(leased, None)
            self._client.event("server_died", server=str(leased))
        output = leased.output
        if output is None:
            self._client.abort(leased.turn)
            return
        extra = getattr(output, "extra_fields", None) or {}
        if extra.get("global_steps") is not None:
            self._client.event("weights_seen", server=str(leased), step=int(extra["global_steps"]))
        told: dict[str, Any] = {"output": getattr(output, "token_ids", None) or None}
        if extra.get("num_cached_tokens") is not None:
            told["cached_tokens"] = int(extra["num_cached_tokens"])
        stopped = getattr(output, "stop_reason", None) in ABORTED
        (self._client.abort if stopped else self._client.complete)(leased.turn, **told)

    async def close(self) -> None:
        """Abort what is open and end the client."""
        await self._client.close()

    async def _introduce(self) -> None:
        try:
            self._config, self._handles = await self._balancer.introduce.remote()
        except RayActorError:
            if not self._handles:
                raise
            _LOG.exception("the router cannot be reached")

    def _arguments(self, request_id: str, fields: Mapping[str, Any], current: Trajectory | None) -> dict[str, Any]:
        assert self._config is not None  # noqa: S101 - `acquire` asked for it
        known = fields if current is None else {**current.sample, **fields}
        return self._config.arguments(request_id, known)


_FEEDBACKS: WeakKeyDictionary[Any, tuple[asyncio.AbstractEventLoop, Feedback]] = WeakKeyDictionary()
"""By client of verl. Beside it rather than in it, because verl pickles its clients."""


def feedback_of(client: Any) -> Feedback:  # noqa: ANN401 - an LLMServerClient
    """The turns of a client in the running event loop.

    Args:
        client: verl's client.

    Returns:
        Its feedback.
    """
    loop = asyncio.get_running_loop()
    known = _FEEDBACKS.get(client)
    if known is None or known[0] is not loop:
        known = (loop, Feedback(client._load_balancer))  # noqa: SLF001 - verl's own attribute for its subclasses
        _FEEDBACKS[client] = known
    return known[1]
