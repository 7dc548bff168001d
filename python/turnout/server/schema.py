"""The messages of the decision API, one struct each: what JSON and msgpack may hold, and nothing else.

Fields mean what the arguments of the method of `turnout.Router` of the same name mean. A number that is infinite or
unknown there is null here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

if TYPE_CHECKING:
    import turnout

Tokens = list[int] | bytes
"""Token ids as numbers, or packed little-endian (in JSON: base64 of the bytes)."""
Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Count = Annotated[int, Meta(ge=0)]
Siblings = Annotated[int, Meta(ge=1, le=65_536)]
Seconds = Annotated[float, Meta(ge=0)]
TokenBytes = Annotated[
    Literal[4, 8], Meta(description="Bytes per token of the packed arrays in this message: 4 (u32) or 8 (u64).")
]


class Message(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of what callers send: an unknown field is refused, not ignored."""


class Prompted(Message):
    """A prompt, whole, appended or as a length, and where it may go."""

    prompt: Tokens | None = None
    append: Tokens | None = None
    base_tokens: Count | None = None
    prompt_tokens: Count | None = None
    token_bytes: TokenBytes = 4
    session: Name | None = None
    workload: Name | None = None
    namespace: str | None = None
    max_new_tokens: Count | None = None
    expected_tokens: Count | None = None
    candidates: list[Name] | None = None
    avoid: list[Name] | None = None
    bias: dict[str, float] | None = None


class Choose(Prompted):
    """Choose a replica for a turn that is not tracked."""


class Turn(Prompted):
    """A turn to decide about."""

    turn: Name | None = None
    attempt: Count = 0
    parent: Name | None = None
    samples: Siblings = 1
    group: Name | None = None
    group_size: Siblings | None = None
    priority: int = 0
    at: Name | None = None
    owner: Name | None = None
    hold: bool = True
    deadline_s: Seconds | None = None


class Submit(Turn):
    """Decide about a turn, and wait up to `wait_s` while it is held. Ask again with the same turn and attempt to poll.

    A caller that goes away while it waits gives the turn up, unless it said `keep`.
    """

    wait_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    keep: bool = False


class SubmitBatch(Message):
    """Decide about many turns, in this order and with nothing in between: a step of group sampling."""

    turns: Annotated[list[Turn], Meta(max_length=65_536)]


class Peek(Message):
    """Ask which replicas hold a prefix of a prompt, or of a session's history."""

    prompt: Tokens | None = None
    token_bytes: TokenBytes = 4
    session: Name | None = None
    namespace: str = ""


class Progress(Message):
    """Report output so far."""

    turn: Name
    output_tokens: Count
    served_by: Name | None = None


class End(Message):
    """End a turn: what it generated becomes history."""

    turn: Name
    output: Tokens | None = None
    outputs: list[Tokens] | None = None
    """Those of a turn with several samples."""
    token_bytes: TokenBytes = 4
    output_tokens: Count | None = None
    prompt_tokens: Count | None = None
    cached_tokens: Count | None = None
    served_by: Name | None = None
    keep: Count | None = None


class Abort(End):
    """End a turn unfinished, and say why; with `retry` it comes back and keeps its place."""

    reason: Literal["cancelled", "timeout", "error", "stale"] = "cancelled"
    retry: bool = False


class Fork(Message):
    """Start a session on the history of another."""

    session: Name
    child: Name


class Hint(Message):
    """Say what is expected of a session; what is left out stays as it was."""

    session: Name
    idle_s: Seconds | None = None
    expected_tokens: Count | None = None
    priority: int | None = None


class EndSession(Message):
    """End a session."""

    session: Name
    completed: bool = True


class Beat(Message):
    """Say that an owner lives. `since_seq` is the highest number of a lost turn that it has heard of."""

    owner: Name
    since_seq: Count = 0


class Owner(Message):
    """Name an owner that is gone."""

    owner: Name


class ReplicaSpec(Message):
    """The configuration of a replica; a null or absent `kv_tokens` is an unknown capacity."""

    name: Name
    kv_tokens: float | None = None
    prefill_tokens_per_s: float | UnsetType = UNSET
    decode_s_per_kv_token: float | UnsetType = UNSET
    block_tokens: int | None = None


class ReplicaName(Message):
    """Name a replica."""

    name: Name


class WeightsUpdated(Message):
    """Note new weights, of one replica or of all."""

    version: Count
    mode: Literal["flush", "keep", "salt"] = "flush"
    replica: Name | None = None


class Observe(Message):
    """Note what an engine reports about itself."""

    replica: Name
    kv_fraction: float | None = None
    running: Count | None = None
    waiting: Count | None = None
    preemptions_total: Count | None = None
    kv_tokens: float | None = None


class KvEvents(Message):
    """Apply a batch of cache events, as the engine sent it (in JSON: base64)."""

    replica: Name
    payload: bytes
    sequence: Count
    rank: Count | None = None


class Receipt(Struct, kw_only=True):
    """The numbers behind a decision, in tokens and seconds; null where there is none."""

    prompt_tokens: int
    matched_tokens: int
    indexed: bool
    need_tokens: int
    charge_tokens: int
    commit_tokens: int
    limit: float | None
    reclaimable_tokens: int
    cost_s: float | None
    runner_up_cost_s: float | None
    limits_step: int


