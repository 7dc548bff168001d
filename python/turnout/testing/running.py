"""The laws that need a router: a policy drives it, and what happens to the turns is watched from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from turnout import control
from turnout.errors import PolicyError
from turnout.router import Router
from turnout.testing.player import Player
from turnout.testing.strategies import BLOCK
from turnout.testing.subject import PolicySource, Subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnout import Decision
    from turnout.config import Replica, Workload
    from turnout.testing.events import Event

PATIENCE: Final = 100
"""Control steps, a second apart, in which an idle fleet with turns waiting must place one."""

Visit = tuple[str, int, int]
"""A session of the closed loop: its workload, the tokens of its first prompt, its turns."""


def nobody_starves(
    policy: PolicySource, *, fleet: Sequence[Replica], workloads: Sequence[Workload], sessions: Sequence[Visit]
) -> None:
    """Every turn that fits an empty replica is placed: an idle fleet does not leave turns waiting.

    All sessions ask at once, so that everybody waits. Every second the policy is asked, every running turn completes,
    and its session asks for its next turn or ends. Once nothing runs, a turn has to be placed within 100 control steps:
    caps of zero for ever, or a ceiling that no prompt fits, are starvation. Prompts take at most a quarter of the
    smallest replica; one that is rejected starves too.

    Source: I10 (while no turn runs, some held turn is placed, unless caps of 0 stop them all), with caps of 0 as a
    failure of the policy.

    Args:
        policy: The policy, or what makes one.
        fleet: The replicas.
        workloads: The workloads.
        sessions: By session its workload, the tokens of its first prompt, and its turns.
    """
    loop = _Loop(Subject(policy, nobody_starves.__name__), fleet, workloads, sessions)
    idle = 0
    while loop.running or loop.waiting:
        loop.second()
        idle = 0 if loop.running else idle + 1
        if idle > PATIENCE:
            loop.starved(idle)


class _Loop:
    """Sessions that ask, are served as soon as they are placed, and ask again."""

    def __init__(
        self, subject: Subject, fleet: Sequence[Replica], workloads: Sequence[Workload], sessions: Sequence[Visit]
    ) -> None:
        self.subject = subject
        self.policy = subject.fresh()
        self.state = control.ControlState()
        self.now = 0.0
        self.router = Router(fleet, workloads, block_tokens=BLOCK, hash_key=bytes(16))
        self.workloads = [workload for workload, _, _ in sessions]
        self.lengths = [tokens for _, tokens, _ in sessions]
        self.left = [turns for _, _, turns in sessions]
        self.running: list[int] = []
        self.waiting: set[int] = set()
        self._control()
        for at in range(len(sessions)):
            self._ask(at)

    def second(self) -> None:
        """What runs is done; its sessions go on or end; the policy is asked; who was placed runs."""
        self.now += 1.0
        done, self.running = self.running, []
        for at in done:
            self.router.complete(self._turn(at), output_tokens=1, now=self.now)
            self.lengths[at] += 2  # the answer, and the next question
            self.left[at] -= 1
            if self.left[at]:
                self._ask(at)
            else:
                self.router.end_session(f"s{at}", now=self.now)
        self._control()
        for word in self.router.drain():
            at = int(word.turn.partition(".")[0][1:])
            self.waiting.remove(at)
            self.running.append(at)

    def starved(self, steps: int) -> None:
        """Say who waits and why."""
        at = min(self.waiting)
        told = self._submit(at)
        self.subject.breaks(
            f"nothing runs and {len(self.waiting)} turns have waited for {steps} control steps; the first, "
            f"{self.lengths[at]} tokens of {self.workloads[at]}, for {told.reason} {told.receipt.limit:g}; "
            f"{self._limits()}"
        )

    def _turn(self, at: int) -> str:
        return f"s{at}.{self.left[at]}"

    def _submit(self, at: int) -> Decision:
        return self.router.submit(
            prompt_tokens=self.lengths[at],
            turn=self._turn(at),
            session=f"s{at}",
            workload=self.workloads[at],
            now=self.now,
        )

    def _ask(self, at: int) -> None:
        told = self._submit(at)
        if told.rejected:
            self.subject.breaks(
                f"a prompt of {self.lengths[at]} tokens of {self.workloads[at]} is rejected, {told.reason}, "
                f"after {self.state.steps} control steps; {self._limits()}"
            )
        if told.placed:
            self.running.append(at)
        else:
            self.waiting.add(at)

    def _control(self) -> None:
        try:
            control.step(self.router, self.policy, state=self.state, on_policy_error="raise", now=self.now)
        except PolicyError as error:
            self.subject.breaks(str(error))

    def _limits(self) -> str:
        sent = (f"{name} {np.asarray(value).tolist()}" for name, value in self.state.sent.items())
        return f"limits: {'; '.join(sent) or 'none'}"


def router_stays_sound(
    policy: PolicySource, *, fleet: Sequence[Replica], workloads: Sequence[Workload], history: Sequence[Event]
) -> None:
    """Whatever happens, a router that the policy drives keeps its books and its promises.

    After every event of a random history: the books equal a recount from scratch (`Router.audit`, I1); an admission
    respects ceiling and caps, unless the turn is a continuation, forced, or alone on its replica (I3); every turn ends
    once and every held turn leaves by the outbox once (I4); a repeated event gives the same answer (I5); what runs is
    never reclaimed (I13). When everything has ended, nothing is charged.

    Source: the invariants of the capacity design, by their numbers.

    Args:
        policy: The policy, or what makes one.
        fleet: The replicas at the start.
        workloads: The workloads.
        history: The events.
    """
    player = Player(Subject(policy, router_stays_sound.__name__), fleet, workloads)
    for event in history:
        player.play(event)
    player.end_everything()
