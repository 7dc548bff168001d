"""The gate: a request of a proxy becomes a turn, waits while it is held, and ends exactly once."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from turnout.adapters.proxies import HOLD_S
from turnout.adapters.proxies.addresses import Addresses
from turnout.adapters.proxies.answered import OK, Answered, Usage
from turnout.errors import RouterClosed, TurnConflict, TurnEnded, TurnoutError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnout._core import Decision
    from turnout.adapters.proxies.asked import Asked
    from turnout.aio import AsyncRouter

PROGRESS_TOKENS: Final = 512

NOT_NOW, UNAVAILABLE, WRONG = 429, 503, 400


class Refused(Exception):
    """A request that goes nowhere.

    Args:
        status: HTTP status: 429 it waited too long, 503 no replica can serve it, 400 it is wrong.
        reason: Why, a word of the router's closed list or the name of an error.
        message: The same in a sentence.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        found = {"content-type": "application/json", "x-turnout-reason": self.reason}
        return {**found, "retry-after": "1"} if self.status == NOT_NOW else found

    @property
    def body(self) -> bytes:
        """The answer, in the shape of OpenAI's errors."""
        import msgspec

        error = {"message": str(self), "type": "turnout", "code": self.reason}
        return msgspec.json.encode({"error": error})


class Passage:
    """One request on its way through a proxy, with its turn. Made by `Gate.enter`.

    Whatever happens first ends the turn: `complete`, `abort` or `leave`; whatever comes later changes nothing.

    Attributes:
        turn: Id of the turn; None = not tracked, the request generates nothing.
        replica: The replica.
        address: Its address, `ip:port`.
        addresses: The same and the alternatives behind it, best first.
    """

    def __init__(self, gate: Gate, asked: Asked, decision: Decision, addresses: Sequence[str], key: str | None) -> None:
        self._gate = gate
        self._key = key
        self.asked = asked
        self.decision = decision
        self.turn = None if key is None else decision.turn
        self.replica = str(decision.replica)
        self.addresses = tuple(addresses)
        self.address = self.addresses[0]
        self.answered: Answered | None = None
        self._attempt = decision.attempt
        self._ended = key is None
        self._told = 0

    @property
    def ended(self) -> bool:
        """Whether nothing is left to be told."""
        return self._ended

    def served(self, address: str) -> None:
        """A proxy says who serves it; where that is another one than was chosen, the charge moves there.

        Args:
            address: `ip:port`.
        """
        if self._ended or not address or address == self.address:
            return
        replica = self._gate.addresses.replica(address)
        if replica is None or replica == self.replica:
            return
        arguments = self._gate.submit_arguments(self.asked)
        try:
            moved = self._gate.routed.submit(turn=self.turn, attempt=self._attempt + 1, at=replica, **arguments)
        except TurnoutError:
            return  # the replica, the turn or the router has gone meanwhile: ending it is all that is left
        self._attempt = moved.attempt
        if moved.placed:
            self.replica, self.address = replica, address
            self._gate.moved += 1

    def responded(self, status: int, content_type: str = "", encoding: str = "") -> None:
        """The response begins.

        Args:
            status: HTTP status.
            content_type: `Content-Type`.
            encoding: `Content-Encoding`.
        """
        self.answered = Answered(status, content_type, encoding)

    def feed(self, chunk: bytes) -> None:
        """A part of the response has come.

        Args:
            chunk: Bytes of the body.
        """
        if self._ended or self.answered is None or self.turn is None:
            return
        self.answered.feed(chunk)
        seen = self.answered.seen_tokens
        if seen and (self._told == 0 or seen >= self._told + PROGRESS_TOKENS):
            self._told = seen
            self._gate.progress(self.turn, seen)

    def finish(self) -> None:
        """The response has ended: what it said of itself ends the turn."""
        if self.answered is not None and self.answered.good:
            self.complete(self.answered.usage(whole=True))
        else:
            self.abort()

    def complete(self, usage: Usage | None = None) -> None:
        """The turn was served.

        Args:
            usage: What is known of its output.
        """
        self._end("complete", usage or Usage())

    def abort(self, usage: Usage | None = None) -> None:
        """The turn was not served to its end.

        Args:
            usage: What is known of the output until then.
        """
        self._end("abort", usage or Usage(output_tokens=0))

    def leave(self) -> None:
        """Nothing more will be heard of the request: what has not ended is aborted."""
        if not self._ended:
            self.abort(None if self.answered is None else self.answered.usage(whole=False))

    def ended_with(self, status: int, *, cut: bool = False) -> None:
        """End it by what an access log says.

        Args:
            status: HTTP status that the client got.
            cut: Whether the response did not get to its end.
        """
        if status in OK and not cut:
            self.complete()
        else:
            self.abort(Usage() if status in OK else None)

    def _end(self, event: str, usage: Usage) -> None:
        if self._ended or self.turn is None or self._key is None:
            return
        self._ended = True
        self._gate.end(self, self._key, event, usage)


