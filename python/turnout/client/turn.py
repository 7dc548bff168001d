"""One turn as a context, decided by a router elsewhere."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from turnout.errors import TurnExpired, TurnLost, TurnNotPlaced, TurnRejected

if TYPE_CHECKING:
    from types import TracebackType

    from turnout.client.arguments import AbortArguments, EndArguments
    from turnout.client.router import RemoteRouter
    from turnout.server.schema import Decision, Outcome, Submit

_REFUSALS: Final = {"rejected": TurnRejected, "expired": TurnExpired, "lost": TurnLost}


def not_placed(decision: Decision) -> TurnNotPlaced:
    """The error that says why a turn is not placed.

    Args:
        decision: A decision that is not `placed`.

    Returns:
        The error, to be raised.
    """
    receipt = decision.receipt
    limit = "none" if receipt.limit is None else f"{receipt.limit:g}"
    message = (
        f"turn: {decision.turn!r} is {decision.status}, {decision.reason}; prompt {receipt.prompt_tokens} tokens, "
        f"limit {limit}"
    )
    error = _REFUSALS.get(decision.status, TurnNotPlaced)(message, "turn", decision.turn, "a turn that can be placed")
    error.decision = decision
    return error


class RemoteTurn:
    """A turn, made by `RemoteRouter.turn` and used with `async with`.

    Entering waits until the turn is placed. Leaving the block without `complete` aborts it, once, whatever the reason:
    an exception, a cancellation, or that it was forgotten.

    Args:
        remote: The client.
        message: What is submitted.

    Attributes:
        lost: Set when the server says that the turn was lost while it ran, at most one beat later: stop working on it.
    """

    def __init__(self, remote: RemoteRouter, message: Submit) -> None:
        self._remote = remote
        self.message = message
        self._decision: Decision | None = None
        self._closed = False
        self.lost = asyncio.Event()

    @property
    def decision(self) -> Decision:
        """The decision that placed it."""
        if self._decision is None:
            raise TurnNotPlaced("turn: it was not entered; use `async with remote.turn(...)`")
        return self._decision

    @property
    def id(self) -> str:
        """The turn's id."""
        return self.decision.turn

    @property
    def replica(self) -> str:
        """The replica to send it to."""
        replica = self.decision.replica
        if replica is None:
            raise not_placed(self.decision)
        return replica

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that are judged to be cached there."""
        return self.decision.cached_tokens

    async def __aenter__(self) -> Self:
        """Wait until it is placed."""
        decision = await self._remote.wait(self.message, None, keep=False)
        if not decision.placed:
            raise not_placed(decision)
        self._decision = decision
        self._remote.running[self.id] = self
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Abort it unless it was ended."""
        if self._leave():
            # In a task of the client's: a second cancellation must not leave the turn charged.
            await asyncio.shield(self._remote.give_up(self.id))

    async def progress(self, output_tokens: int) -> Outcome:
        """Report output so far, see `turnout.Router.progress`."""
        return await self._remote.progress(self.id, output_tokens)

    async def complete(
        self,
        output: Any = None,  # noqa: ANN401 - tokens, as Router.complete
        **fields: Unpack[EndArguments],
    ) -> Outcome:
        """End it: prompt and output become the session's history, see `turnout.Router.complete`."""
        outcome = await self._remote.complete(self.id, output, **fields)
        self._leave()
        return outcome

    async def abort(
        self,
        output: Any = None,  # noqa: ANN401 - tokens, as Router.abort
        **fields: Unpack[AbortArguments],
    ) -> Outcome | None:
        """End it unfinished; what it generated stays history, see `turnout.Router.abort`.

        Returns:
            The outcome; None where it has ended already, or a later attempt of this client has taken its place.
        """
        if not self._leave():
            return None
        return await self._remote.abort(self.id, output, **fields)

    def tell_lost(self) -> None:
        """Note that it is lost: called by the client."""
        self._leave()
        self.lost.set()

    def _leave(self) -> bool:
        """It is over here. Whether the server still has to hear of it."""
        if self._closed or self._decision is None:
            return False
        self._closed = True
        if self._remote.running.get(self.id) is not self:
            return False  # a later attempt runs under this id
        del self._remote.running[self.id]
        return True
