"""What a request to an engine asks for: read from headers and body as they pass, never changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

SESSION_HEADERS: Final = ("x-session-id", "x-smg-routing-key")
"""Who asks, first one found: what SkyRL and prime-rl send, and what slime sends."""

BYTES_PER_UNIT: Final = 4
"""Text is compared in units of 4 bytes of UTF-8, about a token of English."""

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
    messages: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
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
        >>> read({}, b'{"prompt": "what is this?"}').prompt.tolist()
        [1952540791, 544434464, 1936287860, 63]
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
        return Asked(prompt_tokens=max(body_bytes // BYTES_PER_UNIT, 1), **named)
    if body.lstrip()[:1] != b"{":
        return Asked(**named)
    try:
        found = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Asked(**named)
    prompt, is_text = _prompt(found)
    if prompt is None:
        return Asked(**named)
    salt = found.cache_salt if isinstance(found.cache_salt, str) else ""
    namespace = f"text:{salt}" if is_text else salt or None
    return Asked(prompt=prompt, namespace=namespace, max_new_tokens=_bound(found), **named)


def text_units(text: bytes) -> Any:  # noqa: ANN401 - an array of numpy, whose type says nothing more
    """Text as tokens: its bytes, four by four. Equal beginnings of text are equal beginnings of units.

    Args:
        text: UTF-8.

    Returns:
        uint32 (N,), the last one padded with zeros.

    Example:
        >>> text_units(b"abcde").tolist()
        [1684234849, 101]
    """
    return np.frombuffer(text + bytes(-len(text) % BYTES_PER_UNIT), dtype="<u4")


def _prompt(found: _Body) -> tuple[Any, bool]:
    """(tokens or None, whether they are units of text)."""
    for given in (found.input_ids, found.prompt):
        if isinstance(given, list) and given and all(type(item) is int and 0 <= item < 2**32 for item in given):
            return given, False
    messages = bytes(found.messages)
    if messages.startswith(b"[") and len(messages) > 2:  # noqa: PLR2004 - more than the brackets
        # As it was written, without the closing bracket: the next turn's list begins with this one's. Tools stand
        # before the messages, as in chat templates.
        return text_units(bytes(found.tools) + messages[:-1].rstrip()), True
    for given in (found.prompt, found.text):
        if isinstance(given, str) and given:
            return text_units(given.encode("utf-8", "surrogatepass")), True
        if isinstance(given, list) and given:
            # Several prompts in one request run together on one replica; what they share is not looked for.
            return text_units(msgspec.json.encode(given)), True
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
