"""Plays a history of events to a router that a policy drives, and checks after each what can be seen from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from turnout import control
from turnout.errors import (
    HistoryMismatch,
    InternalError,
    InvalidArgument,
    PolicyError,
    TurnConflict,
    UnknownReplica,
    UnknownSession,
    UnknownTurn,
)
from turnout.router import Router
from turnout.testing import events
from turnout.testing.strategies import BLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnout import Decision
    from turnout.config import Replica, Workload
    from turnout.policies import FleetView
    from turnout.testing.subject import Subject

_REFUSALS: Final = (HistoryMismatch, InvalidArgument, TurnConflict, UnknownReplica, UnknownSession, UnknownTurn)
"""What a caller's mistake raises; a history is full of them."""

_REMEMBERED_S: Final = 600.0
"""For so long at least the router knows that a turn has ended."""

_ADMISSIONS: Final = {"admitted", "resumed"}


@dataclass
class _Turn:
    """What the caller of a router knows of a turn."""

    session: str | None
    attempt: int
    prompt_tokens: int
    status: str
    replica: str | None = None
    ended_at: float = 0.0

    @property
    def open(self) -> bool:
        return self.status in {"placed", "held"}


class Player:
    """A router, the policy that drives it, and what its callers know.

    Args:
        subject: The policy under test; violations are raised under its law.
        fleet: The replicas at the start.
        workloads: The workloads.
    """

    def __init__(self, subject: Subject, fleet: Sequence[Replica], workloads: Sequence[Workload]) -> None:
        self.subject = subject
        self.router = Router(fleet, workloads, block_tokens=BLOCK, hash_key=bytes(16))
        self.policy = subject.fresh()
        self.state = control.ControlState()
        self.now = 0.0
        self.turns: dict[str, _Turn] = {}
        self.lengths: dict[str, int] = {}
        self.limited: set[str] = set()
        self.told: list[Decision] = []
        self.view = self.router.view(now=self.now)

    def play(self, event: events.Event) -> None:
        """Play one event, hear what came out of it, and check everything."""
        before, self.told = self.view, []
        try:
            self._apply(event)
        except _REFUSALS:
            pass  # refused calls change nothing, which the checks below would show
        except PolicyError as error:
            self.subject.breaks(str(error))
        self._hear()
        self._check(before, event)

    def end_everything(self) -> None:
        """End what is left: nothing may stay in the books."""
        for name, turn in list(self.turns.items()):
            if turn.open:
                self.play(events.Abort(name))
        for session in list(self.lengths):
            self.play(events.End(session))
        view = self.view
        left = {"charge_tokens": view.charge_tokens, "commit_tokens": view.commit_tokens, "sessions": view.sessions}
        for name, values in left.items():
            if values.any():
                self.subject.breaks(f"everything has ended, and {name} is {values.tolist()}")

    def _apply(self, event: events.Event) -> None:  # noqa: C901, PLR0912 - one case per event
        router, now = self.router, self.now
        match event:
            case events.Submit():
                self._submit(event, {"prompt": events.tokens_of(event.prompt)})
            case events.Append():
                pieces = {"append": events.tokens_of([event.piece]), "base_tokens": self.lengths.get(event.session, 0)}
                self._submit(event, pieces)
            case events.Progress():
                router.progress(event.turn, event.output_tokens, now=now)
            case events.Complete():
                told = router.complete(event.turn, events.tokens_of([event.output]), now=now)
                self._ended(event.turn, told.status, event.output[1])
            case events.Abort():
                self._ended(event.turn, router.abort(event.turn, now=now).status, None)
            case events.Fork():
                if router.fork(event.session, event.child, now=now).status == "done":
                    self.lengths[event.child] = self.lengths.get(event.session, 0)
            case events.End():
                router.end_session(event.session, completed=event.completed, now=now)
                self._session_ended(event.session)
            case events.Lose():
                router.lose_replica(event.replica, now=now)
                self.limited.discard(event.replica)
            case events.Add():
                router.add_replica(event.replica, now=now)
            case events.Weights():
                router.weights_updated(event.version, mode=event.mode, replica=event.replica, now=now)
            case events.Wait():
                # Timers run here and nowhere else: time stands still during every other event.
                self.now += event.seconds
                router.tick(now=self.now)
            case events.Control():
                control.step(router, self.policy, state=self.state, on_policy_error="raise", now=now)
                self.limited = set(router.replicas)

    def _submit(self, event: events.Submit | events.Append, content: dict[str, object]) -> None:
        options: dict[str, object] = {}
        if isinstance(event, events.Submit):
            options = {
                "workload": event.workload,
                "attempt": event.attempt,
                "max_new_tokens": event.max_new_tokens,
                "hold": event.hold,
                "deadline_s": event.deadline_s,
                "candidates": event.candidates,
            }
        told = self.router.submit(turn=event.turn, session=event.session, now=self.now, **content, **options)  # type: ignore[arg-type]
        known = self.turns.get(event.turn)
        if known is not None and known.open and known.attempt == told.attempt:
            self._hear()
            agrees = (known.status, known.replica if known.status == "placed" else None)
            if agrees != (told.status, told.replica if told.placed else None):
                self.subject.breaks(f"I5: {event.turn} is {agrees}, asked again it is {told.status} on {told.replica}")
            return
        prompt_tokens = told.receipt.prompt_tokens
        self.turns[event.turn] = _Turn(event.session, told.attempt, prompt_tokens, told.status, told.replica, self.now)
        if event.session is not None:
            self.lengths.setdefault(event.session, 0)
        if told.placed:
            self.told.append(told)

    def _ended(self, name: str, status: str, output_tokens: int | None) -> None:
        """Check the answer to the end of a turn, and note it."""
        turn = self.turns.get(name)
        accepted = {"done"} if turn and turn.open else {"duplicate", "late"}
        if turn is None or turn.status == "rejected" or (not turn.open and self.now - turn.ended_at >= _REMEMBERED_S):
            accepted = {"unknown", "duplicate", "late"}
        if status not in accepted:
            what = turn.status if turn else "never asked for"
            self.subject.breaks(
                f"I4: {name} is {what}; its end is answered {status!r}, not {' or '.join(sorted(accepted))}"
            )
        if turn and turn.open:
            if output_tokens is not None and turn.status == "placed" and turn.session in self.lengths:
                self.lengths[turn.session] = turn.prompt_tokens + output_tokens
            turn.status, turn.ended_at = "ended", self.now

    def _session_ended(self, session: str) -> None:
        """Whoever waits for a turn of the session is told that it is over."""
        self._hear(ended=session)
        for name, turn in self.turns.items():
            if turn.session == session and turn.open:
                self.subject.breaks(f"I4: {name} is {turn.status}, its session was ended and nobody was told")

    def _hear(self, ended: str | None = None) -> None:
        """Take what left by the outbox: each word is about a turn that was open, once."""
        for word in self.router.drain():
            turn = self.turns.get(word.turn)
            expected = {"placed": {"held"}, "expired": {"held"}, "lost": {"held", "placed"}}[word.status]
            if turn is None or turn.status not in expected or turn.attempt != word.attempt:
                was = turn.status if turn else "never asked for"
                self.subject.breaks(f"I4: {word.turn} leaves the outbox as {word.status} and was {was}")
            if word.reason == "session_ended" and turn.session != ended:
                self.subject.breaks(f"I13: {word.turn} was {turn.status} and is cut, though nobody ended its session")
            if word.placed:
                turn.status, turn.replica = "placed", word.replica
                self.told.append(word)
            else:
                turn.status, turn.ended_at = "ended", self.now

    def _check(self, before: FleetView, event: events.Event) -> None:
        try:
            self.router.audit()
        except InternalError as error:
            self.subject.breaks(f"I1: after {event}: {error}")
        view = self.view = self.router.view(now=self.now)
        running = [0] * len(view.replicas)
        for turn in self.turns.values():
            if turn.status == "placed" and turn.replica in view.replicas:
                running[view.replicas.index(turn.replica)] += 1
        if running != view.running_turns.tolist():
            self.subject.breaks(f"I13: after {event} {running} turns run, the router has {view.running_turns.tolist()}")
        held = sum(turn.status == "held" for turn in self.turns.values())
        if held != self.router.stats()["held_turns"]:
            self.subject.breaks(
                f"I4: after {event} {held} turns wait, the router has {self.router.stats()['held_turns']}"
            )
        for word in self.told:
            if word.reason in _ADMISSIONS:
                self._check_admission(word)
        if self.told and all(word.reason in _ADMISSIONS for word in self.told):
            self._check_caps(before, view)

    def _check_admission(self, word: Decision) -> None:
        """I3: ceiling respected, or alone on its replica."""
        receipt = word.receipt
        ceiling = receipt.limit
        # A replica that joined since has limits of the core's own making.
        if self.state.rows and word.replica in self.limited and "ceiling_tokens" in self.state.sent:
            values = np.broadcast_to(self.state.sent["ceiling_tokens"], len(self.state.rows[0]))
            ceiling = float(values[self.state.rows[0].index(word.replica)])
        alone = receipt.charge_tokens == 0 and receipt.prompt_tokens <= ceiling
        if receipt.commit_tokens + receipt.need_tokens > ceiling and not alone:
            self.subject.breaks(
                f"I3: {word.turn} was {word.reason} to {word.replica}: commit {receipt.commit_tokens} + need "
                f"{receipt.need_tokens} is above the ceiling {ceiling:g}"
            )

    def _check_caps(self, before: FleetView, view: FleetView) -> None:
        """I3: who was admitted found its replica below its caps."""
        if self.state.rows != (view.replicas, view.workloads) or before.replicas != view.replicas:
            return
        # As above: who joined since starts with what its neighbours have, and alone without caps.
        limited = np.array([name in self.limited for name in view.replicas])
        caps = {
            "session_cap": (before.sessions.sum(axis=1), view.sessions.sum(axis=1)),
            "workload_cap": (before.sessions, view.sessions),
            "turn_cap": (before.running_turns, view.running_turns),
        }
        for name, (earlier, now) in caps.items():
            cap = np.broadcast_to(self.state.sent.get(name, np.inf), now.shape)
            above = now > np.maximum(earlier, np.floor(cap))
            if above[limited].any():
                self.subject.breaks(f"I3: {now.tolist()} after an admission under {name} {cap.tolist()}")
