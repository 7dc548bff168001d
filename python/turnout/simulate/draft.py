"""From sessions as lists of turns to the arrays of a scenario: shared prompts, and sessions that follow each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from turnout.errors import InvalidArgument
from turnout.simulate.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

BLOCK_TOKENS: Final = 16


class Draft(NamedTuple):
    """One session.

    Attributes:
        workload: Index of its workload.
        prompt_tokens: (n,) prompt length of each turn, tokens; each prompt begins with the one before it.
        output_tokens: (n,) output length of each turn, tokens.
        gap_s: (n,) time before each turn, s.
        shared: Name of the prompt that it begins with; None = all its tokens are its own.
        shared_tokens: Length of that prompt, tokens.
        after: Place of the session that must finish before this one starts; None = it waits for nobody. A chain of
            such sessions is a client that has one of them outstanding at any time.
    """

    workload: int
    prompt_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]
    gap_s: NDArray[np.float64]
    shared: int | None = None
    shared_tokens: int = 0
    after: int | None = None


def assemble(
    drafts: Sequence[Draft], workloads: Sequence[str], targets: Sequence[float], config: Mapping[str, Any]
) -> Scenario:
    """Lay sessions out as a scenario.

    Args:
        drafts: The sessions; who follows another stands after it.
        workloads: Names of the workloads.
        targets: Wanted share of finished sessions by workload, NaN = unset.
        config: What made them, for the report.

    Returns:
        The scenario. Lengths are rounded to at least one token, gaps to a millisecond.

    Raises:
        InvalidArgument: There is no session, or one follows a later one.

    Example:
        >>> one = np.array([100.0])
        >>> scenario = assemble([Draft(0, one, one, 0 * one), Draft(0, one, one, 0 * one, after=0)], ["a"], [1.0], {})
        >>> scenario.session_parent.tolist(), scenario.run_blocks.tolist()
        ([-1, 0], [6, 6])
    """
    if not drafts:
        raise InvalidArgument("drafts: got no session, accepted is at least one")
    if bad := [at for at, draft in enumerate(drafts) if draft.after is not None and not 0 <= draft.after < at]:
        raise InvalidArgument(f"drafts[{bad[0]}].after: got {drafts[bad[0]].after}, accepted is an earlier session")
    prompt = np.maximum(np.round(np.concatenate([draft.prompt_tokens for draft in drafts])), 1).astype(np.int64)
    output = np.maximum(np.round(np.concatenate([draft.output_tokens for draft in drafts])), 1).astype(np.int64)
    lengths = np.array([len(draft.prompt_tokens) for draft in drafts], dtype=np.int64)
    after = np.array([-1 if draft.after is None else draft.after for draft in drafts], dtype=np.int64)
    first_run, first_id, blocks = _runs(drafts, prompt // BLOCK_TOKENS)
    return Scenario(
        workloads=tuple(workloads),
        targets=np.array(targets, dtype=np.float64),
        block_tokens=BLOCK_TOKENS,
        session_workload=np.array([draft.workload for draft in drafts], dtype=np.int64),
        session_first_turn=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        session_parent=after,
        session_after_turn=np.where(after < 0, -1, lengths[after] - 1),
        turn_prompt_tokens=prompt,
        turn_output_tokens=output,
        turn_gap_s=np.round(np.concatenate([draft.gap_s for draft in drafts]), 3),
        turn_first_run=first_run,
        run_first_id=first_id,
        run_blocks=blocks,
        run_shared=np.zeros(len(blocks), dtype=np.bool_),
        config=dict(config),
    )


def _runs(
    drafts: Sequence[Draft], full: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Name the full blocks of every turn: those of the shared prompt first, then the session's own."""
    common: dict[int, int] = {}
    for draft in drafts:
        if draft.shared is not None:
            common[draft.shared] = max(common.get(draft.shared, 0), draft.shared_tokens // BLOCK_TOKENS)
    ends = np.cumsum([0, *common.values()]).tolist()
    base = dict(zip(common, ends[:-1], strict=True))
    next_id, turn = int(ends[-1]), 0
    first_run, first_id, blocks = [0], [], []
    for draft in drafts:
        shared = 0 if draft.shared is None else draft.shared_tokens // BLOCK_TOKENS
        start = 0 if draft.shared is None else base[draft.shared]
        own = full[turn : turn + len(draft.prompt_tokens)]
        for count in own.tolist():
            for begin, size in ((start, min(count, shared)), (next_id, count - min(count, shared))):
                if size:
                    first_id.append(begin)
                    blocks.append(size)
            first_run.append(len(first_id))
        next_id += max(int(own.max()) - shared, 0)
        turn += len(own)
    return tuple(np.array(values, dtype=np.int64) for values in (first_run, first_id, blocks))  # type: ignore[return-value]
