"""Several samples of several prompts as one request: started together, told as they come, ended together."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from typing import TYPE_CHECKING

from turnout.engine.http import RequestError
from turnout.engine.tokenizer import encode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from turnout.engine.worker import Stream, Worker


class Samples:
    """The streams of one request, in the order of the prompts, then of the samples.

    Args:
        worker: Runs them.
        prompts: Token ids.
        samples: Samples of each prompt.
        max_new_tokens: Output length of each, tokens; None = the model ends by itself.
        seed: Seed; sample i has the i-th after it.
        names: Names by which they can be aborted.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of a request
        self,
        worker: Worker,
        prompts: Sequence[Sequence[int]],
        samples: int,
        max_new_tokens: int | None,
        seed: int,
        names: Iterable[str],
    ) -> None:
        self._worker = worker
        self._prompts, self._samples, self._max_new_tokens, self._seed = prompts, samples, max_new_tokens, seed
        self._names = frozenset(names)
        self._news = asyncio.Event()
        self.streams: list[Stream] = []

    async def start(self) -> None:
        """Start all, or none.

        Raises:
            InvalidArgument: One cannot run.
            InvalidTokens: Something is not a token.
        """
        try:
            for prompt, sample in itertools.product(self._prompts, range(self._samples)):
                seed = self._seed + sample
                stream = await self._worker.submit(
                    prompt, self._max_new_tokens, seed=seed, names=self._names, news=self._news
                )
                self.streams.append(stream)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End what runs; nothing where all have ended."""
        for stream in self.streams:
            self._worker.abort(stream)

    async def done(self) -> None:
        """Wait for the end of all; ends them when cancelled."""
        try:
            while any(stream.finish is None for stream in self.streams):
                await self._news.wait()
                self._news.clear()
        finally:
            self.end()

    async def pieces(self) -> AsyncIterator[tuple[int, list[int], bool]]:
        """Of each stream with news its place, new tokens and whether that is all, as they come."""
        left = len(self.streams)
        while left:
            await self._news.wait()
            self._news.clear()
            for at, stream in enumerate(self.streams):
                if (news := stream.read()) is not None:
                    yield at, *news
                    left -= news[1]

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompts, tokens."""
        return sum(stream.prompt_tokens for stream in self.streams[:: self._samples])

    @property
    def output_tokens(self) -> int:
        """Output so far, tokens."""
        return sum(len(stream.output) for stream in self.streams)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens of the first samples that came from the cache."""
        return sum(stream.cached_tokens for stream in self.streams[:: self._samples])


def prompts_of(given: object, param: str) -> list[list[int]]:
    """Read prompts: text, token ids, or a list of either.

    Args:
        given: What the client sent.
        param: Name of the field.

    Returns:
        Token ids of each prompt.

    Raises:
        RequestError: It is neither.
    """
    if isinstance(given, str):
        return [encode(given)]
    if isinstance(given, list) and given:
        if isinstance(given[0], int):
            return [given]
        if all(isinstance(one, str) for one in given):
            return [encode(one) for one in given]
        if all(isinstance(one, list) for one in given):
            return given
    raise RequestError(f"{param}: got {str(given)[:60]}, accepted is text, token ids, or a list of either", param)


def new_id(prefix: str) -> str:
    """Make a name for a request.

    Args:
        prefix: Its beginning.

    Returns:
        The name.
    """
    return f"{prefix}-{secrets.token_hex(12)}"
