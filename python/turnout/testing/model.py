"""A model of the ledger and of residency in plain sets: slow, obvious, and what the core must equal.

A block is the tuple of all tokens up to its end, so two blocks are equal exactly where a cache could share them, and
every union is computed from scratch. The model holds no rule of admission: it is told where a turn was placed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Tokens = tuple[int, ...]


@dataclass
class Session:
    """What the model knows of a session.

    Attributes:
        history: Its tokens so far, prompt and output.
        home: The replica that it is charged on.
        charged: The history is charged by itself; an only open turn stands for it.
        made_by: Submit order of the turn that made the history: overlapping turns do not take it back.
        flushes: How often its home had dropped its cache when the session came there, or completed a turn there last.
        open: Its turns that have not ended.
    """

    history: Tokens = ()
    home: str | None = None
    charged: bool = False
    made_by: int = 0
    flushes: int = 0
    open: list[str] = field(default_factory=list)


@dataclass
class Turn:
    """What the model knows of an open turn.

    Attributes:
        session: Its session.
        tokens: Its prompt.
        order: Its number in the order of submits.
        replica: Where it runs; None while it is held.
        flushes: How often that replica had dropped its cache when the turn was placed.
        started: Its prefill is known to be done.
    """

    session: str
    tokens: Tokens
    order: int
    replica: str | None = None
    flushes: int = 0
    started: bool = False


class Model:
    """Charge and residency of a fleet whose replicas never evict.

    Args:
        replicas: Names at the start.
        block_tokens: Tokens per block.

    Example:
        Two sessions with a common prompt are charged once for it:

        >>> model = Model(["r0"], block_tokens=2)
        >>> for session in ("a", "b"):
        ...     model.submit(session, session, (1, 2, 3, 4))
        ...     model.place(session, "r0")
        >>> model.charge_tokens("r0")
        4
        >>> model.complete("a", (5,))
        >>> model.charge_tokens("r0"), model.cached_tokens("r0", (1, 2, 3, 4, 9))
        (6, 4)
    """

    def __init__(self, replicas: Iterable[str], *, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.sessions: dict[str, Session] = {}
        self.turns: dict[str, Turn] = {}
        self.ended: list[str] = []
        self.submitted = 0
        self.confirmed: dict[str, set[Tokens]] = {}
        self.flushes: dict[str, int] = {}
        for name in replicas:
            self.add_replica(name)

    def blocks(self, tokens: Tokens) -> Iterator[Tokens]:
        """The full blocks of a sequence, each with everything before it."""
        return (tokens[:end] for end in range(self.block_tokens, len(tokens) + 1, self.block_tokens))

    def _partial(self, tokens: Tokens) -> int:
        """Blocks after the full ones: private, because no cache shares them."""
        return int(len(tokens) % self.block_tokens > 0)

    # Events, in the words of the router.

    def submit(self, turn: str, session: str, tokens: Tokens) -> None:
        """Note a turn; it is held until `place` says otherwise."""
        self.submitted += 1
        self.turns[turn] = Turn(session, tokens, self.submitted)
        self.sessions.setdefault(session, Session()).open.append(turn)

    def place(self, turn: str, replica: str) -> None:
        """Start a turn: its session is charged on the replica, and its prompt is expected in the cache."""
        state = self.turns[turn]
        session = self.sessions[state.session]
        state.replica, state.flushes = replica, self.flushes[replica]
        if session.home != replica:
            session.home, session.flushes = replica, self.flushes[replica]
        if sum(self.turns[name].replica is not None for name in session.open) == 1:
            session.charged = False

    def first_token(self, turn: str) -> None:
        """The prefill of a placed turn is done: the cache holds its prompt, unless it was flushed since."""
        state = self.turns[turn]
        if state.replica is not None:
            state.started = True
            if state.flushes == self.flushes[state.replica]:
                self.confirmed[state.replica].update(self.blocks(state.tokens))

    def complete(self, turn: str, output: Tokens) -> None:
        """End a turn: what it asked and got is history, and the cache of its replica is warm again."""
        state = self.turns[turn]
        if state.replica is not None:
            self.sessions[state.session].flushes = self.flushes[state.replica]
        self._keep(turn, output)

    def _keep(self, turn: str, output: Tokens) -> None:
        """Make a turn history. All of it but the last token has KV."""
        state, path = self.turns[turn], self.turns[turn].tokens + output
        if state.replica is not None:
            self.first_token(turn)
            if state.flushes == self.flushes[state.replica]:
                self.confirmed[state.replica].update(self.blocks(path[: max(len(path) - 1, len(state.tokens))]))
            session = self.sessions[state.session]
            if state.order >= session.made_by:
                session.history, session.made_by, session.charged = path, state.order, True
        self.drop(turn)

    def abort(self, turn: str, output: Tokens) -> None:
        """End a turn; it is history only if it was seen to run."""
        state = self.turns[turn]
        if state.replica is not None and (output or state.started):
            self._keep(turn, output)
        else:
            self.drop(turn)

    def drop(self, turn: str) -> None:
        """End a turn without a trace: aborted before its first token, lost or expired."""
        state = self.turns.pop(turn)
        session = self.sessions[state.session]
        session.open.remove(turn)
        self.ended.append(turn)
        if state.replica is not None and not any(self.turns[name].replica for name in session.open):
            session.charged = bool(session.history)
            session.home = session.home if session.history else None

    def fork(self, session: str, child: str) -> None:
        """Start a session on the history of another."""
        self.sessions[child] = Session(history=self.sessions[session].history)

    def end_session(self, session: str) -> list[str]:
        """End a session and its open turns.

        Returns:
            Those turns.
        """
        known = self.sessions.get(session)
        ended = list(known.open) if known else []
        for turn in ended:
            self.abort(turn, ())
        self.sessions.pop(session, None)
        return ended

    def add_replica(self, name: str) -> None:
        """Add a replica with an empty cache; one that exists stays as it is."""
        self.confirmed.setdefault(name, set())
        self.flushes.setdefault(name, 0)

    def lose_replica(self, name: str) -> list[str]:
        """Remove a replica.

        Returns:
            The turns that were lost with it, in the order of their submits.
        """
        lost = sorted(
            (turn for turn, state in self.turns.items() if state.replica == name),
            key=lambda turn: self.turns[turn].order,
        )
        for turn in lost:
            self.drop(turn)
        for session in self.sessions.values():
            if session.home == name:
                session.home, session.charged = None, False
        del self.confirmed[name], self.flushes[name]
        return lost

    def flush(self, name: str) -> None:
        """The replica drops its cache; charges stay."""
        self.confirmed[name] = set()
        self.flushes[name] += 1

    # What the router must say.

    def may_move(self, session: str) -> bool:
        """Whether the next turn of a charged session may leave its replica: idle, and the cache was flushed since."""
        known = self.sessions[session]
        runs = any(self.turns[name].replica for name in known.open)
        return known.home is not None and not runs and known.flushes != self.flushes[known.home]

    def charge_tokens(self, replica: str) -> int:
        """Tokens held against a replica: the union of what is claimed there, and every partial block by itself."""
        claimed = [turn.tokens for turn in self.turns.values() if turn.replica == replica]
        claimed += [known.history for known in self.sessions.values() if known.charged and known.home == replica]
        union = {block for tokens in claimed for block in self.blocks(tokens)}
        return self.block_tokens * (len(union) + sum(map(self._partial, claimed)))

    def resident(self, replica: str) -> set[Tokens]:
        """The blocks that a replica is judged to hold: confirmed ones, and what running turns are expected to fill."""
        expected = (
            block
            for turn in self.turns.values()
            if turn.replica == replica and turn.flushes == self.flushes[replica]
            for block in self.blocks(turn.tokens)
        )
        return self.confirmed[replica].union(expected)

    def cached_tokens(self, replica: str, tokens: Tokens) -> int:
        """Tokens of a prompt that a replica need not compute; the last token always is, for its logits."""
        held, depth = self.resident(replica), 0
        for block in self.blocks(tokens):
            if block not in held:
                break
            depth += 1
        return min(depth, (len(tokens) - 1) // self.block_tokens) * self.block_tokens
