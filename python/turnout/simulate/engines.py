"""Model engines: how long a step takes, and how many KV tokens a replica holds.

Linear fits to 100 points of an engine performance model (aiconfigurator 0.12.0, vLLM 0.24.0 kernel tables, bf16); at
most 9 % off on every point. One prefill of n new tokens after c cached ones takes a + b n + q n (n / 2 + c) seconds,
one decode step of B sequences with K tokens of context in all takes d + e B + f K seconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final

from turnout import _core
from turnout.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Engine:
    """Step times and capacity of one replica.

    Attributes:
        prefill_base_s: a, per prefill step.
        prefill_s_per_token: b, per new token.
        prefill_s_per_token_pair: q, per new token and token it attends to.
        decode_base_s: d, per decode step.
        decode_s_per_sequence: e, per sequence in the step.
        decode_s_per_kv_token: f, per token of context read in the step.
        max_batched_tokens: New tokens that one step computes at most (chunked prefill).
        max_sequences: Sequences that run at once at most.
        kv_tokens: KV capacity of the replica, tokens.
    """

    prefill_base_s: float
    prefill_s_per_token: float
    prefill_s_per_token_pair: float
    decode_base_s: float
    decode_s_per_sequence: float
    decode_s_per_kv_token: float
    max_batched_tokens: float
    max_sequences: float
    kv_tokens: float

    def to_raw(self) -> dict[str, float]:
        """The mapping that `Simulation` takes as `engine`."""
        return asdict(self)

    def slowed(self, prefill: float, decode: float) -> Engine:
        """The same engine with other step times.

        Args:
            prefill: Factor on every duration of prefill.
            decode: Factor on every duration of decode.

        Returns:
            The engine; capacity and limits are as before.
        """
        return replace(
            self,
            prefill_base_s=self.prefill_base_s * prefill,
            prefill_s_per_token=self.prefill_s_per_token * prefill,
            prefill_s_per_token_pair=self.prefill_s_per_token_pair * prefill,
            decode_base_s=self.decode_base_s * decode,
            decode_s_per_sequence=self.decode_s_per_sequence * decode,
            decode_s_per_kv_token=self.decode_s_per_kv_token * decode,
        )

    @property
    def prefill_tokens_per_s(self) -> float:
        """Rate of a full chunk without context, tokens/s: what the placement cost assumes."""
        tokens = self.max_batched_tokens
        return tokens / (
            self.prefill_base_s
            + self.prefill_s_per_token * tokens
            + self.prefill_s_per_token_pair * tokens * tokens / 2
        )


ENGINES: Final[dict[str, Engine]] = {name: Engine(**fields) for name, fields in _core.engines().items()}
"""Engines by name: model, tensor parallelism where above 1, GPU."""


def engine(name: str) -> Engine:
    """The engine of this name.

    Args:
        name: A key of `ENGINES`.

    Returns:
        The engine.

    Raises:
        InvalidArgument: There is none.

    Example:
        >>> engine("qwen3-8b-h200").kv_tokens
        788000
    """
    if name not in ENGINES:
        accepted = ", ".join(ENGINES)
        raise InvalidArgument(f"engine: got {name!r}, accepted is {accepted}", "engine", name, accepted)
    return ENGINES[name]
