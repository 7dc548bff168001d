"""What the server needs of the asynchronous router: `turnout.aio.AsyncRouter` has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from turnout import Decision, Outcome, Replica, Router

Listener = Callable[["Decision", "str | None", "str | None", float], None]
"""Called for every decision with (decision, session, workload, time waited in s)."""


class Held(Protocol):
    """A turn that waits."""

    @property
    def turn(self) -> str:
        """Its id."""

    @property
    def session(self) -> str | None:
        """Its session, where the caller named one."""

    @property
    def workload(self) -> str | None:
        """Its workload, where the caller named one."""

    @property
    def since_s(self) -> float:
        """When it was held first, s on the clock of `time.monotonic()`."""

    @property
    def decision(self) -> Decision:
        """Why it waits."""


class Routed(Protocol):
    """The asynchronous router: every event of `turnout.Router`, waiting, and listening."""

    @property
    def router(self) -> Router:
        """The router behind it."""

    async def place(
        self,
        prompt: Any = None,  # noqa: ANN401 - tokens in any of the forms that `Router.submit` takes
        *,
        wait_s: float | None = None,
        keep: bool = False,
        **submit_args: Any,  # noqa: ANN401 - those of `Router.submit`
    ) -> Decision:
        """Submit and wait while held; after `wait_s` the held decision."""
        ...

    def listen(self, callback: Listener, /) -> Callable[[], None]:
        """Call back for every decision; the answer ends it."""
        ...

    def held(self) -> Sequence[Held]:
        """The turns that wait."""
        ...

    def submit(self, prompt: Any = None, **submit_args: Any) -> Decision: ...  # noqa: ANN401, D102 - as `Router.submit`
    def choose(self, prompt: Any = None, **choose_args: Any) -> Decision: ...  # noqa: ANN401, D102 - as `Router.choose`
    def peek(  # noqa: D102 - as `Router.peek`
        self,
        prompt: Any = None,  # noqa: ANN401 - tokens
        *,
        session: str | None = None,
        namespace: str = "",
    ) -> list[tuple[str, int]]: ...
    def progress(self, turn: str, output_tokens: int) -> Outcome: ...  # noqa: D102 - as `Router.progress`
    def complete(self, turn: str, output: Any = None, **counts: int | None) -> Outcome: ...  # noqa: ANN401, D102
    def abort(self, turn: str, output: Any = None, **counts: int | None) -> Outcome: ...  # noqa: ANN401, D102
    def fork(self, session: str, child: str) -> Outcome: ...  # noqa: D102 - as `Router.fork`
    def end_session(self, session: str, *, completed: bool = True) -> Outcome: ...  # noqa: D102
    def owner_lost(self, owner: str) -> Outcome: ...  # noqa: D102 - as `Router.owner_lost`
    def add_replica(self, replica: Replica) -> Outcome: ...  # noqa: D102 - as `Router.add_replica`
    def set_replica(self, replica: Replica) -> Outcome: ...  # noqa: D102 - as `Router.set_replica`
    def drain_replica(self, name: str) -> Outcome: ...  # noqa: D102 - as `Router.drain_replica`
    def remove_replica(self, name: str) -> Outcome: ...  # noqa: D102 - as `Router.remove_replica`
    def lose_replica(self, name: str) -> Outcome: ...  # noqa: D102 - as `Router.lose_replica`
    def weights_updated(self, version: int, *, mode: Any = "flush", replica: str | None = None) -> Outcome: ...  # noqa: ANN401, D102
    def observe(self, replica: str, **reports: Any) -> Outcome: ...  # noqa: ANN401, D102 - as `Router.observe`
    def kv_events(self, replica: str, payload: bytes, *, sequence: int, rank: int | None = None) -> Outcome: ...  # noqa: D102
