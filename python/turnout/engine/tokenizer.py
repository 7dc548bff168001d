"""Tokens of the built-in model: bytes, and marks around the messages of a chat."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BYTES: Final = 256
MESSAGE_START: Final = 256
MESSAGE_END: Final = 257
_MARK: Final = re.compile(r"<\|(\d{3,10})\|>")
_LARGEST: Final = 2**32 - 1


def encode(text: str) -> list[int]:
    """Turn text into tokens: one per UTF-8 byte, and one per mark `<|N|>` with N from 256.

    Args:
        text: The text.

    Returns:
        Token ids.

    Example:
        >>> encode("ab"), encode("a<|300|>")
        ([97, 98], [97, 300])
    """
    if "<|" not in text:
        return list(text.encode())
    tokens: list[int] = []
    at = 0
    for mark in _MARK.finditer(text):
        if BYTES <= (number := int(mark[1])) <= _LARGEST:
            tokens += text[at : mark.start()].encode()
            tokens.append(number)
            at = mark.end()
    tokens += text[at:].encode()
    return tokens


def decode(tokens: Iterable[int]) -> str:
    """Turn tokens into text; what is no UTF-8 becomes U+FFFD, a token above 255 its mark.

    Args:
        tokens: Token ids.

    Returns:
        The text.

    Example:
        >>> decode([104, 105, 300]), encode(decode([104, 105, 300]))
        ('hi<|300|>', [104, 105, 300])
    """
    text = bytearray()
    for token in tokens:
        if token < BYTES:
            text.append(token)
        else:
            text += b"<|%d|>" % token
    return text.decode(errors="replace")


def chat(messages: Sequence[tuple[str, str]]) -> list[int]:
    """Lay out a chat, ready for the assistant's answer; the prompt of a later turn starts with this one and the answer.

    Args:
        messages: (role, content).

    Returns:
        Token ids.

    Example:
        >>> first = chat([("user", "hi")])
        >>> chat([("user", "hi"), ("assistant", "ho"), ("user", "so")])[: len(first) + 2] == [*first, *b"ho"]
        True
    """
    tokens: list[int] = []
    for role, content in messages:
        tokens += [MESSAGE_START, *role.encode(), 10, *encode(content), MESSAGE_END]
    return [*tokens, MESSAGE_START, *b"assistant", 10]
