"""The router from Python against a model of sets: what is charged, what is judged cached, who waits.

Repeats, forks, aborts, replica loss, flushes and closed doors come in any order.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import turnout
from turnout.policies import Limits
from turnout.testing.model import Model, Session, Tokens

BLOCK = 2

prompts = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)
names = st.sampled_from(["s0", "s1", "s2", "s3"])
replicas = st.sampled_from(["r0", "r1", "r2"])
outputs = st.lists(st.integers(0, 2), max_size=5).map(tuple)


class RouterLaws(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.closed = False

    @initialize(seed=st.integers(0, 3))
    def start(self, seed: int) -> None:
        fleet = [turnout.Replica(name, kv_tokens=10_000) for name in ("r0", "r1")]
        self.router = turnout.Router(fleet, block_tokens=BLOCK, seed=seed, hash_key=bytes(16))
        self.model = Model(["r0", "r1"], block_tokens=BLOCK)

    def submit(self, session: str, tokens: Tokens, **keywords: object) -> None:
        turn = f"t{self.model.submitted + 1}"
        decision = self.router.submit(turn=turn, session=session, now=self.now, **keywords)
        known = self.model.sessions.get(session, Session())
        assert not decision.rejected
        if known.home is not None:
            assert decision.placed, "continuations pass"
            assert decision.replica == known.home or self.model.may_move(session), "where they are charged"
        else:
            assert decision.placed != (self.closed or not self.model.confirmed)
        if decision.placed:
            assert decision.cached_tokens == self.model.cached_tokens(decision.replica, tokens)
        self.model.submit(turn, session, tokens)
        if decision.placed:
            self.model.place(turn, decision.replica)

    def turn(self, at: int) -> str:
        return list(self.model.turns)[at % len(self.model.turns)]

    @rule(session=names, tokens=prompts)
    def whole_prompt(self, session: str, tokens: Tokens) -> None:
        self.submit(session, tokens, prompt=list(tokens))

    @rule(session=names, more=prompts)
    def continue_it(self, session: str, more: Tokens) -> None:
        known = self.model.sessions.get(session)
        if known is None or not known.history or known.open:
            return
        self.submit(session, known.history + more, append=list(more), base_tokens=len(known.history))

    @rule(session=names, child=names)
    def fork(self, session: str, child: str) -> None:
        if session not in self.model.sessions or child in self.model.sessions:
            return
        self.router.fork(session, child, now=self.now)
        self.model.fork(session, child)

    @precondition(lambda self: self.model.turns)
    @rule(at=st.integers(0, 99))
    def first_token(self, at: int) -> None:
        turn = self.turn(at)
        self.router.progress(turn, 0, now=self.now)
        self.model.first_token(turn)

    @precondition(lambda self: self.model.turns)
    @rule(at=st.integers(0, 99), output=outputs)
    def complete(self, at: int, output: Tokens) -> None:
        turn = self.turn(at)
        assert self.router.complete(turn, list(output), now=self.now).status == "done"
        self.model.complete(turn, output)

    @precondition(lambda self: self.model.turns)
    @rule(at=st.integers(0, 99), output=outputs)
    def abort(self, at: int, output: Tokens) -> None:
        turn = self.turn(at)
        assert self.router.abort(turn, list(output), now=self.now).status == "done"
        self.model.abort(turn, output)

    @precondition(lambda self: self.model.ended)
    @rule(at=st.integers(0, 99), verb=st.sampled_from(["complete", "abort"]))
    def say_it_again(self, at: int, verb: str) -> None:
        turn = self.model.ended[at % len(self.model.ended)]
        assert getattr(self.router, verb)(turn, [1, 2], now=self.now).status in {"duplicate", "late"}

    @precondition(lambda self: self.model.turns)
    @rule(at=st.integers(0, 99))
    def ask_again(self, at: int) -> None:
        turn = self.turn(at)
        state = self.model.turns[turn]
        again = self.router.submit(list(state.tokens), turn=turn, session=state.session, now=self.now)
        assert (again.placed, again.held) == (state.replica is not None, state.replica is None)
        assert again.held or again.replica == state.replica

    @rule(session=names, completed=st.booleans())
    def end(self, session: str, completed: bool) -> None:
        expected = "done" if session in self.model.sessions else "unknown"
        assert self.router.end_session(session, completed=completed, now=self.now).status == expected
        open_turns = self.model.end_session(session)
        told = self.router.drain()
        assert sorted(word.turn for word in told if word.reason == "session_ended") == sorted(open_turns)
        self.hear([word for word in told if word.reason != "session_ended"])

    @rule(name=replicas)
    def lose(self, name: str) -> None:
        if name not in self.model.confirmed:
            return
        self.router.lose_replica(name, now=self.now)
        told = self.router.drain()
        assert [word.turn for word in told if word.status == "lost"] == self.model.lose_replica(name)
        self.hear([word for word in told if word.status != "lost"])

    @rule(name=replicas)
    def join(self, name: str) -> None:
        self.router.add_replica(turnout.Replica(name, kv_tokens=10_000), now=self.now)
        if name not in self.model.confirmed:
            self.model.add_replica(name)
            # Until limits name it, it opens with the median of the other replicas' caps; alone, without any.
            self.close_doors(closed=self.closed)

    @rule(name=replicas, version=st.integers(0, 5))
    def flush(self, name: str, version: int) -> None:
        if name not in self.model.confirmed:
            return
        if self.router.weights_updated(version, replica=name, now=self.now).status == "done":
            self.model.flush(name)

    @rule()
    def go_on_from_a_snapshot(self) -> None:
        snapshot = self.router.snapshot()
        self.router = turnout.Router.restore(snapshot, now=self.now)
        assert self.router.snapshot() == snapshot

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
            assert self.model.turns[word.turn].replica is None, "each word once"
            self.model.place(word.turn, word.replica)

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "router"):
            return
        self.hear(self.router.drain())
        self.router.audit()
        view = self.router.view(now=self.now)
        for name, charge, resident in zip(view.replicas, view.charge_tokens, view.resident_tokens, strict=True):
            assert charge == self.model.charge_tokens(name)
            assert resident == BLOCK * len(self.model.resident(name))

    @rule(tokens=prompts)
    def peek(self, tokens: Tokens) -> None:
        found = {name: self.model.cached_tokens(name, tokens) for name in self.model.confirmed}
        assert dict(self.router.peek(list(tokens))) == {name: cached for name, cached in found.items() if cached}


RouterLaws.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRouterLaws = RouterLaws.TestCase
