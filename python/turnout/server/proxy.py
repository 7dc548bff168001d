"""The proxy in front of the engines: what all its requests share."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Self, TypeVar

import aiohttp

from turnout.errors import InvalidArgument
from turnout.server.exchange import Exchange
from turnout.server.identity import Identify
from turnout.server.models import Models
from turnout.server.tokens import Tokens
from turnout.server.upstream import open_client, payload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from multidict import CIMultiDict
    from starlette.types import Receive, Scope, Send

    from turnout.aio import AsyncRouter
    from turnout.feeds import Fleet
    from turnout.server.dialects import Asked, Dialect
    from turnout.server.identity import Identity
    from turnout.server.proxy_config import ProxyConfig
    from turnout.server.tokens import PromptTokens

T = TypeVar("T")


class Proxy:
    """Passes requests to the engines of a fleet, each where and when the router says. Use it with `async with`.

    Args:
        routed: The router.
        fleet: The engines.
        config: Settings.
        own_token: Whether `Authorization` is this server's own: then no engine is shown it.

    Attributes:
        counts: What happened since the start, by name.

    Raises:
        InvalidArgument: The tokenizer or the user's function cannot be loaded.
    """

    def __init__(self, routed: AsyncRouter, fleet: Fleet, config: ProxyConfig, *, own_token: bool = False) -> None:
        self.routed, self.fleet, self.config, self.own_token = routed, fleet, config, own_token
        self.identify = Identify(config)
        self.counts: Counter[str] = Counter()
        self._session: aiohttp.ClientSession | None = None
        self._models: Models | None = None
        self._tokens: Tokens | None = None

    async def __aenter__(self) -> Self:
        key = self.config.engine_api_key
        self._session = open_client(self.config)
        try:
            self._models = Models(self.fleet, self._session, {} if key is None else {"Authorization": f"Bearer {key}"})
            self._tokens = Tokens(self.config, self.fleet, self._session, self.counts)
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._models is not None:
            await self._models.close()
        if self._session is not None:
            await self._session.close()
        self._session = self._models = self._tokens = None

    @property
    def models(self) -> Models:
        """Who serves which model."""
        return _opened(self._models)

    @property
    def tokens(self) -> Tokens:
        """Tokens of prompts."""
        return _opened(self._tokens)

    @property
    def session(self) -> aiohttp.ClientSession:
        """The HTTP client."""
        return _opened(self._session)

    async def serve(self, dialect: Dialect, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Args:
            dialect: How it speaks.
            scope: Of ASGI.
            receive: Of ASGI.
            send: Of ASGI.
        """
        self.counts["requests"] += 1
        await Exchange(self, dialect, scope, receive, send).run()

    def arguments(self, asked: Asked, who: Identity, prompt: PromptTokens, engines: list[str]) -> dict[str, Any]:
        """What the router is told of a request.

        Args:
            asked: What it asks.
            who: Whose it is.
            prompt: Its prompt.
            engines: Engines that may serve it.

        Returns:
            Arguments of `submit`, but for the prompt.
        """
        if prompt.ids:
            # As the engines' cache events name it (docs/prefix-index.md).
            names = [self.models.adapter(asked.model), asked.salt, who.namespace]
        else:
            names = [f"text:{asked.model or ''}", asked.salt, who.namespace]
        return {
            "session": self.session_of(who.session, asked.model),
            "parent": self.session_of(who.parent, asked.model),
            "workload": who.workload,
            "namespace": "/".join(name for name in names if name) or None,
            "max_new_tokens": asked.max_new_tokens,
            "samples": asked.samples,
            "group": who.group,
            "priority": asked.priority if who.priority is None else who.priority,
            "candidates": self.candidates(engines),
        }

    def session_of(self, session: str | None, model: str | None) -> str | None:
        """The router's name of a caller's session: one for each model, where engines serve several.

        Args:
            session: The caller's name.
            model: The model.

        Returns:
            The name.
        """
        return f"{session}@{model}" if session is not None and model is not None and self.models.several() else session

    def end_session(self, session: str, *, completed: bool = True) -> str:
        """End a caller's session, with all models.

        Args:
            session: Its name.
            completed: Whether it is finished rather than given up.

        Returns:
            `done`, or `unknown` when there is none.
        """
        names = [session, *(f"{session}@{card['id']}" for card in self.models.cards())]
        ended = [self.routed.end_session(name, completed=completed).status for name in names]
        return "done" if "done" in ended else "unknown"

    @contextlib.asynccontextmanager
    async def post(self, url: str, body: bytes, headers: CIMultiDict[str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request to an engine, and give up its connection in whatever way the block is left.

        Args:
            url: Where to.
            body: The body.
            headers: The headers.

        Yields:
            The answer, its body not yet read.
        """
        session = self.session
        try:
            answer = await session.post(url, data=payload(body), headers=headers, allow_redirects=False)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError):
            # The engine closed an idle connection while this request was on its way: once more, on another one.
            await asyncio.sleep(0)
            self.counts["reconnects"] += 1
            answer = await session.post(url, data=payload(body), headers=headers, allow_redirects=False)
        try:
            yield answer
        finally:
            # Closes the connection unless the answer was read to its end: so the engine learns that nobody wants it.
            answer.close() if not answer.content.at_eof() else answer.release()

    def alive(self, engines: list[str]) -> list[str]:
        """Those that have joined the router and were not lost: worth to be asked something.

        Args:
            engines: Engines.

        Returns:
            Some of them; all where none has joined yet.
        """
        replicas = set(self.routed.router.replicas)
        return [name for name in engines if name in replicas] or engines

    def candidates(self, engines: list[str]) -> list[str] | None:
        """Replicas that may serve a request.

        Args:
            engines: Engines that serve its model.

        Returns:
            Those that have joined; None = all, those too that join while it is held.
        """
        replicas = set(self.routed.router.replicas)
        if replicas.issubset(engines):
            return None
        return [name for name in engines if name in replicas] or None


def _opened(part: T | None) -> T:
    if part is None:
        raise InvalidArgument("proxy: it is not open, accepted is a call inside `async with`", "proxy")
    return part
