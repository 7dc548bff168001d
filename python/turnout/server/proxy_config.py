"""How the proxy in front of the engines behaves, checked before anything starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path  # noqa: TC003 - a type of a public field, for those who resolve it
from typing import Final, Literal, get_args

from turnout.errors import InvalidArgument

TokenSource = Literal["auto", "engine", "text"]

SESSION_HEADERS: Final = (
    "x-turnout-session",
    "x-session-id",
    "x-claude-code-session-id",
    "session-id",
    "x-smg-routing-key",
    "x-correlation-id",
)
SESSION_FIELDS: Final = ("session_id", "metadata.session_id", "session_params.id")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """Settings of the proxy. Times in seconds.

    Attributes:
        session_headers: Headers that may name the session; the first that is present does.
        session_fields: Then paths into the body, parts joined by dots.
        infer_sessions: A request that names none continues the session whose history its prompt begins with
            (docs/decisions/012); else it is a session by itself.
        classify: `package.module:function` that is called with headers and body of a request and may say whose it is,
            see `turnout.server.identity.Identity`.
        wait_s: Longest that a request is held; then it is answered with 429.
        retry_after_s: What `Retry-After` of that answer says.
        comment_s: While a streaming caller is held it gets a comment this often.
        attempts: Most engines that are tried for one request, each on another replica, as long as nothing was sent on.
        connect_timeout_s: For a connection to an engine.
        idle_timeout_s: For the next byte of an engine; an answer that does not stream is silent until it is complete.
        tokens: Where ids of text prompts come from: `"auto"`: `tokenizer` where it can, else the engine's `/tokenize`,
            else the text itself; `"engine"`: without `tokenizer` the engine or, when it does not answer, the length
            alone; `"text"`: the text itself.
        tokenizer: A `tokenizer.json` of Hugging Face, for prompts that are text. Chats need the engine's template.
        tokenize_timeout_s: For the engine's answer.
        engine_api_key: What engines get as `Authorization: Bearer ...`.
        ask_output: Ask engines for usage and ids of what they generate where the caller did not; answers carry them
            then. The books are exact with it.

    Raises:
        InvalidArgument: A value is out of range.

    Example:
        >>> ProxyConfig(wait_s=60.0).attempts
        3
    """

    session_headers: tuple[str, ...] = SESSION_HEADERS
    session_fields: tuple[str, ...] = SESSION_FIELDS
    infer_sessions: bool = True
    classify: str | None = None
    wait_s: float = 300.0
    retry_after_s: float = 5.0
    comment_s: float = 15.0
    attempts: int = 3
    connect_timeout_s: float = 5.0
    idle_timeout_s: float = 3600.0
    tokens: TokenSource = "auto"
    tokenizer: Path | None = None
    tokenize_timeout_s: float = 10.0
    engine_api_key: str | None = None
    ask_output: bool = False

    def __post_init__(self) -> None:
        """Check."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name.endswith("_s") and not (value > 0 and math.isfinite(value)):
                raise _refuse(each.name, value, "a finite number above 0")
        if self.attempts < 1:
            raise _refuse("attempts", self.attempts, "at least 1")
        if self.tokens not in get_args(TokenSource):
            raise _refuse("tokens", self.tokens, "'auto', 'engine' or 'text'")
        if self.classify is not None and self.classify.count(":") != 1:
            raise _refuse("classify", self.classify, "package.module:function")
        key = self.engine_api_key
        if key is not None and not (key.isascii() and key.isprintable() and key.strip()):
            raise InvalidArgument(
                "engine_api_key: accepted are printable ASCII characters", "engine_api_key", "", "ASCII characters"
            )
        object.__setattr__(self, "session_headers", tuple(name.lower() for name in self.session_headers))


def _refuse(argument: str, value: object, accepted: str) -> InvalidArgument:
    return InvalidArgument(f"{argument}: got {value!r}, accepted is {accepted}", argument, repr(value), accepted)
