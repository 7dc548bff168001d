"""Prompts without a tokenizer: text as 4-byte words, so that equal beginnings of text are equal beginnings of units."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

UNIT_BYTES: Final = 4
"""Bytes per unit: about what a token of English text holds."""


def text_units(messages: Iterable[Mapping[str, Any]]) -> NDArray[np.uint32]:
    """A chat as units: UTF-8 in 4-byte words, each message padded to whole words.

    The units of a chat begin with those of any chat whose messages it begins with, and those of an answer are those of
    its message. They are no tokens: use a namespace of their own, `text:<model>`, and expect lengths to be about right.

    Args:
        messages: Messages with `role` and `content`, a string or a list of parts; `tool_calls` and `tool_call_id`
            count as well.

    Returns:
        The units, u32.

    Example:
        >>> first = text_units([{"role": "user", "content": "hi"}])
        >>> answer = text_units([{"role": "assistant", "content": "ho"}])
        >>> both = text_units([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}])
        >>> both.tolist() == [*first.tolist(), *answer.tolist()]
        True
    """
    parts: list[bytes] = []
    for message in messages:
        text = _bytes_of(message)
        parts.extend((text, bytes(-len(text) % UNIT_BYTES)))
    return np.frombuffer(b"".join(parts), "<u4")


def plain_units(text: str) -> NDArray[np.uint32]:
    """A text as units, without what does not fill the last word.

    So the units of a text begin with those of any text that it begins with. A text below one word is padded to one.

    Args:
        text: The text.

    Returns:
        The units, u32.

    Example:
        >>> plain_units("one two three")[:2].tolist() == plain_units("one two ").tolist()
        True
    """
    whole = text.encode(errors="surrogatepass")
    if len(whole) < UNIT_BYTES:
        whole = whole.ljust(UNIT_BYTES, b"\0")
    return np.frombuffer(whole, "<u4", count=len(whole) // UNIT_BYTES)


def _bytes_of(message: Mapping[str, Any]) -> bytes:
    """A message as bytes; the first byte stands in no text, so that no content can look like two messages."""
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    text = content if isinstance(content, str) else "" if content is None else _json(content)
    for name in ("tool_call_id", "tool_calls"):
        if message.get(name):
            text += f"\x01{_json(message[name])}"
    return f"\x02{message.get('role', '')}\x01{text}".encode(errors="surrogatepass")


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
