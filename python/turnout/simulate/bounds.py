"""What no policy can exceed, from a scenario and an engine alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from turnout.simulate.engines import Engine
    from turnout.simulate.scenario import Scenario

_ROUNDS = 8


class Needs(NamedTuple):
    """Means over the sessions of a scenario.

    Attributes:
        alone_s: Length of a session that has the fleet to itself and nothing computed twice: its critical path, s.
        full_s: The same at the pace of replicas whose KV is full, s.
        token_seconds: KV token-seconds of a session at that pace, gaps included, tokens x s.
        context_tokens: KV tokens that a session holds at a moment of that time.
    """

    alone_s: float
    full_s: float
    token_seconds: float
    context_tokens: float


def needs(scenario: Scenario, engine: Engine, kv_tokens: float) -> Needs:
    """What the sessions of a scenario need.

    Args:
        scenario: What is played; a shared prompt counts as computed before.
        engine: Step times.
        kv_tokens: KV capacity of one replica, tokens.

    Returns:
        The means. Sub-agents and followers count as sessions of their own.

    Example:
        >>> from turnout.simulate.engines import engine
        >>> from turnout.simulate.mixture import mixture
        >>> found = needs(mixture(50), engine("qwen3-8b-h200"), 98_500.0)
        >>> found.alone_s < found.full_s
        True
    """
    first = scenario.session_first_turn[:-1]
    prompt, output = scenario.turn_prompt_tokens.astype(float), scenario.turn_output_tokens.astype(float)
    before = np.concatenate(([0.0], (prompt + output)[:-1]))
    before[first] = 0.0
    cached = np.minimum(before, prompt)
    new = np.maximum(prompt - cached, 1.0)
    steps = np.ceil(new / engine.max_batched_tokens)
    prefill_s = (
        engine.prefill_base_s * steps
        + engine.prefill_s_per_token * new
        + engine.prefill_s_per_token_pair * new * (new / 2 + cached)
    )
    gap_s = scenario.turn_gap_s.copy()
    gap_s[first] = 0.0
    held = prompt + output / 2

    def per_session(turns: NDArray[np.float64]) -> float:
        return float(np.add.reduceat(turns, first).mean())

    alone = engine.decode_base_s + engine.decode_s_per_sequence + engine.decode_s_per_kv_token * held
    alone_s = per_session(gap_s + prefill_s + output * alone)
    context, full_s, token_seconds = float(held.mean()), alone_s, 0.0
    for _ in range(_ROUNDS):
        # How many fit decides how slow a full batch is, and that how long each one holds what it does.
        running = min(engine.max_sequences, kv_tokens / context)
        step_s = (
            engine.decode_base_s + engine.decode_s_per_sequence * running + engine.decode_s_per_kv_token * kv_tokens
        )
        service_s = prefill_s + output * step_s
        full_s = per_session(gap_s + service_s)
        token_seconds = per_session(gap_s * before + service_s * held)
        context = token_seconds / full_s
    return Needs(alone_s, full_s, token_seconds, context)
