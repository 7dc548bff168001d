"""Which engine serves which model, as the engines themselves say."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec

if TYPE_CHECKING:
    from turnout.feeds import Fleet

FRESH_S: Final = 30.0
"""So long what an engine said is used."""
AGAIN_S: Final = 2.0
"""After an engine did not answer it is asked again, s."""
TIMEOUT_S: Final = 3.0


@dataclass(slots=True)
class _Known:
    cards: dict[str, dict[str, Any]] = field(default_factory=dict)
    answered: bool = False
    until_s: float = 0.0


class Models:
    """Asks engines for their models, and remembers.

    Args:
        fleet: The engines.
        session: The HTTP client.
        headers: Sent along.
    """

    def __init__(self, fleet: Fleet, session: aiohttp.ClientSession, headers: dict[str, str]) -> None:
        self._fleet = fleet
        self._session = session
        self._headers = headers
        self._known: dict[str, _Known] = {}
        self._asking: asyncio.Task[None] | None = None

    async def look(self) -> None:
        """Ask the engines of which nothing fresh is known. Callers share one question."""
        now = time.monotonic()
        engines = self._fleet.engines()
        for gone in self._known.keys() - engines.keys():
            del self._known[gone]
        stale = [name for name in engines if name not in self._known or self._known[name].until_s <= now]
        if not stale:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask({name: engines[name].url for name in stale}))
        # Nobody waits where something is known already: an old answer serves until there is a new one.
        if any(name not in self._known for name in stale):
            await asyncio.shield(self._asking)

    def serving(self, model: str | None) -> list[str]:
        """Engines that may be sent a request for a model.

        Args:
            model: The model; None = any.

        Returns:
            Those that have it, and those that have not said; all when no engine has it, so that one of them says so.
        """
        engines = list(self._fleet.engines())
        if model is None:
            return engines
        empty = _Known()
        known = {name: self._known.get(name, empty) for name in engines}
        if not any(model in one.cards for one in known.values()):
            return engines
        return [name for name, one in known.items() if model in one.cards or not one.answered]

    def of(self, engine: str) -> list[str]:
        """Models that an engine serves, as far as it is known.

        Args:
            engine: Its name.

        Returns:
            Their names.
        """
        known = self._known.get(engine)
        return [] if known is None else list(known.cards)

    def adapter(self, model: str | None) -> str | None:
        """The name of the adapter that a model is.

        Args:
            model: The model.

        Returns:
            Its name; None when it is a whole model, or not known.
        """
        for one in self._known.values() if model is not None else ():
            card = one.cards.get(model or "")
            if card is not None:
                return model if card.get("parent") else None
        return None

    def several(self) -> bool:
        """Whether the engines serve different models."""
        sets = {frozenset(one.cards) for one in self._known.values() if one.answered}
        return len(sets) > 1

    def cards(self) -> list[dict[str, Any]]:
        """The union of what the engines list, by name.

        Returns:
            OpenAI's model objects; of one that several engines have, the first.
        """
        union: dict[str, dict[str, Any]] = {}
        for one in self._known.values():
            for name, card in one.cards.items():
                union.setdefault(name, card)
        return list(union.values())

    async def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self, urls: dict[str, str]) -> None:
        await asyncio.gather(*(self._ask_one(name, url) for name, url in urls.items()))

    async def _ask_one(self, name: str, url: str) -> None:
        known = self._known.get(name) or _Known()
        try:
            async with self._session.get(
                f"{url}/v1/models", headers=self._headers, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
            ) as answer:
                body = msgspec.json.decode(await answer.read())
            cards = {str(card["id"]): card for card in body["data"]}
            known = _Known(cards, answered=True, until_s=time.monotonic() + FRESH_S)
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, KeyError, TypeError):
            known.until_s = time.monotonic() + AGAIN_S
        self._known[name] = known
