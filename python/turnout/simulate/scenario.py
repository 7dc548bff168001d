"""What a simulation plays: sessions, their turns and the identity of their prompt blocks, as flat arrays.

Equal block ids are equal tokens, anywhere. A turn's prompt is a list of runs of consecutive ids, which keeps a prompt
of 200,000 tokens in a few numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from turnout.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

Ints = NDArray[np.int64]

_ARRAYS: Final = {
    "session_workload": np.int64,
    "session_first_turn": np.int64,
    "session_parent": np.int64,
    "session_after_turn": np.int64,
    "turn_prompt_tokens": np.int64,
    "turn_output_tokens": np.int64,
    "turn_gap_s": np.float64,
    "turn_first_run": np.int64,
    "run_first_id": np.int64,
    "run_blocks": np.int64,
    "run_shared": np.bool_,
}


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """S sessions with T turns in all, whose prompts are N runs of block ids.

    Attributes:
        workloads: Names of the W workloads.
        targets: (W,) wanted share of finished sessions, or NaN.
        block_tokens: Tokens per block of the ids.
        session_workload: (S,) index into `workloads`.
        session_first_turn: (S + 1,) the turns of session s are `first[s] .. first[s + 1]`.
        session_parent: (S,) session that starts this one, or -1 for a session of its own.
        session_after_turn: (S,) which turn of the parent, counted from 0 within it, must complete first; -1 without
            parent.
        turn_prompt_tokens: (T,) prompt length, tokens, at least 1.
        turn_output_tokens: (T,) output length, tokens, at least 1.
        turn_gap_s: (T,) time from the completion of the previous turn (or the start of the session) to the submit, s.
        turn_first_run: (T + 1,) the runs of turn t are `first[t] .. first[t + 1]`.
        run_first_id: (N,) first block id of the run, at least 0.
        run_blocks: (N,) number of consecutive ids. A turn's runs cover exactly the full blocks of its prompt.
        run_shared: (N,) whether the run keeps its ids when the list of sessions is played again.
        config: What made it, for the report.
    """

    workloads: tuple[str, ...]
    targets: NDArray[np.float64]
    block_tokens: int
    session_workload: Ints
    session_first_turn: Ints
    session_parent: Ints
    session_after_turn: Ints
    turn_prompt_tokens: Ints
    turn_output_tokens: Ints
    turn_gap_s: NDArray[np.float64]
    turn_first_run: Ints
    run_first_id: Ints
    run_blocks: Ints
    run_shared: NDArray[np.bool_]
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the arrays against each other.

        Raises:
            InvalidArgument: An array has the wrong dtype, length or content; the message names it, with the place.
        """
        for name, dtype in _ARRAYS.items():
            array = getattr(self, name)
            if array.ndim != 1 or array.dtype != dtype or not array.flags.c_contiguous:
                raise InvalidArgument(
                    f"{name}: got {array.ndim}-D {array.dtype}, accepted is a contiguous 1-D array of {np.dtype(dtype)}"
                )
        sessions, turns, runs = len(self.session_workload), len(self.turn_prompt_tokens), len(self.run_first_id)
        if sessions == 0:
            raise InvalidArgument("session_workload: got no session, accepted is at least one")
        _lengths(self, sessions, ("session_parent", "session_after_turn"))
        _lengths(self, turns, ("turn_output_tokens", "turn_gap_s"))
        _lengths(self, runs, ("run_blocks", "run_shared"))
        _offsets("session_first_turn", self.session_first_turn, sessions, turns)
        _offsets("turn_first_run", self.turn_first_run, turns, runs)
        _require("session_workload", self.session_workload, _inside(self.session_workload, 0, len(self.workloads)))
        _require("turn_prompt_tokens", self.turn_prompt_tokens, self.turn_prompt_tokens >= 1)
        _require("turn_output_tokens", self.turn_output_tokens, self.turn_output_tokens >= 1)
        _require("turn_gap_s", self.turn_gap_s, np.isfinite(self.turn_gap_s) & (self.turn_gap_s >= 0))
        _require("run_first_id", self.run_first_id, self.run_first_id >= 0)
        _require("run_blocks", self.run_blocks, self.run_blocks >= 1)
        # A parent comes before its children: the order of the list is the order of the starts.
        _require("session_parent", self.session_parent, _inside(self.session_parent, -1, np.arange(sessions)))
        lengths = np.diff(self.session_first_turn)
        _require("session_first_turn", self.session_first_turn[:-1], lengths >= 1)
        after = self.session_after_turn
        child = _inside(after, 0, lengths[self.session_parent])
        _require("session_after_turn", after, np.where(self.session_parent < 0, after == -1, child))
        blocks = np.diff(np.concatenate(([0], np.cumsum(self.run_blocks)))[self.turn_first_run])
        _require("run_blocks", blocks, blocks == self.turn_prompt_tokens // self.block_tokens)

    @property
    def sessions(self) -> int:
        """Number of sessions, sub-agents included."""
        return len(self.session_workload)

    @property
    def turns(self) -> int:
        """Number of turns."""
        return len(self.turn_prompt_tokens)

    def to_raw(self) -> dict[str, Any]:
        """The mapping that `Simulation` takes as `scenario`: `block_tokens` and the arrays, by their names."""
        # The core reads flags as bytes.
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        return {"block_tokens": self.block_tokens, **arrays, "run_shared": self.run_shared.view(np.uint8)}


def _inside(values: Ints, low: int, high: int | Ints) -> NDArray[np.bool_]:
    """Elementwise low <= value < high."""
    return np.asarray((values >= low) & (values < high))


def _lengths(scenario: Scenario, length: int, names: tuple[str, ...]) -> None:
    """Check that these arrays have the length of the table they belong to."""
    for name in names:
        if len(getattr(scenario, name)) != length:
            raise InvalidArgument(f"{name}: got {len(getattr(scenario, name))} values, accepted is {length}")


def _offsets(name: str, offsets: Ints, rows: int, total: int) -> None:
    """Check an array of rows + 1 offsets that starts at 0, never falls and ends at total."""
    if len(offsets) != rows + 1 or offsets[0] != 0 or offsets[-1] != total or (np.diff(offsets) < 0).any():
        raise InvalidArgument(f"{name}: accepted are {rows + 1} offsets that rise from 0 to {total}")


def _require(name: str, values: NDArray[Any], good: NDArray[np.bool_]) -> None:
    """Refuse the first value that is not good."""
    bad = np.flatnonzero(~good)
    if bad.size:
        raise InvalidArgument(f"{name}[{bad[0]}]: got {values[bad[0]]}, which does not fit the rest of the scenario")
