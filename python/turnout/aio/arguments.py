"""The keyword arguments of `Router.submit`, for whoever passes them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
    priority: int
    candidates: Sequence[str] | None
    at: str | None
    bias: Mapping[str, float] | None
    owner: str | None
    hold: bool
    deadline_s: float | None
    now: float | None