class Decision(Struct, kw_only=True):
    """What was decided about a turn."""

    turn: str
    attempt: int
    status: Literal["placed", "held", "rejected", "expired", "lost"]
    replica: str | None
    cached_tokens: int
    alternatives: list[str]
    reason: str
    receipt: Receipt
    seq: int

    @property
    def placed(self) -> bool:
        """Send it to `replica` now."""
        return self.status == "placed"

    @property
    def held(self) -> bool:
        """It waits."""
        return self.status == "held"

    @property
    def rejected(self) -> bool:
        """It can never be served like this."""
        return self.status == "rejected"


class Error(Struct, kw_only=True):
    """What was wrong: a name from `turnout.errors`, and the refused value."""

    type: str
    message: str
    argument: str = ""
    value: str = ""
    accepted: str = ""


class ErrorReply(Struct, kw_only=True):
    """The body of every answer that is not 200."""

    error: Error


class BatchItem(Struct, kw_only=True):
    """Either a decision or what was wrong with this turn; the others are not touched by it."""

    decision: Decision | None = None
    error: Error | None = None


class Batch(Struct, kw_only=True):
    """Decisions in the order of the turns."""

    decisions: list[BatchItem]


class Outcome(Struct, kw_only=True):
    """What became of an event."""

    seq: int
    status: Literal["done", "duplicate", "late", "unknown", "gap"]
    replay_from: int | None = None


class Holder(Struct, kw_only=True):
    """A replica and how much of the prompt it holds."""

    replica: str
    cached_tokens: int


class Holders(Struct, kw_only=True):
    """Best first."""

    holders: list[Holder]


class LostTurn(Struct, kw_only=True):
    """A placed turn that was lost, with the number of the event."""

    turn: str
    reason: str
    seq: int


class BeatReply(Struct, kw_only=True):
    """What the owner has to know; `instance` changes when the server has been started again."""

    instance: str
    silence_s: float
    lost: list[LostTurn]


class ReplicaState(Struct, kw_only=True):
    """A replica as it is now; tokens, and shares 0..1; null = unknown."""

    name: str
    accepting: bool
    exact: bool
    weight_version: int
    kv_tokens: float | None
    charge_tokens: float
    commit_tokens: float
    idle_tokens: float
    running_turns: int
    hit_fraction: float | None


class Replicas(Struct, kw_only=True):
    """The fleet, in row order."""

    replicas: list[ReplicaState]


class View(Struct, kw_only=True):
    """`turnout.policies.FleetView`: columns by name, (R,), (W,) or (R, W); NaN and inf are null."""

    step: int
    now_s: float
    elapsed_s: float
    replicas: list[str]
    workloads: list[str]
    columns: dict[str, list[list[float | None] | float | bool | None]]


class Stats(Struct, kw_only=True):
    """Counters since the start, and sizes now, by name: `turnout.Router.stats`."""

    stats: dict[str, int]


class Explanation(Struct, kw_only=True):
    """Why a turn waits, or where it went, in plain words."""

    turn: str
    words: str
    waited_s: float
    session: str | None
    workload: str | None
    decision: Decision


class Info(Struct, kw_only=True):
    """What a client needs to know once. `instance` changes when the server has been started again."""

    version: str
    instance: str
    block_tokens: int
    silence_s: float
    replicas: list[str] = field(default_factory=list)
    workloads: list[str] = field(default_factory=list)


def finite(number: float) -> float | None:
    """A number for JSON: NaN and the infinities become null.

    Example:
        >>> finite(1.5), finite(float("inf")), finite(float("nan"))
        (1.5, None, None)
    """
    return number if math.isfinite(number) else None


def decision_of(decision: turnout.Decision) -> Decision:
    """A decision of the router as a message.

    Args:
        decision: The router's.

    Returns:
        The same, with null for what is infinite or NaN.
    """
    receipt = decision.receipt
    return Decision(
        turn=decision.turn,
        attempt=decision.attempt,
        status=decision.status,
        replica=decision.replica,
        cached_tokens=decision.cached_tokens,
        alternatives=list(decision.alternatives),
        reason=decision.reason,
        receipt=Receipt(
            prompt_tokens=receipt.prompt_tokens,
            matched_tokens=receipt.matched_tokens,
            indexed=receipt.indexed,
            need_tokens=receipt.need_tokens,
            charge_tokens=receipt.charge_tokens,
            commit_tokens=receipt.commit_tokens,
            limit=finite(receipt.limit),
            reclaimable_tokens=receipt.reclaimable_tokens,
            cost_s=finite(receipt.cost_s),
            runner_up_cost_s=finite(receipt.runner_up_cost_s),
            limits_step=receipt.limits_step,
        ),
        seq=decision.seq,
    )


def outcome_of(outcome: turnout.Outcome) -> Outcome:
    """An outcome of the router as a message.

    Args:
        outcome: The router's.

    Returns:
        The same.
    """
    return Outcome(seq=outcome.seq, status=outcome.status, replay_from=outcome.replay_from)
