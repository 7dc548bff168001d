"""Callers that answer for their sessions: who falls silent has lost them."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import TYPE_CHECKING, Final

from turnout.server.schema import BeatReply, LostTurn

if TYPE_CHECKING:
    import turnout
    from turnout.aio import AsyncRouter

SILENCE_S: Final = 60.0
"""Six beats of ten seconds."""
KEPT_LOSSES: Final = 4_096


class Owners:
    """Watches every owner that a submit or a beat has named over HTTP.

    Args:
        routed: The router.
        silence_s: Silence after which an owner is gone, s.
    """

    def __init__(self, routed: AsyncRouter, silence_s: float = SILENCE_S) -> None:
        self._routed = routed
        self.silence_s = silence_s
        self.instance = secrets.token_hex(8)
        self._heard: dict[str, float] = {}
        self._owner_of: dict[str, str] = {}
        self._lost: dict[str, deque[LostTurn]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.unlisten = routed.listen(self._hear)

    def heard(self, owner: str, turn: str | None = None) -> None:
        """Note a sign of life, and which turn is the owner's.

        Args:
            owner: The owner.
            turn: A turn of it that is open.
        """
        loop = asyncio.get_running_loop()
        self._heard[owner] = loop.time()
        if turn is not None:
            self._owner_of[turn] = owner
        if self._timer is None:
            self._timer = loop.call_later(self.silence_s, self._check, loop)

    def ended(self, turn: str) -> None:
        """Forget a turn that has ended.

        Args:
            turn: The turn.
        """
        self._owner_of.pop(turn, None)

    def beat(self, owner: str, since_seq: int) -> BeatReply:
        """Note a sign of life and tell what was lost.

        Args:
            owner: The owner.
            since_seq: The highest event number of a loss that it has heard of.

        Returns:
            Its turns that were lost since.
        """
        self.heard(owner)
        lost = [turn for turn in self._lost.get(owner, ()) if turn.seq > since_seq]
        return BeatReply(instance=self.instance, silence_s=self.silence_s, lost=lost)

    def gone(self, owner: str) -> turnout.Outcome:
        """End the sessions of an owner.

        Args:
            owner: The owner.

        Returns:
            What became of the event.
        """
        self._heard.pop(owner, None)
        self._lost.pop(owner, None)
        self._owner_of = {turn: other for turn, other in self._owner_of.items() if other != owner}
        return self._routed.owner_lost(owner)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for owner in [owner for owner, at in self._heard.items() if now - at >= self.silence_s]:
            self.gone(owner)
        # Armed only while somebody is watched, for the moment at which the most silent one would be gone.
        due = min(self._heard.values(), default=None)
        self._timer = None if due is None else loop.call_at(due + self.silence_s, self._check, loop)

    def _hear(self, decision: turnout.Decision, session: str | None, workload: str | None, waited_s: float) -> None:
        del session, workload, waited_s
        if decision.status in {"lost", "expired"}:
            owner = self._owner_of.pop(decision.turn, None)
            if owner is not None and decision.status == "lost":
                losses = self._lost.setdefault(owner, deque(maxlen=KEPT_LOSSES))
                losses.append(LostTurn(turn=decision.turn, reason=decision.reason, seq=decision.seq))
