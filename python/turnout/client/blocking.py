"""The client for code without an event loop: one runs in a thread of the client's, and calls wait for it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from turnout.client.router import connect

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Awaitable, Callable, Coroutine, Iterator
    from types import TracebackType

    from turnout.client.arguments import TurnArguments
    from turnout.client.router import RemoteRouter
    from turnout.client.turn import RemoteTurn
    from turnout.server.schema import Outcome

T = TypeVar("T")


class BlockingTurn:
    """A turn in its block, made by `Blocking.turn`; its attributes are those of `RemoteTurn`.

    Args:
        blocking: The client.
        turn: The turn.
    """

    def __init__(self, blocking: Blocking, turn: RemoteTurn) -> None:
        self._blocking = blocking
        self._turn = turn
        self.id = turn.id
        self.replica = turn.replica
        self.cached_tokens = turn.cached_tokens
        self.decision = turn.decision

    @property
    def lost(self) -> bool:
        """Whether the server said that it is lost."""
        return self._turn.lost.is_set()

    def progress(self, output_tokens: int) -> Outcome:
        """Report output so far, see `turnout.Router.progress`."""
        return self._blocking.do(lambda _: self._turn.progress(output_tokens))

    def complete(self, output: Any = None, **counts: int | None) -> Outcome:  # noqa: ANN401 - as Router.complete
        """End it: prompt and output become the session's history, see `turnout.Router.complete`."""
        return self._blocking.do(lambda _: self._turn.complete(output, **counts))

    def abort(self, output: Any = None, **counts: int | None) -> Outcome | None:  # noqa: ANN401 - as Router.abort
        """End it unfinished, see `turnout.Router.abort`."""
        return self._blocking.do(lambda _: self._turn.abort(output, **counts))


class Blocking:
    """A client for threads: `turn` is a context, everything else of `RemoteRouter` is asked by `do`. Threads share it.

    Args:
        url: The server's address.
        **settings: As for `turnout.client.connect`.

    Raises:
        InvalidArgument: The address is none, or a time is not above 0.
    """

    def __init__(self, url: str, **settings: Any) -> None:  # noqa: ANN401 - as connect
        self._remote: RemoteRouter = connect(url, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="turnout client", daemon=True)

    def __enter__(self) -> Self:
        """Connect."""
        self._thread.start()
        try:
            self.do(lambda remote: remote.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give up what runs here, and end the owner's sessions."""
        try:
            self.do(lambda remote: remote.__aexit__(None, None, None))
        finally:
            self._end()

    def do(self, call: Callable[[RemoteRouter], Awaitable[T]]) -> T:
        """Ask something of the client and wait for the answer; an interrupted wait cancels it.

        Args:
            call: For example `lambda remote: remote.end_session("s")`.

        Returns:
            The answer.

        Raises:
            TurnoutError: As the method of `RemoteRouter`.
        """

        async def asked() -> T:
            return await call(self._remote)

        coroutine: Coroutine[Any, Any, T] = asked()
        future: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @contextmanager
    def turn(self, prompt: Any = None, **arguments: Unpack[TurnArguments]) -> Iterator[BlockingTurn]:  # noqa: ANN401
        """A turn as a context, see `RemoteRouter.turn`.

        Args:
            prompt: The prompt, see `turnout.Router.submit`.
            **arguments: As for `turnout.Router.submit`.

        Yields:
            The turn, placed; it is aborted when the block is left without `complete`.

        Raises:
            TurnNotPlaced: It is rejected, expired or lost.
            TurnoutError: As for `RemoteRouter.place`.
        """

        async def made(remote: RemoteRouter) -> RemoteTurn:
            return await remote.turn(prompt, **arguments).__aenter__()

        turn = self.do(made)
        try:
            yield BlockingTurn(self, turn)
        finally:
            self.do(lambda _: turn.__aexit__(None, None, None))

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
