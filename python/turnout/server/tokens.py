"""Token ids of a request's prompt: those that it brings, a tokenizer's, the engine's, or its text in their place."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec

from turnout.errors import InvalidArgument, MissingExtra
from turnout.prompts import plain_units, text_units
from turnout.server.upstream import payload

if TYPE_CHECKING:
    from collections import Counter
    from pathlib import Path

    import numpy as np

    from turnout.feeds import Fleet
    from turnout.server.dialects import Asked
    from turnout.server.proxy_config import ProxyConfig

CHAT_FIELDS: Final = (
    "model",
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "documents",
    "reasoning_effort",
)
"""What of a chat decides its tokens."""

AGAIN_S: Final = 60.0
"""After an engine answered that it has no `/tokenize` it is asked again, s."""
INLINE_CHARACTERS: Final = 4_096
"""Longer text is tokenized in a thread, so that nobody waits for it."""
NOT_THERE: Final = frozenset({404, 405, 501})

_LOG = logging.getLogger(__name__)


class _Tokenized(msgspec.Struct):
    tokens: list[int]


_TOKENIZED: Final = msgspec.json.Decoder(_Tokenized)


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt as the router takes it.

    Attributes:
        tokens: Ids or units.
        text: The text that units stand for; None for ids.
        chat: Whether it is the text of a chat.
    """

    tokens: Any
    text: str | None = None
    chat: bool = False

    @property
    def ids(self) -> bool:
        """Whether these are the engine's token ids."""
        return self.text is None

    def output_units(self, text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """An answer in units, so that prompt and answer are the beginning of the next prompt.

        Args:
            text: The answer.

        Returns:
            The units.
        """
        if self.chat:
            return text_units([{"role": "assistant", "content": text}])
        return plain_units((self.text or "") + text)[len(self.tokens) :]


class Tokens:
    """Finds the tokens of prompts.

    Args:
        config: Where from.
        fleet: The engines.
        session: The HTTP client.
        counts: Counts by source.

    Raises:
        InvalidArgument: The tokenizer's file cannot be read.
    """

    def __init__(self, config: ProxyConfig, fleet: Fleet, session: aiohttp.ClientSession, counts: Counter[str]) -> None:
        self._config = config
        self._fleet = fleet
        self._session = session
        self._counts = counts
        self._tokenizer = None if config.tokenizer is None else load_tokenizer(config.tokenizer)
        self._timeout = aiohttp.ClientTimeout(total=config.tokenize_timeout_s)
        self._headers = {"Content-Type": "application/json"}
        if config.engine_api_key is not None:
            self._headers["Authorization"] = f"Bearer {config.engine_api_key}"
        self._without: dict[str, float] = {}
        self._turn = itertools.count()
        self._told = False

    async def of(self, asked: Asked, engines: list[str]) -> PromptTokens:
        """The tokens of a prompt.

        Args:
            asked: The request.
            engines: Engines that serve its model.

        Returns:
            Its tokens.

        Raises:
            InvalidArgument: The prompt is empty, or the engine alone may say and does not.
        """
        if asked.kind == "ids":
            self._counts["tokens_given"] += 1
            return PromptTokens(asked.prompt)
        if asked.kind == "text" and self._tokenizer is not None:
            self._counts["tokens_by_tokenizer"] += 1
            return PromptTokens(await self._encode(asked.prompt))
        if self._config.tokens != "text":
            ids = await self._ask_engine(_question(asked), engines)
            if ids:
                self._counts["tokens_by_engine"] += 1
                return PromptTokens(ids)
            if self._config.tokens == "engine":
                accepted = "an engine that answers /tokenize, or tokens = 'auto'"
                raise InvalidArgument(
                    f"tokens: no engine said the tokens of the prompt, accepted is {accepted}", "tokens"
                )
        self._counts["tokens_as_text"] += 1
        if not self._told:
            self._told = True
            _LOG.warning(
                "prompts are compared as text, 4 bytes a token: lengths are about right, cache events do not count"
            )
        if asked.kind == "chat":
            tools = asked.body.get("tools")
            head = [{"role": "tools", "content": tools}] if tools else []
            return PromptTokens(text_units([*head, *asked.prompt]), "", chat=True)
        return PromptTokens(plain_units(asked.prompt), asked.prompt)

    async def of_answer(self, text: str, model: str | None, engines: list[str]) -> list[int] | None:
        """The tokens of an answer whose ids the engine did not say, as they will stand in the next prompt.

        Args:
            text: The answer.
            model: The model, as the request named it.
            engines: Engines that serve it.

        Returns:
            Token ids; None where nobody knows.
        """
        if not text:
            return None
        if self._tokenizer is not None:
            return await self._encode(text, special=False)
        if self._config.tokens == "text":
            return None
        message: dict[str, Any] = {"prompt": text, "add_special_tokens": False}
        return await self._ask_engine(message if model is None else {**message, "model": model}, engines)

    async def _encode(self, text: str, *, special: bool = True) -> list[int]:
        tokenizer: Any = self._tokenizer

        def encode() -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=special).ids)

        return encode() if len(text) <= INLINE_CHARACTERS else await asyncio.to_thread(encode)

    async def _ask_engine(self, message: dict[str, Any], engines: list[str]) -> list[int] | None:
        """Ask one engine after the other, two at most; None when none knows."""
        now = time.monotonic()
        able = [name for name in engines if self._without.get(name, 0.0) <= now]
        body = msgspec.json.encode(message)
        first = next(self._turn)
        for attempt in range(min(2, len(able))):
            name = able[(first + attempt) % len(able)]
            engine = self._fleet.engines().get(name)
            if engine is None:
                continue
            try:
                async with self._session.post(
                    f"{engine.url}/tokenize", data=payload(body), headers=self._headers, timeout=self._timeout
                ) as answer:
                    said = await answer.read()
            except (aiohttp.ClientError, OSError, TimeoutError):
                continue
            if answer.status in NOT_THERE:
                self._without[name] = now + AGAIN_S
                continue
            if answer.status >= 400:  # noqa: PLR2004 - HTTP
                return None
            try:
                return _TOKENIZED.decode(said).tokens
            except msgspec.DecodeError:
                self._without[name] = now + AGAIN_S
        return None


def _question(asked: Asked) -> dict[str, Any]:
    if asked.kind == "chat":
        return {name: asked.body[name] for name in CHAT_FIELDS if name in asked.body}
    return {"prompt": asked.prompt, **({} if asked.model is None else {"model": asked.model})}


def load_tokenizer(path: Path) -> Any:  # noqa: ANN401 - a tokenizer of the optional library
    """Read a tokenizer.

    Args:
        path: A `tokenizer.json`.

    Returns:
        The `tokenizers.Tokenizer`.

    Raises:
        InvalidArgument: It cannot be read.
        MissingExtra: The library is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtra("a tokenizer needs tokenizers: pip install 'turnout[serve]'") from error
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        accepted = "a tokenizer.json of Hugging Face"
        raise InvalidArgument(
            f"tokenizer: got {path} ({error}), accepted is {accepted}", "tokenizer", str(path), accepted
        ) from error
