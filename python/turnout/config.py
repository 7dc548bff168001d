"""What a fleet consists of: replicas and workloads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Replica:
    """One inference engine endpoint with its own KV cache; a data-parallel rank is a replica.

    Attributes:
        name: Unique in the fleet, for example `"10.0.0.1:8000"`.
        kv_tokens: KV capacity, tokens; inf = unknown.
        prefill_tokens_per_s: Prefill rate for the placement cost, uncached tokens/s.
        decode_s_per_kv_token: By how much one decode step gets longer per KV token it reads, s; for the placement cost.
        block_tokens: Tokens per KV block of the engine, 1..4096: hits come in whole ones. None = that of the index.

    Example:
        >>> Replica("r0", kv_tokens=788_000).kv_tokens
        788000
    """

    name: str
    kv_tokens: float = math.inf
    prefill_tokens_per_s: float = 20_000.0
    decode_s_per_kv_token: float = 4e-8
    block_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """A class of sessions, for quotas and mixture: an agent, a domain, a tenant. Priors of 0 mean unknown.

    Attributes:
        name: Unique.
        target: Wanted share of finished sessions, 0..1; NaN = unset.
        context_tokens: Prior of the tokens that a charged session holds on average (k).
        growth_tokens: Prior of a session's growth from its first prompt to its end, tokens (L).
        residency_s: Prior of the time from a session's first placement to its last completion, s (T).
        ends: Whether callers say when its sessions end. Where not, a session ends when it has been idle for longer than
            its lease and than nearly all gaps so far (`FleetView.gap_p95_s`), or with its turn where hardly any turn is
            followed by another; until enough gaps were seen it has no lease and `session_ttl_s` ends it.
        turns: `"one"`: no turn is followed by another, so a session ends with its turn.

    Example:
        >>> Workload("agent", target=0.486).residency_s
        0.0
    """

    name: str
    target: float = math.nan
    context_tokens: float = 0.0
    growth_tokens: float = 0.0
    residency_s: float = 0.0
    ends: bool = True
    turns: Literal["many", "one"] = "many"
