"""A stream of events, read while it is passed on: what came of it so far, and when to say so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turnout.server.sse import DONE, Events

if TYPE_CHECKING:
    from turnout.server.outputs import Output

PROGRESS_TOKENS: Final = 512
PROGRESS_S: Final = 1.0
SAMPLES: Final = b'"index"'


class Reading:
    r"""Reads a stream into an `Output`.

    Args:
        output: What is read into.
        cumulative: Each event says all that the earlier ones of its sample said: to read them all would cost the square
            of the length, so the latest is read when something shall be said.

    Attributes:
        done: The last event has come.

    Example:
        >>> from turnout.server.outputs import OpenAiOutput
        >>> output = OpenAiOutput()
        >>> reading = Reading(output, cumulative=False)
        >>> reading.feed(b'data: {"choices": [{"text": "a"}]}', now_s=5.0), output.tokens()
        (None, 0)
        >>> reading.feed(b"\n\n", now_s=6.0), output.tokens()
        (1, 1)
    """

    def __init__(self, output: Output, *, cumulative: bool) -> None:
        self.done = False
        self._output = output
        self._cumulative = cumulative
        self._events = Events()
        self._unread: bytes | None = None
        self._told_tokens = -PROGRESS_TOKENS
        self._told_s = float("-inf")

    def feed(self, chunk: bytes, *, now_s: float) -> int | None:
        """Read on.

        Args:
            chunk: The next bytes.
            now_s: The time, monotonic s.

        Returns:
            Output tokens so far when they should be reported: at the first, then every 512 or each second.
        """
        found = self._events.feed(chunk)
        if found and found[-1] == DONE:
            self.done = True
            found.pop()
        if not found:
            return None
        late = now_s - self._told_s >= PROGRESS_S
        if not self._cumulative or SAMPLES in found[-1]:
            for data in found:
                self._output.read(data)
        else:
            self._unread = found[-1]
            if late:
                self.end()
        count = self._output.tokens() or 0
        if not late and count - self._told_tokens < PROGRESS_TOKENS:
            return None
        self._told_tokens, self._told_s = count, now_s
        return count

    def end(self) -> None:
        """Read what was left for later."""
        unread, self._unread = self._unread, None
        if unread is not None:
            self._output.read(unread)
