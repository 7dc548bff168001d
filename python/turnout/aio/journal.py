"""A journal whose disk may fail: the router goes on without it, says so, and begins it anew when the disk is back."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from turnout.record import JournalWriter

RETRY_S: Final = 30.0
"""Time between attempts to begin a broken journal anew, s."""

_LOG = logging.getLogger(__name__)


class SafeJournal:
    """Flushes a journal; an error of the disk stops the journal, not the router.

    Args:
        writer: The journal.

    Attributes:
        writer: The journal.
        error: What the disk said; empty while the journal is whole.
        failures: Times that it broke.
    """

    def __init__(self, writer: JournalWriter) -> None:
        """Keep the writer."""
        self.writer = writer
        self.error = ""
        self.failures = 0
        self._retry_at = 0.0

    def flush(self) -> None:
        """Hand what was recorded to the operating system. Never raises for the disk."""
        try:
            if not self.error:
                self.writer.flush()
            elif time.monotonic() >= self._retry_at:
                self.writer.rotate()
                self.error = ""
                _LOG.warning("the journal %s is kept again", self.writer.path)
        except OSError as error:
            self.failures += 1
            self.error = str(error)
            self._retry_at = time.monotonic() + RETRY_S
            # Else the record would grow in memory for as long as the disk is away.
            self.writer.router.stop_journal()
            _LOG.error("the journal %s is not kept: %s; tried again in %g s", self.writer.path, error, RETRY_S)
