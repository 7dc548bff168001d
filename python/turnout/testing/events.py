"""Events of a router as values: a history is a list of them, and prints as the code that makes it.

Content is written in pieces `(content, tokens)`: the same content number stands for the same tokens, so prompts that
begin with the same pieces share a prefix. Every event may come twice, late, or never.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from turnout.config import Replica

Piece: TypeAlias = tuple[int, int]
"""Content number and length, tokens."""

_LONGEST: Final = 1 << 16


def tokens_of(pieces: Sequence[Piece]) -> NDArray[np.int64]:
    """Spell pieces out as token ids.

    Example:
        >>> tokens_of([(0, 2), (1, 3)])
        array([    0,     1, 65536, 65537, 65538])
    """
    parts = [content * _LONGEST + np.arange(tokens, dtype=np.int64) for content, tokens in pieces]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Submit:
    """Ask for a turn with its whole prompt; the same event again is a retry, a higher attempt a new one.

    Attributes:
        turn: Id of the turn.
        session: The session; None = a session of this turn alone.
        workload: The workload.
        prompt: Pieces of the prompt.
        attempt: Number of the attempt.
        max_new_tokens: Upper bound of the output, tokens.
        hold: False: exceed limits rather than wait.
        deadline_s: Time after which it expires while held, s.
        candidates: Replicas that may serve it; None = all.
    """

    turn: str
    session: str | None
    workload: str
    prompt: Sequence[Piece]
    attempt: int = 0
    max_new_tokens: int | None = None
    hold: bool = True
    deadline_s: float | None = None
    candidates: Sequence[str] | None = None


@dataclass(frozen=True)
class Append:
    """Ask for a turn by what follows the session's history; refused where the history is not known in full."""

    turn: str
    session: str
    piece: Piece


@dataclass(frozen=True)
class Progress:
    """Report the output of a turn so far, tokens."""

    turn: str
    output_tokens: int


@dataclass(frozen=True)
class Complete:
    """End a turn with this output."""

    turn: str
    output: Piece


@dataclass(frozen=True)
class Abort:
    """End a turn without one."""

    turn: str


@dataclass(frozen=True)
class Fork:
    """Start a session on the history of another."""

    session: str
    child: str


@dataclass(frozen=True)
class End:
    """End a session."""

    session: str
    completed: bool = True


@dataclass(frozen=True)
class Lose:
    """A replica is gone."""

    replica: str


@dataclass(frozen=True)
class Add:
    """A replica joins."""

    replica: Replica


@dataclass(frozen=True)
class Weights:
    """New weights, on one replica or on all."""

    version: int
    mode: Literal["flush", "keep", "salt"] = "flush"
    replica: str | None = None


@dataclass(frozen=True)
class Wait:
    """Time passes, s, and the timers run: deadlines, silent turns, quiet sessions, leases."""

    seconds: float


@dataclass(frozen=True)
class Control:
    """The policy is asked and its limits come into force."""


Event: TypeAlias = Submit | Append | Progress | Complete | Abort | Fork | End | Lose | Add | Weights | Wait | Control
