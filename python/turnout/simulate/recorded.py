"""Recorded sessions, laid out as a scenario: block sizes, and ids that are equal exactly where tokens are.

Ids are either numbered per session (each session then uses 1, 2, 3, ... for its own content) or over the whole file
(content-chained ids: equal across sessions means shared). Which of the two a file does is seen from the ids themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from turnout.errors import TraceError
from turnout.simulate.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

WORKLOAD: Final = "trace"
"""The one workload of a trace: recorded sessions carry no class."""

_BLOCK_SIZES: Final = tuple(2**power for power in range(13))
_DEFAULT_BLOCK_TOKENS: Final = 16
_DENSE_SHARE: Final = 0.9


class RecordedTurn(NamedTuple):
    """One request, checked."""

    prompt_tokens: int
    output_tokens: int
    gap_s: float
    runs: list[tuple[int, int]]


class RecordedSession(NamedTuple):
    """One session with its sub-agents, which carry the turn of the parent after which they start."""

    turns: list[RecordedTurn]
    children: list[tuple[int, list[RecordedTurn]]]


def infer_block_tokens(path: Path, recorded: list[RecordedSession]) -> int:
    """Find the block size of a file that does not state it: the one power of two that fits every prompt."""
    turns = [turn for session in recorded for turn in session.turns if turn.runs]
    if not turns:
        return _DEFAULT_BLOCK_TOKENS
    prompt = np.array([turn.prompt_tokens for turn in turns])
    blocks = np.array([sum(count for _, count in turn.runs) for turn in turns])
    fits = [size for size in _BLOCK_SIZES if ((blocks == prompt // size) | (blocks == -(-prompt // size))).all()]
    if len(fits) != 1:
        seen = f"{fits} fit" if fits else "no power of two up to 4096 fits"
        raise TraceError(f"{path}: h does not match `in`: {seen} as block size, accepted is one; add block_size")
    return int(fits[0])


def numbered_per_session(recorded: list[RecordedSession], *, flat: bool | None) -> bool:
    """Whether ids start anew in every session: then most sessions use all of 1..max, and few of a shared file do."""
    if flat or len(recorded) < 2:  # noqa: PLR2004 - one session cannot differ from another
        return False
    dense = 0
    for session in recorded[1:]:
        spans = _spans(session)
        if len(spans):
            held = int((spans[:, 1] - spans[:, 0]).sum())
            dense += int(spans[0, 0] <= 1 and held >= _DENSE_SHARE * (spans[-1, 1] - spans[0, 0]))
    return 2 * dense > len(recorded) - 1


def _spans(session: RecordedSession) -> NDArray[np.int64]:
    """(n, 2) disjoint, sorted intervals [from, to) of the ids of a session and its sub-agents."""
    turns = [*session.turns, *(turn for _, own in session.children for turn in own)]
    merged: list[list[int]] = []
    for first, count in sorted({run for turn in turns for run in turn.runs}):
        if merged and first <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], first + count)
        else:
            merged.append([first, first + count])
    return np.array(merged, dtype=np.int64).reshape(-1, 2)


def assemble(
    recorded: list[RecordedSession], block_tokens: int, gap_scale: float, *, local: bool, config: dict[str, Any]
) -> Scenario:
    """Lay the sessions out as flat arrays, with ids that are unique unless content is shared."""
    edges, shared = _shared_pieces([] if local else [_spans(session) for session in recorded])
    base = int(edges[-1]) + 1 if len(edges) else 0
    parent: list[int] = []
    after, lengths = [], []
    prompt, output, gap = [], [], []
    first_run, first_id, blocks, is_shared = [0], [], [], []
    for session in recorded:
        root, offset, top = len(parent), base if local else 0, 0
        for ahead, turns in [(-1, session.turns), *session.children]:
            parent.append(-1 if ahead < 0 else root)
            after.append(ahead)
            lengths.append(len(turns))
            for turn in turns:
                prompt.append(turn.prompt_tokens)
                output.append(turn.output_tokens)
                gap.append(turn.gap_s * gap_scale)
                left = turn.prompt_tokens // block_tokens
                if not turn.runs and left:  # nobody's blocks but this turn's
                    first_id.append(base + (top if local else 0))
                    blocks.append(left)
                    is_shared.append(False)
                    top, base = (top + left, base) if local else (top, base + left)
                for start, count in turn.runs:
                    for piece, n, common in _cut(start, min(count, left), edges, shared):
                        first_id.append(offset + piece)
                        blocks.append(n)
                        is_shared.append(common)
                    left -= min(count, left)
                    top = max(top, start + count)
                first_run.append(len(first_id))
        base += top + 1 if local else 0
    return Scenario(
        workloads=(WORKLOAD,),
        targets=np.array([np.nan]),
        block_tokens=block_tokens,
        session_workload=np.zeros(len(parent), dtype=np.int64),
        session_first_turn=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        session_parent=np.array(parent, dtype=np.int64),
        session_after_turn=np.array(after, dtype=np.int64),
        turn_prompt_tokens=np.array(prompt, dtype=np.int64),
        turn_output_tokens=np.array(output, dtype=np.int64),
        turn_gap_s=np.array(gap, dtype=np.float64),
        turn_first_run=np.array(first_run, dtype=np.int64),
        run_first_id=np.array(first_id, dtype=np.int64),
        run_blocks=np.array(blocks, dtype=np.int64),
        run_shared=np.array(is_shared, dtype=np.bool_),
        config=config,
    )


def _shared_pieces(spans: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Cut the line of ids where the number of sessions that use an id changes.

    Returns:
        Sorted edges (E,), and (E,) whether the ids from each edge to the next are used by more than one session.
    """
    if not spans:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
    both = np.concatenate(spans)
    edges = np.unique(both)
    change = np.zeros(len(edges), dtype=np.int64)
    np.add.at(change, np.searchsorted(edges, both[:, 0]), 1)
    np.add.at(change, np.searchsorted(edges, both[:, 1]), -1)
    return edges, np.cumsum(change) > 1


def _cut(
    start: int, count: int, edges: NDArray[np.int64], shared: NDArray[np.bool_]
) -> Iterator[tuple[int, int, bool]]:
    """Split a run where sharing begins or ends: (first id, blocks, shared) per piece."""
    end = start + count
    if len(edges) == 0:
        if count:
            yield start, count, False
        return
    at = int(np.searchsorted(edges, start, side="right")) - 1
    while start < end:
        common = bool(shared[at])
        while at + 1 < len(edges) and edges[at + 1] < end and bool(shared[at + 1]) == common:
            at += 1
        stop = min(end, int(edges[at + 1]) if at + 1 < len(edges) else end)
        yield start, stop - start, common
        start, at = stop, at + 1
