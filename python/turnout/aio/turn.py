"""One turn as a context: placed when the block begins, ended when it is left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, Unpack

from turnout.errors import TurnExpired, TurnLost, TurnNotPlaced, TurnRejected

if TYPE_CHECKING:
    from types import TracebackType

    from turnout._core import Decision, Outcome
    from turnout.aio.arguments import AbortArguments, CompleteArguments, SubmitArguments
    from turnout.aio.router import AsyncRouter

_REFUSALS = {"rejected": TurnRejected, "expired": TurnExpired, "lost": TurnLost}


def not_placed(decision: Decision) -> TurnNotPlaced:
    """The error that says why a turn is not placed.

    Args:
        decision: A decision that is not `placed`.

    Returns:
        The error, to be raised.
    """
    receipt = decision.receipt
    message = (
        f"turn: {decision.turn!r} is {decision.status}, {decision.reason}; prompt {receipt.prompt_tokens} tokens, "
        f"limit {receipt.limit:g}"
    )
    error = _REFUSALS.get(decision.status, TurnNotPlaced)(message, "turn", decision.turn, "a turn that can be placed")
    error.decision = decision
    return error


class Turn:
    """A turn, made by `AsyncRouter.turn` and used with `async with`.

    Entering waits until the turn is placed. Leaving the block without `complete` aborts it, whatever the reason: an
    exception, a cancellation, or that it was forgotten.

    Attributes:
        lost: Set when the turn is lost while it runs (its replica is gone, its session was ended): stop working on it.
    """

    def __init__(self, routed: AsyncRouter, prompt: Any, arguments: SubmitArguments) -> None:  # noqa: ANN401 - as submit
        """Keep what is submitted later."""
        self._routed = routed
        self._prompt = prompt
        self._arguments = arguments
        self._decision: Decision | None = None
        self._closed = False
        self.lost = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    @property
    def decision(self) -> Decision:
        """The decision: that it was placed and, once `lost` is set, that it is lost."""
        if self._decision is None:
            raise TurnNotPlaced("turn: it was not entered; use `async with routed.turn(...)`")
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

    async def __aenter__(self) -> Self:
        """Wait until it is placed."""
        decision = await self._routed.place(self._prompt, watcher=self, **self._arguments)
        if not decision.placed:
            raise not_placed(decision)
        self._decision = decision
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Abort it unless it was ended."""
        if not self._closed:
            self.abort()

    def progress(self, output_tokens: int, *, served_by: str | None = None) -> Outcome:
        """Report output so far, see `turnout.Router.progress`."""
        return self._routed.progress(self.id, output_tokens, served_by=served_by)

    def complete(
        self,
        output: Any = None,  # noqa: ANN401 - tokens, as Router.complete
        **arguments: Unpack[CompleteArguments],
    ) -> Outcome:
        """End it: prompt and output become the session's history, see `turnout.Router.complete`."""
        outcome = self._routed.complete(self.id, output, **arguments)
        self._leave()
        return outcome

    def abort(
        self,
        output: Any = None,  # noqa: ANN401 - tokens, as Router.abort
        **arguments: Unpack[AbortArguments],
    ) -> Outcome | None:
        """End it unfinished; what it generated stays history, see `turnout.Router.abort`.

        Returns:
            The outcome; None where a later attempt has taken its place and is left alone.
        """
        outcome = None
        if not self._routed.superseded(self.id, self.decision.attempt):
            outcome = self._routed.abort(self.id, output, **arguments)
        self._leave()
        return outcome

    def tell_lost(self, decision: Decision) -> None:
        """Note that it is lost: called by the shell."""
        self._decision = decision
        self._closed = True
        self.lost.set()

    def _leave(self) -> None:
        self._closed = True
        self._routed.unwatch(self.id, self)
