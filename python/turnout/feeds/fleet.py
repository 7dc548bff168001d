"""All engines of one router."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import zmq.asyncio

from turnout.errors import InvalidArgument, UnknownReplica
from turnout.feeds.config import Engine, Timing
from turnout.feeds.status import FleetStatus
from turnout.feeds.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

HIT_PERIOD_S = 5.0
"""Between two looks at what turns found; a view walks over all sessions, so not more often."""


class Fleet:
    """Follows the engines of a router: residency, load, capacity and health come in, dead ones go out and come back.

    An engine joins the router with its first answer, under the capacity and block size that it states. It leaves when
    it is dead (see `Timing`), and its turns leave by the router's `drain` as `lost`. A replica that the router had from
    the start is opened with what was learned.

    Args:
        router: The asyncio router of `turnout.aio`, or a plain `turnout.Router`; with a plain one call its `drain` now
            and then, since what engines say may place turns that wait.
        engines: Engines at the start: configurations or addresses.
        timing: How often to look and how long to wait.

    Example:
        >>> import asyncio
        >>> from turnout import Router
        >>> from turnout.feeds import Fleet
        >>> async def look() -> str:
        ...     async with Fleet(Router([]), ["http://127.0.0.1:9"]) as fleet:
        ...         return fleet.status()["127.0.0.1:9"].state
        >>> asyncio.run(look())
        'joining'
    """

    def __init__(
        self,
        router: Any,  # noqa: ANN401 - two kinds of router
        engines: Iterable[Engine | str] = (),
        *,
        timing: Timing | None = None,
    ) -> None:
        self.router = router
        self.timing = timing or Timing()
        self._plain = getattr(router, "router", router)
        self._waiting = [_engine(engine, None) for engine in engines]
        self._watches: dict[str, Watch] = {}
        self._session: aiohttp.ClientSession | None = None
        self._context: zmq.asyncio.Context | None = None
        self._hits: asyncio.Task[None] | None = None
        names = [engine.name for engine in self._waiting]
        for name in names:
            if names.count(name) > 1:
                raise InvalidArgument(
                    f"engines: got {name!r} twice, accepted are unique names", "engines", repr(name), "unique names"
                )

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        self._context = zmq.asyncio.Context()
        for engine in self._waiting:
            self.add(engine)
        self._hits = asyncio.create_task(self._watch_hits())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._hits is not None:
            self._hits.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._hits
        watches, self._watches = list(self._watches.values()), {}
        await asyncio.gather(*(watch.stop() for watch in watches))
        if self._session is not None:
            await self._session.close()
        if self._context is not None:
            self._context.term()
        self._session = self._context = None

    def add(self, engine: Engine | str, *, name: str | None = None) -> Engine:
        """Follow one more engine. Its replica joins the router with its first answer.

        Args:
            engine: Its configuration, or the address of its HTTP server.
            name: Name of the replica, for an address; default: host and port.

        Returns:
            The configuration.

        Raises:
            InvalidArgument: The name is followed already, the address is none, or the fleet is not open (`async with`).
        """
        made = _engine(engine, name)
        if self._session is None or self._context is None:
            raise InvalidArgument(
                "fleet: not open, accepted is a call inside `async with Fleet(...)`", "fleet", "closed", "open"
            )
        if made.name in self._watches:
            raise InvalidArgument(
                f"name: got {made.name!r}, which is followed already", "name", repr(made.name), "a new name"
            )
        present = made.name in self._plain.replicas
        watch = Watch(made, self.router, self.timing, self._session, self._context, present=present)
        self._watches[made.name] = watch
        watch.start()
        return made

    async def remove(self, name: str) -> None:
        """Stop following an engine, and let its replica go once nothing runs there.

        Args:
            name: The replica.

        Raises:
            UnknownReplica: No engine has this name.
        """
        watch = self._watch(name)
        del self._watches[name]
        await watch.stop()
        with contextlib.suppress(UnknownReplica):
            self.router.remove_replica(name)

    def drain(self, name: str) -> None:
        """Let an engine run dry: it admits nobody, running turns go on. It stays followed, also when it comes back.

        Args:
            name: The replica.

        Raises:
            UnknownReplica: No engine has this name.
        """
        watch = self._watch(name)
        watch.draining = True
        with contextlib.suppress(UnknownReplica):
            self.router.drain_replica(name)

    def resume(self, name: str) -> None:
        """Open a drained engine again.

        Args:
            name: The replica.

        Raises:
            UnknownReplica: No engine has this name.
        """
        self._watch(name).resume()

    def engines(self) -> dict[str, Engine]:
        """The configurations of the engines that are followed now, by name of the replica."""
        return {name: watch.engine for name, watch in self._watches.items()}

    def engine(self, name: str) -> Engine:
        """The configuration of an engine.

        Args:
            name: The replica.

        Returns:
            Where it is and how it is followed.

        Raises:
            UnknownReplica: No engine has this name.
        """
        return self._watch(name).engine

    def status(self) -> FleetStatus:
        """What is known of every engine now."""
        view = self._plain.view()
        exact = dict(zip(view.replicas, view.exact, strict=True))
        engines = self._watches.items()
        return FleetStatus(tuple(watch.status(exact=bool(exact.get(name, False))) for name, watch in engines))

    def look_at_hits(self) -> None:
        """Compare now what turns found with what was forecast; done every 5 s by itself."""
        view = self._plain.view()
        for row, name in enumerate(view.replicas):
            watch = self._watches.get(name)
            if watch is not None:
                totals = (
                    int(view.reported_turns[row]),
                    float(view.forecast_tokens[row]),
                    float(view.missing_tokens[row]),
                )
                watch.monitor.totals(*totals)

    def _watch(self, name: str) -> Watch:
        if name not in self._watches:
            known = ", ".join(self._watches) or "none"
            raise UnknownReplica(f"name: got {name!r}, accepted are {known}", "name", repr(name), known)
        return self._watches[name]

    async def _watch_hits(self) -> None:
        while True:
            await asyncio.sleep(HIT_PERIOD_S)
            self.look_at_hits()


def _engine(engine: Engine | str, name: str | None) -> Engine:
    if isinstance(engine, Engine):
        return engine
    return Engine(name or engine.partition("://")[2].strip("/") or engine, engine)
