"""The model's clock: the wall clock, faster, and with halts."""

from __future__ import annotations

import time


class Clock:
    """Model time, s: 0 at the start.

    Args:
        speed: Model seconds per second.
    """

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._shown_s = 0.0
        self._since: float | None = time.monotonic()

    def now_s(self) -> float:
        """Model time, s."""
        if self._since is None:
            return self._shown_s
        return self._shown_s + (time.monotonic() - self._since) * self.speed

    @property
    def halted(self) -> bool:
        """Whether it stands still."""
        return self._since is None

    def halt(self) -> None:
        """Stand still from now on."""
        self._shown_s, self._since = self.now_s(), None

    def go_on(self) -> None:
        """Run again from where it stands."""
        if self._since is None:
            self._since = time.monotonic()
