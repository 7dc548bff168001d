"""The latest decisions, kept for explanations and callers who poll."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from turnout.errors import UnknownTurn
from turnout.server.explain import explain
from turnout.server.schema import Explanation, decision_of

if TYPE_CHECKING:
    import turnout
    from turnout.aio import AsyncRouter

KEPT: Final = 65_536
"""Turns whose last decision is remembered; the router remembers as many closed ones."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A decision as it was made.

    Attributes:
        decision: The decision.
        session: Session, where named.
        workload: Workload, where named.
        waited_s: Time in line, s.
        at_s: When, s on the clock of `time.time()`.
    """

    decision: turnout.Decision
    session: str | None
    workload: str | None
    waited_s: float
    at_s: float


class Recent:
    """Listens to a router and remembers the last decision of each of the latest turns.

    Args:
        routed: The router to listen to.
    """

    def __init__(self, routed: AsyncRouter) -> None:
        self._routed = routed
        self._by_turn: OrderedDict[str, Seen] = OrderedDict()
        self.unlisten = routed.listen(self._hear)

    def _hear(self, decision: turnout.Decision, session: str | None, workload: str | None, waited_s: float) -> None:
        seen = Seen(decision, session, workload, waited_s, time.time())
        if decision.turn:
            self._by_turn[decision.turn] = seen
            self._by_turn.move_to_end(decision.turn)
            if len(self._by_turn) > KEPT:
                self._by_turn.popitem(last=False)

    def ended(self, turn: str, attempt: int) -> turnout.Decision | None:
        """How a turn left the line without being placed, for a caller who was not waiting then.

        Args:
            turn: The turn.
            attempt: The attempt.

        Returns:
            The decision `expired` or `lost`; None when it did not end so.
        """
        seen = self._by_turn.get(turn)
        if seen is None or seen.decision.attempt != attempt or seen.decision.status not in {"expired", "lost"}:
            return None
        return seen.decision

    def explain(self, turn: str) -> Explanation:
        """Say why a turn waits or where it went.

        Args:
            turn: The turn.

        Returns:
            The words with the numbers.

        Raises:
            UnknownTurn: It is not among the latest.
        """
        for held in self._routed.held():
            if held.turn == turn:
                seen = Seen(held.decision, held.session, held.workload, held.held_s, time.time())
                break
        else:
            found = self._by_turn.get(turn)
            if found is None:
                accepted = f"one of the latest {KEPT} turns"
                raise UnknownTurn(f"turn: got {turn!r}, accepted is {accepted}", "turn", repr(turn), accepted)
            seen = found
        return Explanation(
            turn=turn,
            words=explain(seen.decision, seen.waited_s),
            waited_s=seen.waited_s,
            session=seen.session,
            workload=seen.workload,
            decision=decision_of(seen.decision),
        )
