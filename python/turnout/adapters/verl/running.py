"""Which turns run on which server. verl releases by server and request id; the router ends turns by their own id."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Running:
    """A request on a server.

    Attributes:
        server: The server.
        request_id: The request's id.
        turn: Its turn; empty when it is not tracked.
        era: How often the sticky cache had been cleared when it began.
    """

    server: str
    request_id: str
    turn: str
    era: int


class RunningTurns:
    """First in, first out for each (server, request id), and for each server where a release names no request.

    Example:
        >>> running = RunningTurns()
        >>> running.add("s0", "r", "t1"), running.add("s0", "r", "t2")
        (None, None)
        >>> running.pop("s0", "r").turn, running.pop("s0", None).turn, running.pop("s0", "r")
        ('t1', 't2', None)
    """

    def __init__(self) -> None:
        self._next = 0
        self.era = 0
        self._by_server: defaultdict[str, dict[int, Running]] = defaultdict(dict)  # insertion order is age
        self._by_pair: defaultdict[tuple[str, str], dict[int, None]] = defaultdict(dict)

    def add(self, server: str, request_id: str, turn: str) -> None:
        """A request begins.

        Args:
            server: The server.
            request_id: Its id.
            turn: Its turn; empty when it is not tracked.
        """
        self._by_server[server][self._next] = Running(server, request_id, turn, self.era)
        self._by_pair[server, request_id][self._next] = None
        self._next += 1

    def pop(self, server: str, request_id: str | None) -> Running | None:
        """A request ends.

        Args:
            server: The server.
            request_id: Its id; None = the oldest one there.

        Returns:
            The oldest one that this can be; None when there is none.
        """
        numbers = self._by_server.get(server, {}) if request_id is None else self._by_pair.get((server, request_id), {})
        number = next(iter(numbers), None)
        return None if number is None else self._remove(server, number)

    def forget(self, turn: str) -> None:
        """A turn was given up: nobody will release it.

        Args:
            turn: The turn.
        """
        for server, running in self._by_server.items():
            for number, each in running.items():
                if each.turn == turn:
                    self._remove(server, number)
                    return

    def counts(self) -> Counter[str]:
        """Requests by server."""
        return Counter({server: len(running) for server, running in self._by_server.items()})

    def before_last_clear(self) -> int:
        """Requests that began before the sticky cache was cleared the last time."""
        return sum(each.era < self.era for running in self._by_server.values() for each in running.values())

    def _remove(self, server: str, number: int) -> Running:
        entry = self._by_server[server].pop(number)
        pair = (server, entry.request_id)
        del self._by_pair[pair][number]
        if not self._by_pair[pair]:
            del self._by_pair[pair]
        if not self._by_server[server]:
            del self._by_server[server]
        return entry
