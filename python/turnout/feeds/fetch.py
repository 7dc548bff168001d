"""HTTP questions to an engine: bounded in time and size, and an answer says which kind of failure it was."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import aiohttp

if TYPE_CHECKING:
    from turnout.feeds.config import Timing

OK = 200
ERRORS = 400


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Attributes:
        outcome: `answered` (with any status), `refused` (no connection) or `silent` (no answer in time).
        status: HTTP status; 0 without an answer.
        body: The text; at most `Timing.body_bytes`.
        date: The header `Date`, or empty.
        took_s: Time from question to answer, s.
        says: The failure in words.
    """

    outcome: Literal["answered", "refused", "silent"]
    status: int = 0
    body: str = ""
    date: str = ""
    took_s: float = 0.0
    says: str = ""

    @property
    def good(self) -> bool:
        """Whether it is an answer without an error."""
        return self.outcome == "answered" and self.status < ERRORS

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; empty when it is none, or an error."""
        if not self.good:
            return {}
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


async def ask(
    session: aiohttp.ClientSession, url: str, timing: Timing, *, post: dict[str, Any] | None = None
) -> Answer:
    """Ask one question; never raises for what the other side does.

    Args:
        session: The HTTP client.
        url: The whole address.
        timing: `request_timeout_s` and `body_bytes` bound the answer.
        post: JSON to send by POST; None = GET.

    Returns:
        The answer, or how it failed.
    """
    timeout = aiohttp.ClientTimeout(total=timing.request_timeout_s)
    started = time.monotonic()
    try:
        method = "GET" if post is None else "POST"
        async with session.request(method, url, json=post, timeout=timeout, allow_redirects=False) as response:
            chunks: list[bytes] = []
            size = 0
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > timing.body_bytes:
                    return Answer("answered", ERRORS, says=f"more than {timing.body_bytes} bytes")
                chunks.append(chunk)
            body = b"".join(chunks).decode("utf-8", "replace")
            date = response.headers.get("Date", "")
            return Answer("answered", response.status, body, date, time.monotonic() - started)
    except TimeoutError:
        return Answer("silent", took_s=time.monotonic() - started, says=f"no answer in {timing.request_timeout_s:g} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Answer("refused", took_s=time.monotonic() - started, says=f"{type(error).__name__}: {error}")