class Gate:
    """Where requests of proxies become turns.

    Args:
        routed: The asyncio router.
        hold_s: How long a turn may wait, s.

    Attributes:
        routed: The router.
        addresses: From replicas to `ip:port` and back.
        moved: Turns that a proxy sent to another replica than the chosen one.
    """

    def __init__(self, routed: AsyncRouter, *, hold_s: float = HOLD_S) -> None:
        """Nobody has entered yet."""
        self.routed = routed
        self.addresses = Addresses(routed)
        self.hold_s = hold_s
        self.moved = 0
        self._open: dict[str, Passage] = {}

    def __len__(self) -> int:
        """Requests that have a turn now."""
        return len(self._open)

    def passage(self, request: str) -> Passage | None:
        """The open passage of a request, if there is one.

        Args:
            request: The id under which it entered.
        """
        return self._open.get(request)

    async def enter(
        self, asked: Asked, request: str | None = None, *, candidates: Sequence[str] | None = None, attempt: int = 0
    ) -> Passage:
        """Let a request in: submit its turn, and wait while it is held.

        Args:
            asked: The request.
            request: The proxy's id of it, by which it is found again; also the turn's id, where that is not taken.
            candidates: Addresses of which one has to serve it; None = any replica.
            attempt: How often it has failed before; the earlier attempt is given up and its replica avoided.

        Returns:
            The passage, placed.

        Raises:
            Refused: It goes nowhere; nothing is left behind.
            CancelledError: The caller has left; nothing is left behind.
        """
        names = await self._names(candidates)
        if not asked.is_turn:
            return await self.choose(asked, names=names)
        turn, earlier = request or f"g-{secrets.token_hex(8)}", None if request is None else self._open.get(request)
        if earlier is not None and attempt:
            turn = str(earlier.turn)
        elif earlier is not None:
            turn = f"{turn}-{secrets.token_hex(4)}"
        arguments = self.submit_arguments(asked)
        arguments |= {"candidates": names, "attempt": attempt, "deadline_s": self.hold_s}
        try:
            decision = await self.routed.place(turn=turn, **arguments)
        except TurnConflict:
            # The client sent the same id again, long after.
            turn = f"{turn}-{secrets.token_hex(4)}"
            try:
                decision = await self.routed.place(turn=turn, **arguments)
            except TurnoutError as error:
                raise _refused(error) from error
        except TurnoutError as error:
            raise _refused(error) from error
        if not decision.placed:
            raise _refusal(decision)
        return await self._let_in(asked, decision, request if earlier is None or attempt else None)

    async def choose(self, asked: Asked, *, names: Sequence[str] | None = None) -> Passage:
        """Choose a replica for a request that is not tracked: nothing waits, nothing has to be ended.

        Args:
            asked: The request.
            names: Replicas of which one has to serve it; None = any.

        Returns:
            A passage without turn.

        Raises:
            Refused: No replica can serve it.
        """
        try:
            decision = self.routed.choose(candidates=names, **asked.arguments())
        except TurnoutError as error:
            raise _refused(error) from error
        if not decision.placed:
            raise _refusal(decision)
        return Passage(self, asked, decision, await self._addresses_of(decision), None)

    def submit_arguments(self, asked: Asked) -> dict[str, Any]:
        """What the router's `submit` takes of a request."""
        return {**asked.arguments(), "parent": asked.parent, "priority": asked.priority}

    def progress(self, turn: str, output_tokens: int) -> None:
        """A running turn has come so far."""
        try:
            self.routed.progress(turn, output_tokens)
        except TurnoutError:
            return  # it is gone; its end says so

    def end(self, passage: Passage, key: str, event: str, usage: Usage) -> None:
        """End the turn of a passage: called by it, once."""
        if self._open.get(key) is passage:
            del self._open[key]
        ending = self.routed.complete if event == "complete" else self.routed.abort
        turn = str(passage.turn)
        try:
            ending(turn, usage.output, output_tokens=usage.output_tokens, cached_tokens=usage.cached_tokens)
        except TurnoutError:
            ending(turn)  # what the engine says of its output is not what the router takes; that it ended is
        asked = passage.asked
        if asked.last and asked.session is not None:
            self.routed.end_session(asked.session, completed=event == "complete")

    def leave_all(self) -> None:
        """Nothing more will be heard of anybody: the proxy's way in is closed."""
        for passage in list(self._open.values()):
            passage.leave()

    async def _let_in(self, asked: Asked, decision: Decision, request: str | None) -> Passage:
        try:
            addresses = await self._addresses_of(decision)
        except BaseException:
            self.routed.abort(decision.turn)
            raise
        if asked.prompt is not None:
            # Hashed: half a byte per token, for as long as the proxy may still send it elsewhere.
            asked = replace(asked, prompt=self.routed.router.prompt(asked.prompt))
        key = request or decision.turn
        passage = Passage(self, asked, decision, addresses, key)
        self._open[key] = passage
        return passage

    async def _names(self, candidates: Sequence[str] | None) -> list[str] | None:
        if candidates is None:
            return None
        await self.addresses.learn()
        names = [name for address in candidates if (name := self.addresses.replica(address)) is not None]
        if not names:
            raise Refused(UNAVAILABLE, "no_replica", f"candidates: got {list(candidates)}, none of them is a replica")
        return names

    async def _addresses_of(self, decision: Decision) -> list[str]:
        found: list[str] = []
        for name in (str(decision.replica), *decision.alternatives):
            address = await self.addresses.address(name)
            if address is None and not found:
                message = f"replica: {name!r} is no address; accepted are replicas named host:port"
                raise Refused(UNAVAILABLE, "no_address", message)
            if address is not None and address not in found:
                found.append(address)
        return found


def _refusal(decision: Decision) -> Refused:
    prompt = decision.receipt.prompt_tokens
    message = f"turn {decision.turn!r} is {decision.status}, {decision.reason}; prompt {prompt} tokens"
    return Refused(NOT_NOW if decision.status == "expired" else UNAVAILABLE, decision.reason, message)


def _refused(error: TurnoutError) -> Refused:
    status = UNAVAILABLE if isinstance(error, RouterClosed | TurnEnded | TurnConflict) else WRONG
    return Refused(status, type(error).__name__, str(error))
