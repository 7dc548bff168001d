"""The router from Python against a model of sets: what is charged, what is judged cached, who waits.

The model keeps a block as the tuple of all tokens up to it and recomputes every union from scratch. Repeats, forks,
aborts, replica loss, flushes and closed doors come in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import turnout
from turnout.policies import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 2
Tokens = tuple[int, ...]

prompts = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)
names = st.sampled_from(["s0", "s1", "s2", "s3"])
replicas = st.sampled_from(["r0", "r1", "r2"])
outputs = st.lists(st.integers(0, 2), max_size=5).map(tuple)


def blocks(tokens: Tokens) -> Iterator[Tokens]:
    """The full blocks of a sequence, each with everything before it."""
    return (tokens[:end] for end in range(BLOCK, len(tokens) + 1, BLOCK))


def private(tokens: Tokens) -> int:
    """Blocks after the full ones."""
    return int(len(tokens) % BLOCK > 0)


@dataclass
class Session:
    history: Tokens = ()
    home: str | None = None
    # The history is charged by itself; an only open turn stands for it.
    charged: bool = False
    # Submit order of the turn that made the history.
    made_by: int = 0
    open: list[str] = field(default_factory=list)


@dataclass
class Turn:
    session: str
    tokens: Tokens
    order: int
    replica: str | None
    flushes: int = 0
    started: bool = False


class RouterLaws(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.order = 0
        self.sessions: dict[str, Session] = {}
        self.turns: dict[str, Turn] = {}
        self.ended: list[str] = []
        self.confirmed: dict[str, set[Tokens]] = {}
        self.flushes: dict[str, int] = {}
        self.closed = False

    @initialize(seed=st.integers(0, 3))
    def start(self, seed: int) -> None:
        fleet = [turnout.Replica(name, kv_tokens=10_000) for name in ("r0", "r1")]
        self.router = turnout.Router(fleet, block_tokens=BLOCK, seed=seed, hash_key=bytes(16))
        self.confirmed = {"r0": set(), "r1": set()}
        self.flushes = {"r0": 0, "r1": 0}

    def submit(self, session: str, tokens: Tokens, **keywords: object) -> None:
        self.order += 1
        turn = f"t{self.order}"
        decision = self.router.submit(turn=turn, session=session, now=self.now, **keywords)
        known = self.sessions.setdefault(session, Session())
        assert not decision.rejected
        if known.home is not None:
            assert (decision.placed, decision.replica) == (True, known.home), (
                "continuations pass, where they are charged"
            )
        else:
            assert decision.placed != (self.closed or not self.confirmed)
        if decision.placed:
            expected = self.cached(decision.replica, tokens)
            assert decision.cached_tokens == expected
        self.turns[turn] = Turn(session, tokens, self.order, None)
        known.open.append(turn)
        if decision.placed:
            self.place(turn, decision.replica)

    def place(self, turn: str, replica: str) -> None:
        state = self.turns[turn]
        session = self.sessions[state.session]
        state.replica, state.flushes = replica, self.flushes[replica]
        session.home = replica
        if sum(self.turns[name].replica is not None for name in session.open) == 1:
            session.charged = False

    def held_by(self, replica: str) -> set[Tokens]:
        expected = (
            block
            for turn in self.turns.values()
            if turn.replica == replica and turn.flushes == self.flushes[replica]
            for block in blocks(turn.tokens)
        )
        return self.confirmed[replica].union(expected)

    def cached(self, replica: str, tokens: Tokens) -> int:
        held, depth = self.held_by(replica), 0
        for block in blocks(tokens):
            if block not in held:
                break
            depth += 1
        return min(depth, (len(tokens) - 1) // BLOCK) * BLOCK

    @rule(session=names, tokens=prompts)
    def whole_prompt(self, session: str, tokens: Tokens) -> None:
        self.submit(session, tokens, prompt=list(tokens))

    @rule(session=names, more=prompts)
    def continue_it(self, session: str, more: Tokens) -> None:
        known = self.sessions.get(session)
        if known is None or not known.history or known.open:
            return
        self.submit(session, known.history + more, append=list(more), base_tokens=len(known.history))

    @rule(session=names, child=names)
    def fork(self, session: str, child: str) -> None:
        if session not in self.sessions or child in self.sessions:
            return
        self.router.fork(session, child, now=self.now)
        self.sessions[child] = Session(history=self.sessions[session].history)

    @precondition(lambda self: self.turns)
    @rule(at=st.integers(0, 99))
    def first_token(self, at: int) -> None:
        turn = list(self.turns)[at % len(self.turns)]
        state = self.turns[turn]
        self.router.progress(turn, 0, now=self.now)
        if state.replica is not None:
            self.begin(state)

    def begin(self, state: Turn) -> None:
        state.started = True
        if state.flushes == self.flushes[state.replica]:
            self.confirmed[state.replica].update(blocks(state.tokens))

    @precondition(lambda self: self.turns)
    @rule(at=st.integers(0, 99), output=outputs)
    def complete(self, at: int, output: Tokens) -> None:
        turn = list(self.turns)[at % len(self.turns)]
        state = self.turns[turn]
        assert self.router.complete(turn, list(output), now=self.now).status == "done"
        if state.replica is None:
            self.close(turn)
        else:
            self.keep(turn, output)

    @precondition(lambda self: self.turns)
    @rule(at=st.integers(0, 99), output=outputs)
    def abort(self, at: int, output: Tokens) -> None:
        turn = list(self.turns)[at % len(self.turns)]
        state = self.turns[turn]
        assert self.router.abort(turn, list(output), now=self.now).status == "done"
        if state.replica is not None and (output or state.started):
            self.keep(turn, output)
        else:
            self.close(turn)

    def keep(self, turn: str, output: Tokens) -> None:
        """The turn becomes history; all of it but the last token has KV."""
        state, path = self.turns[turn], self.turns[turn].tokens + output
        session = self.sessions[state.session]
        self.begin(state)
        if state.flushes == self.flushes[state.replica]:
            self.confirmed[state.replica].update(blocks(path[: max(len(path) - 1, len(state.tokens))]))
        if state.order >= session.made_by:
            session.history, session.made_by, session.charged = path, state.order, True
        self.close(turn)

    def close(self, turn: str) -> None:
        state = self.turns.pop(turn)
        session = self.sessions[state.session]
        session.open.remove(turn)
        self.ended.append(turn)
        if state.replica is not None and not any(self.turns[name].replica for name in session.open):
            session.charged = bool(session.history)
            session.home = session.home if session.history else None

    @precondition(lambda self: self.ended)
    @rule(at=st.integers(0, 99), verb=st.sampled_from(["complete", "abort"]))
    def say_it_again(self, at: int, verb: str) -> None:
        turn = self.ended[at % len(self.ended)]
        assert getattr(self.router, verb)(turn, [1, 2], now=self.now).status in {"duplicate", "late"}

    @precondition(lambda self: self.turns)
    @rule(at=st.integers(0, 99))
    def ask_again(self, at: int) -> None:
        turn = list(self.turns)[at % len(self.turns)]
        state = self.turns[turn]
        again = self.router.submit(list(state.tokens), turn=turn, session=state.session, now=self.now)
        assert (again.placed, again.held) == (state.replica is not None, state.replica is None)
        assert again.held or again.replica == state.replica

    @rule(session=names, completed=st.booleans())
    def end(self, session: str, completed: bool) -> None:
        expected = "done" if session in self.sessions else "unknown"
        assert self.router.end_session(session, completed=completed, now=self.now).status == expected
        known = self.sessions.get(session)
        for turn in list(known.open) if known else []:
            if self.turns[turn].replica is not None and self.turns[turn].started:
                self.keep(turn, ())
            else:
                self.close(turn)
        self.sessions.pop(session, None)

    @rule(name=replicas)
    def lose(self, name: str) -> None:
        if name not in self.confirmed:
            return
        lost = sorted(
            (turn for turn in self.turns if self.turns[turn].replica == name), key=lambda turn: self.turns[turn].order
        )
        self.router.lose_replica(name, now=self.now)
        told = self.router.drain()
        assert [word.turn for word in told if word.status == "lost"] == lost
        for turn in lost:
            self.close(turn)
        for session in self.sessions.values():
            if session.home == name:
                session.home, session.charged = None, False
        del self.confirmed[name], self.flushes[name]
        self.hear([word for word in told if word.status != "lost"])

    @rule(name=replicas)
    def join(self, name: str) -> None:
        self.router.add_replica(turnout.Replica(name, kv_tokens=10_000), now=self.now)
        if name not in self.confirmed:
            self.confirmed[name], self.flushes[name] = set(), 0
            # Until limits name it, it opens with the median of the other replicas' caps; alone, without any.
            self.close_doors(closed=self.closed)

    @rule(closed=st.booleans())
    def close_doors(self, closed: bool) -> None:
        self.closed = closed
        limits = Limits(session_cap=0.0 if closed else float("inf"), ceiling_tokens=9_000, lease_s=600.0)
        self.router.set_limits(limits, view=self.router.view(now=self.now), now=self.now)

    @rule(seconds=st.floats(0.0, 5.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.router.tick(now=self.now)

    def hear(self, words: list[turnout.Decision]) -> None:
        for word in words:
            assert word.placed
            assert self.turns[word.turn].replica is None, "each word once"
            self.place(word.turn, word.replica)

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "router"):
            return
        self.hear(self.router.drain())
        self.router.audit()
        view = self.router.view(now=self.now)
        for name, charge, resident in zip(view.replicas, view.charge_tokens, view.resident_tokens, strict=True):
            claimed = [turn.tokens for turn in self.turns.values() if turn.replica == name]
            claimed += [known.history for known in self.sessions.values() if known.charged and known.home == name]
            union = {block for tokens in claimed for block in blocks(tokens)}
            assert charge == BLOCK * (len(union) + sum(map(private, claimed)))
            assert resident == BLOCK * len(self.held_by(name))

    @rule(tokens=prompts)
    def peek(self, tokens: Tokens) -> None:
        found = {name: self.cached(name, tokens) for name in self.confirmed}
        assert dict(self.router.peek(list(tokens))) == {name: cached for name, cached in found.items() if cached}


RouterLaws.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRouterLaws = RouterLaws.TestCase
