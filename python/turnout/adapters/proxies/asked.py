"""What a request to an engine asks for: read from headers and body as they pass, never changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnout.prompts import UNIT_BYTES, plain_units, text_units

if TYPE_CHECKING:
    from collections.abc import Mapping

SESSION_HEADERS: Final = (
    "x-turnout-session",
    "x-session-id",
    "x-claude-code-session-id",
    "session-id",
    "x-smg-routing-key",
    "x-correlation-id",
)
"""Who asks, first one found; those of the proxy of `turnout serve`."""

MOST_TOKENS: Final = 2**40


class _Sampling(msgspec.Struct):
    """SGLang's parameters, as far as they matter here."""

    max_new_tokens: Any = None
    n: Any = None


class _Body(msgspec.Struct):
    """What bodies of OpenAI's, vLLM's and SGLang's requests have; everything else is skipped unread."""

    prompt: Any = None
    input_ids: Any = None
    text: Any = None
    messages: Any = None
    tools: Any = None
    model: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    n: Any = None
    cache_salt: Any = None
    sampling_params: _Sampling | list[Any] | None = None


_DECODER: Final = msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request as the router sees it.

    Attributes:
        prompt: Token ids, or units of text; None = not known.
        prompt_tokens: Their number where only that is known.
        session: Who asks; None = nobody said.
        workload: Class of session; None = the session's or the first one.
        parent: The session that waits for this one.
        namespace: What makes equal tokens unequal caches.
        max_new_tokens: Upper bound of the output of all samples, tokens; None = not known.
        priority: Order among held turns.
        last: Whether the session ends with this turn.
    """

    prompt: Any = None
    prompt_tokens: int | None = None
    session: str | None = None
    workload: str | None = None
    parent: str | None = None
    namespace: str | None = None
    max_new_tokens: int | None = None
    priority: int = 0
    last: bool = False

    @property
    def is_turn(self) -> bool:
        """Whether an engine is to generate; anything else (a list of models, a health check) only needs a replica."""
        return self.prompt is not None or self.prompt_tokens is not None

    def arguments(self) -> dict[str, Any]:
        """What the router's `choose` takes of it."""
        found = {
            "session": self.session,
            "workload": self.workload,
            "namespace": self.namespace,
            "max_new_tokens": self.max_new_tokens,
        }
        if self.prompt is None:
            return {**found, "prompt_tokens": self.prompt_tokens or 1}
        return {**found, "prompt": self.prompt}


def read(headers: Mapping[str, str], body: bytes = b"", *, body_bytes: int | None = None) -> Asked:
    """Read a request.

    Args:
        headers: Its headers by lower-case name.
        body: Its body, or the beginning of it.
        body_bytes: Length of the whole body where `body` is only its beginning: then the prompt is known by length.

    Returns:
        What it asks. A body that is no request to an engine is no error: the engine judges it.

    Example:
        >>> asked = read({"x-session-id": "s"}, b'{"prompt": [5, 6, 7], "max_tokens": 9}')
        >>> asked.prompt, asked.session, asked.max_new_tokens
        ([5, 6, 7], 's', 9)
        >>> read({}, b'{"prompt": "what is this?", "model": "m"}').namespace
        'text:m'
        >>> read({}, b"").is_turn
        False
    """
    named: dict[str, Any] = {
        "session": next((headers[name] for name in SESSION_HEADERS if headers.get(name)), None),
        "workload": headers.get("x-turnout-workload") or None,
        "parent": headers.get("x-turnout-parent") or None,
        "priority": _whole(headers.get("x-turnout-priority")),
        "last": headers.get("x-turnout-last", "").lower() in {"1", "true"},
    }
    if body_bytes is not None and body_bytes > len(body):
        return Asked(prompt_tokens=max(body_bytes // UNIT_BYTES, 1), **named)
    if body.lstrip()[:1] != b"{":
        return Asked(**named)
    try:
        found = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Asked(**named)
    prompt, is_text = _prompt(found)
    if prompt is None:
        return Asked(**named)
    names: list[Any] = [f"text:{found.model or ''}"] if is_text else []
    names += [found.cache_salt, headers.get("x-turnout-namespace")]
    # Where a session goes on must not depend on whether it came through a proxy or through the server itself.
    namespace = "/".join(name for name in names if name and isinstance(name, str)) or None
    return Asked(prompt=prompt, namespace=namespace, max_new_tokens=_bound(found), **named)


def _prompt(found: _Body) -> tuple[Any, bool]:
    """(tokens or None, whether they are units of text)."""
    for given in (found.input_ids, found.prompt):
        if isinstance(given, list) and given and all(type(item) is int and 0 <= item < 2**32 for item in given):
            return given, False
    messages = found.messages
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        head = [{"role": "tools", "content": found.tools}] if found.tools else []
        return text_units([*head, *messages]), True
    for given in (found.prompt, found.text):
        if isinstance(given, str) and given:
            return plain_units(given), True
        if isinstance(given, list) and given:
            # Several prompts in one request run together on one replica; what they share is not looked for.
            return plain_units(msgspec.json.encode(given).decode()), True
    return None, False


def _bound(found: _Body) -> int | None:
    sampling = found.sampling_params if isinstance(found.sampling_params, _Sampling) else _Sampling()
    given = (found.max_completion_tokens, found.max_tokens, sampling.max_new_tokens)
    bound = next((value for value in given if type(value) is int and 0 <= value < MOST_TOKENS), None)
    samples = next((value for value in (found.n, sampling.n) if type(value) is int and 0 < value < MOST_TOKENS), 1)
    return None if bound is None else min(bound * samples, MOST_TOKENS)


def _whole(text: str | None) -> int:
    try:
        return max(-(2**31), min(int(text or 0), 2**31 - 1))
    except ValueError:
        return 0
