"""A decision in plain words, for whoever asks why a turn waits or where it went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import turnout

REASONS: Final[dict[str, str]] = {
    "continuation": "its session is charged there",
    "admitted": "its session was admitted",
    "resumed": "its paused session was admitted again",
    "moved": "its session was moved there",
    "forced": "against a limit, because its caller chose the replica or cannot wait",
    "chosen": "untracked: no limit was asked and nothing is charged",
    "no_replica": "no replica accepts turns now, or none of its candidates",
    "overcommitted": "the replica holds more than its overflow",
    "reserved": "the replica is kept free for a turn that has waited longer",
    "turn_cap": "the replica runs as many turns as it may",
    "session_cap": "the replica has as many sessions as it may",
    "workload_cap": "the replica has as many sessions of this workload as it may",
    "limit": "its workload would commit more tokens than its limit on all replicas",
    "ceiling": "what is committed there and what it needs are above the ceiling",
    "behind": "others of its workload wait before it",
    "too_large": "the prompt is larger than any replica can ever hold",
    "line_full": "as many turns wait as may",
    "deadline": "its deadline passed while it waited",
    "replica_lost": "its replica was lost",
    "unconfirmed": "nobody asked about it since the router was restored",
    "elsewhere": "another replica than the one it was sent to serves it",
    "session_ended": "its session was ended, or its owner is gone",
    "silent": "nothing was heard of it for longer than the router waits",
}
"""Every reason that a decision can have."""


def explain(decision: turnout.Decision, waited_s: float) -> str:
    """Say in one sentence what was decided, why, and with which numbers.

    Args:
        decision: The decision.
        waited_s: How long the turn has waited, s.

    Returns:
        The sentence. Names in it are the callers': escape it where that matters.
    """
    receipt = decision.receipt
    why = REASONS.get(decision.reason, decision.reason)
    waited = f" after {waited_s:.1f} s in line" if waited_s > 0 else ""
    if decision.status == "placed":
        cached = f"{decision.cached_tokens:,} of {receipt.prompt_tokens:,} prompt tokens are judged to be cached there"
        return f"Placed on {decision.replica}{waited}: {why}; {cached}."
    if decision.status == "held":
        bound = "" if receipt.limit == float("inf") else f", the limit that bound is {receipt.limit:,.0f}"
        numbers = f"it needs {receipt.need_tokens:,} tokens, {receipt.commit_tokens:,} are committed"
        nearest = f" (closest: {decision.replica})" if decision.replica else ""
        return f"Held{nearest}, waiting {waited_s:.1f} s: {why}; {numbers}{bound}."
    where = f" on {decision.replica}" if decision.replica else ""
    return f"{decision.status.capitalize()}{where}{waited}: {why}."
