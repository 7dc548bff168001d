"""The keyword arguments of the router's events, for whoever passes them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class CompleteArguments(TypedDict, total=False):
    """What `turnout.Router.complete` takes beside turn and output; described there."""

    output_tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    served_by: str | None
    keep: int | None
    now: float | None


class AbortArguments(CompleteArguments, total=False):
    """What `turnout.Router.abort` takes beside turn and output; described there."""

    reason: Literal["cancelled", "timeout", "error", "stale"]
    retry: bool


class SubmitArguments(TypedDict, total=False):
    """What `turnout.Router.submit` takes beside the prompt; described there."""

    append: Any
    base_tokens: int | None
    prompt_tokens: int | None
    turn: str | None
    attempt: int
    session: str | None
    parent: str | None
    workload: str | None
    namespace: str | None
    max_new_tokens: int | None
    samples: int
    group: str | None
    group_size: int | None
    expected_tokens: int | None
    priority: int
    candidates: Sequence[str] | None
    avoid: Sequence[str] | None
    at: str | None
    bias: Mapping[str, float] | None
    owner: str | None
    hold: bool
    deadline_s: float | None
    now: float | None
