"""What an engine answered: usage and token ids, read from the response as it passes, never changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

MOST_BYTES: Final = 32 << 20
"""A whole body, or a line of a stream, beyond this is not read."""

EVENTS: Final = "text/event-stream"
OK: Final = range(200, 300)


@dataclass(frozen=True, slots=True)
class Usage:
    """What is known of a turn's output.

    Attributes:
        output: Ids of the generated tokens; None = not known.
        output_tokens: Their number; None = not known.
        cached_tokens: Prompt tokens that came from the engine's cache; None = not known.
    """

    output: list[int] | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


class _Details(msgspec.Struct):
    cached_tokens: Any = None


class _Usage(msgspec.Struct):
    completion_tokens: Any = None
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    index: Any = 0
    token_ids: Any = None


class _Meta(msgspec.Struct):
    completion_tokens: Any = None
    cached_tokens: Any = None


class _Body(msgspec.Struct):
    """OpenAI's and vLLM's answer, whole or a chunk, and SGLang's."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    output_ids: Any = None
    meta_info: _Meta | None = None


_DECODER: Final = msgspec.json.Decoder(_Body)


class Answered:
    r"""Reads one response.

    Args:
        status: Its HTTP status.
        content_type: Its `Content-Type`.
        encoding: Its `Content-Encoding`; one that is compressed is not read.

    Example:
        >>> answered = Answered(200, "text/event-stream")
        >>> answered.feed(b'data: {"choices": [{"token_ids": [7]}]}\n\nda')
        >>> answered.feed(b'ta: {"choices": [], "usage": {"completion_tokens": 1}}\n\ndata: [DONE]\n\n')
        >>> answered.usage(whole=True)
        Usage(output=[7], output_tokens=1, cached_tokens=None)
    """

    def __init__(self, status: int, content_type: str = "", encoding: str = "") -> None:
        """Nothing read yet."""
        self.good = status in OK
        self.events = 0
        self._stream = content_type.partition(";")[0].strip().lower() == EVENTS
        self._readable = self.good and encoding in {"", "identity"}
        self._rest = bytearray()
        self._ids: list[int] | None = []
        self._output_tokens: int | None = None
        self._cached_tokens: int | None = None

    @property
    def seen_tokens(self) -> int:
        """Tokens seen so far: ids where the engine sends them, else events, of which each holds at least one."""
        return len(self._ids) if self._ids else self.events

    def feed(self, chunk: bytes) -> None:
        """Read what comes next.

        Args:
            chunk: Bytes of the body.
        """
        if not self._readable:
            return
        if len(self._rest) + len(chunk) > MOST_BYTES:
            self._readable, self._ids = False, None
            self._rest.clear()
            return
        self._rest += chunk
        if self._stream and b"\n" in chunk:
            whole, _, rest = bytes(self._rest).rpartition(b"\n")
            self._rest[:] = rest
            for line in whole.split(b"\n"):
                if line.startswith(b"data:") and b"{" in line:
                    self.events += 1
                    # Most chunks of a stream hold text alone and need not be decoded.
                    if b'"usage"' in line or b'_ids"' in line or b'"meta_info"' in line:
                        self._read(line[5:])

    def usage(self, *, whole: bool) -> Usage:
        """What was used.

        Args:
            whole: Whether the response has ended; else it was cut off.

        Returns:
            As far as the response said it. What was generated of a stream that was cut off is what was seen of it.
        """
        if whole and not self._stream and self._readable and self._rest:
            self._read(bytes(self._rest))
            self._rest.clear()
        ids = self._ids or None
        count = self._output_tokens
        if count is None and not whole and self._stream:
            count = self.seen_tokens
        if ids is not None and count is not None and len(ids) != count:
            ids = None  # not all were sent: what is counted is right
        return Usage(ids, count, self._cached_tokens)

    def _read(self, text: bytes) -> None:
        try:
            found = _DECODER.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if found.usage is not None:
            self._output_tokens = _count(found.usage.completion_tokens, self._output_tokens)
            if found.usage.prompt_tokens_details is not None:
                self._cached_tokens = _count(found.usage.prompt_tokens_details.cached_tokens, self._cached_tokens)
        if found.meta_info is not None:
            self._output_tokens = _count(found.meta_info.completion_tokens, self._output_tokens)
            self._cached_tokens = _count(found.meta_info.cached_tokens, self._cached_tokens)
        choices = found.choices or ()
        if len(choices) > 1 or any(choice.index != 0 for choice in choices):
            self._ids = None  # several samples: none of them is the session's history
        ids = choices[0].token_ids if len(choices) == 1 else found.output_ids
        if self._ids is not None and _are_ids(ids):
            self._ids.extend(ids)


def _count(given: Any, known: int | None) -> int | None:  # noqa: ANN401 - anything that stands in a body
    return given if type(given) is int and 0 <= given < 2**40 else known


def _are_ids(given: Any) -> bool:  # noqa: ANN401 - anything that stands in a body
    return isinstance(given, list) and all(type(item) is int and 0 <= item < 2**32 for item in given)
