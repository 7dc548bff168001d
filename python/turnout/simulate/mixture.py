"""The embedded mixed workload: seeded, synthetic, shaped like the traffic table of MISA-T (arXiv 2608.11152).

At full size (scale 1), per class and in tokens:

| class | share of sessions | turns | prompt of a turn | output of a turn | between turns |
|---|---|---|---|---|---|
| agent | 0.486 | ~70 | p50 / p95 / p99 = 38k / 103k / 123k over all turns | p50 220 | tool gap, p50 6 s |
| rlvr | 0.331 | 1 | p50 400 | p50 48k, p95 131k (its limit) | - |
| rlhf | 0.183 | 1 | p50 300 | p50 7k | - |

Agents share a system and tool prompt of about 4k tokens and grow to the context limit of 128k at most. The lengths of
the table are the source's; spreads that it does not give (turns, growth per turn, gaps) are ours, set so that the
table holds. `scale` divides every length in tokens and every gap in seconds, not the number of turns: what is played
is the same mixture on a fleet that is smaller and faster by that factor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from turnout.errors import InvalidArgument
from turnout.simulate.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

WORKLOADS: Final = ("agent", "rlvr", "rlhf")
TARGETS: Final = (0.486, 0.331, 0.183)
BLOCK_TOKENS: Final = 16

SYSTEM_TOKENS: Final = 4_096
CONTEXT_LIMIT_TOKENS: Final = 131_072
MOST_SCALE: Final = 1_000


class _Session(NamedTuple):
    """Lengths of one session's turns, at full size."""

    prompt_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]
    gap_s: NDArray[np.float64]


def mixture(sessions: int, *, seed: int = 0, scale: float = 8.0) -> Scenario:
    """Draw a mixed list of sessions.

    Args:
        sessions: How many, at least 1.
        seed: Same seed, same scenario.
        scale: Factor >= 1 by which token counts and gaps are divided.

    Returns:
        The scenario; classes are interleaved at random, in the target shares.

    Raises:
        InvalidArgument: `sessions` or `scale` is out of range.

    Example:
        >>> scenario = mixture(100, seed=1)
        >>> scenario.workloads, scenario.sessions
        (('agent', 'rlvr', 'rlhf'), 100)
    """
    if sessions < 1:
        raise InvalidArgument(f"sessions: got {sessions}, accepted is a whole number >= 1")
    if not 1 <= scale <= MOST_SCALE:
        raise InvalidArgument(f"scale: got {scale}, accepted is 1 to {MOST_SCALE}")
    rng = np.random.default_rng(seed)
    classes = _interleave(rng, sessions)
    drawn = [(_agent, _rlvr, _rlhf)[kind](rng) for kind in classes]
    lengths = np.array([len(session.gap_s) for session in drawn], dtype=np.int64)
    prompt = np.concatenate([session.prompt_tokens for session in drawn])
    output = np.concatenate([session.output_tokens for session in drawn])
    prompt_tokens = np.maximum(np.round(prompt / scale), 1).astype(np.int64)
    system_blocks = int(SYSTEM_TOKENS / scale) // BLOCK_TOKENS
    first_run, first_id, blocks, shared = _runs(classes, lengths, prompt_tokens, system_blocks)
    return Scenario(
        workloads=WORKLOADS,
        targets=np.array(TARGETS),
        block_tokens=BLOCK_TOKENS,
        session_workload=classes,
        session_first_turn=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        session_parent=np.full(sessions, -1, dtype=np.int64),
        session_after_turn=np.full(sessions, -1, dtype=np.int64),
        turn_prompt_tokens=prompt_tokens,
        turn_output_tokens=np.maximum(np.round(output / scale), 1).astype(np.int64),
        turn_gap_s=np.round(np.concatenate([session.gap_s for session in drawn]) / scale, 3),
        turn_first_run=first_run,
        run_first_id=first_id,
        run_blocks=blocks,
        run_shared=shared,
        config={"workload": "mixture", "scale": scale, "targets": dict(zip(WORKLOADS, TARGETS, strict=True))},
    )


def _interleave(rng: np.random.Generator, sessions: int) -> NDArray[np.int64]:
    """Class of each session: exact shares (largest remainder) in random order, so that a short list has them too."""
    exact = sessions * np.array(TARGETS)
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: sessions - counts.sum()]] += 1
    return rng.permutation(np.repeat(np.arange(len(WORKLOADS), dtype=np.int64), counts))


def _agent(rng: np.random.Generator) -> _Session:
    """A tool-using agent: its prompt grows by each answer and tool result until it is done or its context is full."""
    turns = int(np.clip(np.round(rng.lognormal(np.log(71), 0.3)), 4, 300))
    output = np.clip(rng.lognormal(np.log(220), 0.9, turns), 16, 8_192)
    pace = rng.lognormal(np.log(845), 0.53)  # how much one turn adds differs more between tasks than between turns
    added = np.maximum(pace * rng.lognormal(-0.32, 0.8, turns), output + 16)
    task = rng.lognormal(np.log(2_500), 0.6)
    prompt = SYSTEM_TOKENS + task + np.concatenate(([0.0], np.cumsum(added[:-1])))
    fits = prompt + output <= CONTEXT_LIMIT_TOKENS
    gap = np.clip(rng.lognormal(np.log(6), 1.2, turns), 0.2, 600)
    gap[0] = 0.0
    return _Session(prompt[fits], output[fits], gap[fits])


def _rlvr(rng: np.random.Generator) -> _Session:
    """One long chain of thought: the answer's length is cut at the context limit, which more than 5 % reach."""
    return _single(rng, prompt_p50=400, output_p50=48_000, spread=0.65)


def _rlhf(rng: np.random.Generator) -> _Session:
    """One short prompt and a long answer."""
    return _single(rng, prompt_p50=300, output_p50=7_000, spread=0.5)


def _single(rng: np.random.Generator, *, prompt_p50: float, output_p50: float, spread: float) -> _Session:
    """A session of one turn with log-normal lengths."""
    prompt = np.clip(rng.lognormal(np.log(prompt_p50), 0.6, 1), 32, 8_192)
    output = np.minimum(rng.lognormal(np.log(output_p50), spread, 1), CONTEXT_LIMIT_TOKENS - prompt)
    return _Session(prompt, output, np.zeros(1))


DRAWS: Final[dict[str, Callable[[np.random.Generator], _Session]]] = {"agent": _agent, "rlvr": _rlvr, "rlhf": _rlhf}
"""One session of a kind, at full size."""


def _runs(
    classes: NDArray[np.int64], lengths: NDArray[np.int64], prompt_tokens: NDArray[np.int64], system_blocks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Name the full blocks: ids below `system_blocks` are the agents' shared prompt, the rest belong to one session."""
    full = prompt_tokens // BLOCK_TOKENS
    first_run, first_id, blocks, shared = [0], [], [], []
    next_id, turn = system_blocks, 0
    for kind, length in zip(classes.tolist(), lengths.tolist(), strict=True):
        most = 0
        for n in full[turn : turn + length].tolist():
            common = min(n, system_blocks) if WORKLOADS[kind] == "agent" else 0
            for start, count, is_shared in ((0, common, True), (next_id, n - common, False)):
                if count:
                    first_id.append(start)
                    blocks.append(count)
                    shared.append(is_shared)
            most = max(most, n - common)
            first_run.append(len(first_id))
        next_id += most
        turn += length
    return (
        np.array(first_run, dtype=np.int64),
        np.array(first_id, dtype=np.int64),
        np.array(blocks, dtype=np.int64),
        np.array(shared, dtype=np.bool_),
    )
