"""The model on the event loop: requests become streams of tokens, steps become cache events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from turnout import _core
from turnout.engine.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnout.engine.config import EngineConfig
    from turnout.engine.publisher import Publisher

TICK_S: Final = 0.002
"""Wall seconds between two looks at the least: what comes in between is told together."""

STOP, LENGTH, ABORT = "stop", "length", "abort"


@dataclass(eq=False, slots=True)
class Stream:
    """One running sample.

    Attributes:
        number: The engine's number of it.
        names: Names by which it can be aborted.
        news: Set whenever something came of it.
        ending: Why it will end unless it is aborted.
        prompt_tokens: Length of the prompt, tokens.
        output: Output tokens so far.
        cached_tokens: Prompt tokens that came from the cache.
        preemptions: How often it lost its memory.
        finish: Why it ended: `stop`, `length` or `abort`; None while it runs.
    """

    number: int
    names: frozenset[str]
    news: asyncio.Event
    prompt_tokens: int
    ending: str
    output: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    preemptions: int = 0
    finish: str | None = None
    _read: int = 0
    _ended: bool = False

    def read(self) -> tuple[list[int], bool] | None:
        """What came since the last call.

        Returns:
            New output tokens, and whether that is all; None without news.
        """
        if self._ended or (self.finish is None and self._read == len(self.output)):
            return None
        piece, self._read = self.output[self._read :], len(self.output)
        self._ended = self.finish is not None
        return piece, self._ended

    def tell(self, tokens: Sequence[int], cached_tokens: int, preemptions: int, finish: str | None) -> None:
        """Note what came of it.

        Args:
            tokens: New output tokens.
            cached_tokens: Prompt tokens that came from the cache.
            preemptions: How often it lost its memory.
            finish: Why it ended, or None.
        """
        self.output += tokens
        self.cached_tokens, self.preemptions, self.finish = cached_tokens, preemptions, finish
        self.news.set()


class Worker:
    """Drives the model engine by the clock.

    Args:
        config: Settings.
        publisher: Takes the cache events, or None.
    """

    def __init__(self, config: EngineConfig, publisher: Publisher | None) -> None:
        self.config = config
        self.core = _core.ModelEngine(
            _core.engines()[config.engine],
            kv_tokens=config.capacity_tokens,
            block_tokens=config.block_tokens,
            seed=config.seed,
            dialect=config.event_form,
        )
        self.finished = dict.fromkeys((STOP, LENGTH, ABORT), 0)
        self._clock = Clock(config.speed)
        self._publisher = publisher
        self._streams: dict[int, Stream] = {}
        self._numbers = itertools.count(1)
        self._arrived = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._drained = asyncio.Event()

    @property
    def capacity_tokens(self) -> int:
        """KV capacity in whole blocks, tokens; the longest request."""
        return self.config.capacity_tokens // self.config.block_tokens * self.config.block_tokens

    @property
    def paused(self) -> bool:
        """Whether new requests wait for `resume`."""
        return not self._open.is_set()

    async def submit(
        self,
        tokens: Sequence[int],
        max_new_tokens: int | None,
        *,
        seed: int,
        names: frozenset[str],
        news: asyncio.Event,
    ) -> Stream:
        """Start a request, after `resume` while paused.

        Args:
            tokens: The prompt.
            max_new_tokens: Output length, tokens; None = the model ends by itself.
            seed: Seed of the output.
            names: Names by which `abort_named` finds it.
            news: Set whenever something came of it.

        Returns:
            Its stream.

        Raises:
            InvalidArgument: It cannot run.
            InvalidTokens: Something is not a token.
        """
        await self._open.wait()
        number = next(self._numbers)
        self.core.submit(number, tokens, max_new_tokens=max_new_tokens, seed=seed, now=self._clock.now_s())
        stream = Stream(number, names, news, len(tokens), STOP if max_new_tokens is None else LENGTH)
        self._streams[number] = stream
        self._arrived.set()
        return stream

    def abort(self, stream: Stream) -> None:
        """End a stream, if it has not ended.

        Args:
            stream: The stream.
        """
        if self._streams.pop(stream.number, None) is not None:
            self.core.abort(stream.number, now=self._clock.now_s())
            self._end(stream, (), stream.cached_tokens, stream.preemptions, ABORT)
            self._arrived.set()

    def abort_named(self, name: str | None) -> int:
        """End the streams of this name.

        Args:
            name: A request's name; None = all.

        Returns:
            How many ended.
        """
        found = [stream for stream in self._streams.values() if name is None or name in stream.names]
        for stream in found:
            self.abort(stream)
        return len(found)

    def flush(self) -> None:
        """Forget what is cached. What runs goes on."""
        self.core.flush(now=self._clock.now_s())
        self._publish()

    async def pause(self, mode: str) -> None:
        """Let nothing start until `resume`.

        Args:
            mode: `abort` ends what runs, `wait` waits for its end, `keep` freezes it.
        """
        self._open.clear()
        if mode == "abort":
            self.abort_named(None)
        elif mode == "wait":
            while self._streams and self.paused:
                self._drained.clear()
                await self._drained.wait()
        if self.paused:
            self._clock.halt()
            self._look()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._clock.go_on()
        self._open.set()
        self._drained.set()
        self._arrived.set()

    async def run(self) -> None:
        """Move the model's time until cancelled."""
        while True:
            # What arrives from here on is either seen by this look or wakes the wait below.
            self._arrived.clear()
            now_s = self._look()
            next_at = None if self._clock.halted else self.core.next_at
            if next_at is None:
                await self._arrived.wait()
            else:
                wait_s = (next_at - now_s) / self._clock.speed
                if wait_s > TICK_S:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._arrived.wait(), wait_s)
                else:
                    await asyncio.sleep(TICK_S)

    def _look(self) -> float:
        """Bring the model up to the clock and hand out what came of it; answers the time."""
        now_s = self._clock.now_s()
        for number, tokens, cached_tokens, preemptions, finished in self.core.advance(now_s):
            stream = self._streams.get(number)
            if stream is None:
                continue
            if finished:
                del self._streams[number]
                self._end(stream, tokens, cached_tokens, preemptions, stream.ending)
            else:
                stream.tell(tokens, cached_tokens, preemptions, None)
        self._publish()
        return now_s

    def _end(self, stream: Stream, tokens: Sequence[int], cached_tokens: int, preemptions: int, finish: str) -> None:
        self.finished[finish] += 1
        stream.tell(tokens, cached_tokens, preemptions, finish)
        if not self._streams:
            self._drained.set()

    def _publish(self) -> None:
        payloads = self.core.kv_batches(timestamp_s=time.time())
        if self._publisher is not None:
            for payload in payloads:
                self._publisher.cache_events(payload)
