"""The keyword arguments of the decision API, for whoever passes them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class PromptArguments(TypedDict, total=False):
    """What `turnout.Router.choose` takes beside the prompt; described there."""

    append: Any
    base_tokens: int | None
    prompt_tokens: int | None
    session: str | None
    workload: str | None
    namespace: str | None
    max_new_tokens: int | None
    expected_tokens: int | None
    candidates: Sequence[str] | None
    avoid: Sequence[str] | None
    bias: Mapping[str, float] | None


class TurnArguments(PromptArguments, total=False):
    """What `turnout.Router.submit` takes beside the prompt; described there. Not given, `owner` is the client's."""

    turn: str | None
    attempt: int
    parent: str | None
    samples: int
    group: str | None
    group_size: int | None
    priority: int
    at: str | None
    owner: str | None
    hold: bool
    deadline_s: float | None


class EndArguments(TypedDict, total=False):
    """What `turnout.Router.complete` takes beside turn and output; described there."""

    outputs: Sequence[Any] | None
    output_tokens: int | None
    prompt_tokens: int | None
    cached_tokens: int | None
    served_by: str | None
    keep: int | None


class AbortArguments(EndArguments, total=False):
    """What `turnout.Router.abort` takes, too."""

    reason: Literal["cancelled", "timeout", "error", "stale"]
    retry: bool
