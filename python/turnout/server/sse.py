"""Server-sent events, read beside their bytes being passed on."""

from __future__ import annotations

from typing import Final

DONE: Final = b"[DONE]"
MOST_PENDING_BYTES: Final = 16 << 20
"""Of an event that does not end; what exceeds it is not read, and passed on all the same."""


class Events:
    r"""Finds the data of events in chunks that are cut anywhere. Line ends are \n, \r\n or \r.

    Example:
        >>> events = Events()
        >>> events.feed(b"data: {}\n\nda"), events.feed(b"ta: [DONE]\r\n\r\n")
        ([b'{}'], [b'[DONE]'])
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self.within = False
        """Whether the last event is not complete."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Read on.

        Args:
            chunk: The next bytes.

        Returns:
            The data of the events that ended in it.
        """
        text = self._rest + chunk
        # A carriage return at the end may be half of a line end.
        held = 1 if text.endswith(b"\r") else 0
        lines = (text[: len(text) - held] if held else text).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop() + text[len(text) - held :]
        found: list[bytes] = []
        for line in lines:
            if not line:
                if self._data:
                    found.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
        if len(self._rest) > MOST_PENDING_BYTES:
            self._rest = b""
        self.within = bool(self._rest or self._data)
        return found
