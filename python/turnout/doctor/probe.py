"""Two tiny requests with the same prompt: does the second find the first in the cache, and does the answer say so?"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from turnout.feeds.fetch import ask

if TYPE_CHECKING:
    import aiohttp

    from turnout.feeds.config import Engine, Timing

BLOCKS: Final = 4
BLOCK_TOKENS: Final = 16
MOST_TOKENS: Final = 1_024
LOWEST_ID, IDS = 1_000, 1_000
"""Token ids that every vocabulary has, and that mean nothing special."""
PATIENCE_S: Final = 30.0
"""A busy engine lets even a tiny request wait, s."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What the second request said.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        cached_tokens: How many of them were cached; None = it does not say.
        wrong: Why there is no answer; empty = there is.
    """

    prompt_tokens: int
    cached_tokens: int | None = None
    wrong: str = ""


async def probe(session: aiohttp.ClientSession, engine: Engine, block_tokens: int | None, timing: Timing) -> Probe:
    """Send the requests: a new random prompt of a few blocks, one token of output.

    Args:
        session: The HTTP client.
        engine: The engine.
        block_tokens: Tokens per block; None = unknown.
        timing: Limits of an answer.

    Returns:
        What came back.
    """
    count = min(BLOCKS * (block_tokens or BLOCK_TOKENS) + 1, MOST_TOKENS)
    prompt = [LOWEST_ID + secrets.randbelow(IDS) for _ in range(count)]
    patient = replace(timing, request_timeout_s=PATIENCE_S)
    models = (await ask(session, f"{engine.url}/v1/models", timing)).json().get("data")
    names = [model.get("id") for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    message: dict[str, Any] = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
    if names:
        message["model"] = names[0]
    usage: Any = None
    for _ in range(2):
        answer = await ask(session, f"{engine.url}/v1/completions", patient, post=message)
        if not answer.good:
            says = answer.says or f"status {answer.status}: {answer.body[:200]}"
            return Probe(count, wrong=f"/v1/completions does not answer: {says}")
        usage = answer.json().get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Probe(count, cached if isinstance(cached, int) else None)
