"""Looks at one engine: asks what it is, listens to it, and tries it where that is allowed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

import aiohttp
import zmq.asyncio

from turnout.doctor.advice import advice
from turnout.doctor.listening import Heard, hear, replays
from turnout.doctor.probe import Probe, probe
from turnout.doctor.report import Report
from turnout.doctor.tokens import compare_tokenizer, load_tokenizer
from turnout.errors import InvalidArgument
from turnout.feeds.config import Engine, Timing
from turnout.feeds.discovery import Discovered, discover
from turnout.feeds.fetch import Answer, ask

if TYPE_CHECKING:
    from pathlib import Path

SKEW_S: Final = 5.0
"""A clock that is off by more is named, s."""
CONNECT_S: Final = 2.0
"""Time for handshakes before the engine is tried, s."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to look.

    Attributes:
        probe: Send the engine two tiny requests.
        listen_s: How long to listen to its cache events, s.
        tokenizer: A `tokenizer.json` that the engine's must be equal to.
        timing: Limits of each question.

    Raises:
        InvalidArgument: `listen_s` is not above 0.
    """

    probe: bool = False
    listen_s: float = 3.0
    tokenizer: Path | None = None
    timing: Timing = field(default_factory=Timing)

    def __post_init__(self) -> None:
        """Check."""
        if not 0 < self.listen_s < float("inf"):
            given, accepted = repr(self.listen_s), "a time above 0 s"
            raise InvalidArgument(f"listen_s: got {given}, accepted is {accepted}", "listen_s", given, accepted)


async def examine(url: str, options: Options) -> Report:
    """Look at an engine.

    Args:
        url: Address of its HTTP server.
        options: How to look.

    Returns:
        What was found. Nothing that the engine does raises an error.

    Raises:
        InvalidArgument: The address is none, or the tokenizer cannot be read.

    Example:
        >>> import asyncio
        >>> asyncio.run(examine("http://127.0.0.1:9", Options())).code
        2
    """
    engine = Engine("engine", url)
    own = None if options.tokenizer is None else load_tokenizer(options.tokenizer)
    report = Report(engine.url)
    async with aiohttp.ClientSession() as session:
        health = await ask(session, f"{engine.url}/health", options.timing)
        if health.outcome != "answered":
            report.add("reachable", "unreachable", health.says, "is the address right, and the port open from here?")
            return report
        if not health.good:
            report.add("reachable", "unreachable", f"/health answers with status {health.status}", "see its log")
            return report
        report.add("reachable", "ok", f"/health answers in {1e3 * health.took_s:.0f} ms")
        found = await discover(session, engine, options.timing)
        report.kind, report.version = found.kind, found.version
        _kind(report, found)
        _numbers(report, found, await ask(session, f"{engine.url}/metrics", options.timing))
        heard, tried = await _listen(session, engine, found, options)
        _events(report, found, heard, options)
        await _replay(report, found, options.timing)
        _cached(report, found, tried)
        await compare_tokenizer(report, session, engine, own, options.timing)
        _clock(report, health)
    return report


def _kind(report: Report, found: Discovered) -> None:
    if found.kind == "auto":
        words = "it answers, but says nowhere that it is vLLM or SGLang"
        report.add("kind", "missing", words, "is this the engine's own address, not that of a proxy?")
    else:
        report.add("kind", "ok", f"{found.kind} {found.version or '(version unknown)'}")


def _numbers(report: Report, found: Discovered, metrics: Answer) -> None:
    """What the pages of numbers say."""
    reading = found.reading
    if not metrics.good:
        words = metrics.says or f"/metrics answers with status {metrics.status}"
        report.add("metrics", "missing", f"{words}: load and preemptions are unknown", advice("metrics", found.kind))
    elif reading.running is None:
        words = "/metrics names no running requests under vLLM's or SGLang's names"
        report.add("metrics", "missing", words, advice("metrics", found.kind))
    else:
        report.add("metrics", "ok", f"{reading.running} requests run, {reading.waiting} wait")
    if reading.kv_tokens is None:
        how = "tell the router: Engine(kv_tokens=...)"
        report.add("capacity", "missing", "it does not say how many tokens its KV cache holds", how)
    else:
        report.add("capacity", "ok", f"{reading.kv_tokens:,.0f} tokens")
    if reading.block_tokens is None:
        report.add("block size", "missing", "it does not say how many tokens a block has", "turn its metrics on")
    else:
        report.add("block size", "ok", f"{reading.block_tokens} tokens")


async def _listen(
    session: aiohttp.ClientSession, engine: Engine, found: Discovered, options: Options
) -> tuple[list[Heard], Probe | None]:
    """Listen to all ranks for a while, and try the engine meanwhile where that is allowed."""
    all_heard = [Heard(source) for source in found.sources]
    stop = asyncio.Event()
    with zmq.asyncio.Context() as context:
        listeners = [asyncio.create_task(hear(heard, context, stop)) for heard in all_heard]
        began = time.monotonic()
        try:
            connecting = [asyncio.create_task(heard.connected.wait()) for heard in all_heard]
            if connecting:
                await asyncio.wait(connecting, timeout=min(CONNECT_S, options.listen_s))
            for waiting in connecting:
                waiting.cancel()
            tried = None
            if options.probe:
                tried = await probe(session, engine, found.reading.block_tokens, options.timing)
            while all_heard and time.monotonic() - began < options.listen_s:
                if tried is not None and any(heard.batches for heard in all_heard):
                    break
                await asyncio.sleep(0.05)
        finally:
            stop.set()
            await asyncio.gather(*listeners)
    return all_heard, tried


def _events(report: Report, found: Discovered, all_heard: list[Heard], options: Options) -> None:
    if not all_heard:
        words = "cache events are off: the router has to guess what is cached"
        report.add("events", "missing", words, advice("events", found.kind))
        return
    ranks = sorted(heard.source.rank for heard in all_heard)
    if ranks == list(range(len(ranks))):
        report.add("ranks", "ok", "one" if len(ranks) == 1 else f"{len(ranks)} data-parallel ranks, an endpoint each")
    else:
        report.add("ranks", "missing", f"endpoints of ranks {ranks} alone", "enable cache events on every rank")
    silent = not any(heard.batches for heard in all_heard)
    for heard in all_heard:
        where = heard.source.endpoint + (f" (rank {heard.source.rank})" if len(all_heard) > 1 else "")
        if not heard.connected.is_set():
            how = (
                "is the port open from here? Bound to 127.0.0.1 it can be heard on its own machine alone: use tcp://*:"
            )
            report.add("events", "missing", f"{where} does not answer", how)
        elif heard.wrong:
            how = "is it the events' endpoint, of a version that this Turnout reads?"
            report.add("events", "missing", f"{where} publishes what cannot be read: {heard.wrong}", how)
        elif silent and options.probe:
            how = "prefix caching must be on, and the topic that of its configuration"
            report.add("events", "missing", f"{where} is silent, although prompts were computed", how)
        elif heard.batches:
            words = f"{where}: {heard.batches} batches, {heard.stored_blocks} blocks stored"
            report.add("events", "ok", words)
        else:
            report.add("events", "ok", f"{where} is connected; nothing was published in {options.listen_s:g} s")
        stated = found.reading.block_tokens
        if stated is not None and heard.block_tokens - {stated}:
            words = f"events have blocks of {sorted(heard.block_tokens)} tokens, the engine states {stated}"
            report.add("block size", "missing", words, "tell the router: Replica(block_tokens=...)")


async def _replay(report: Report, found: Discovered, timing: Timing) -> None:
    with zmq.asyncio.Context() as context:
        for source in found.sources:
            if source.replay_endpoint is None:
                words = f"rank {source.rank} has no replay socket: after a gap its cache is unknown for a while"
                report.add("replay", "missing", words, advice("events", found.kind))
            elif await replays(source.replay_endpoint, context, timing.request_timeout_s):
                report.add("replay", "ok", f"{source.replay_endpoint} answers")
            else:
                how = "is the port open from here? The socket is that of replay_endpoint"
                report.add("replay", "missing", f"{source.replay_endpoint} does not answer", how)


def _cached(report: Report, found: Discovered, tried: Probe | None) -> None:
    """Whether a prompt is kept for the next one, and whether answers say so."""
    seen = tried is not None and bool(tried.cached_tokens)
    if found.reading.prefix_caching is False:
        words = "it keeps nothing of a prompt for the next one"
        report.add("prefix caching", "missing", words, advice("prefix caching", found.kind))
    elif found.reading.prefix_caching or seen:
        report.add("prefix caching", "ok", "on" if found.reading.prefix_caching else "on, as the probe saw")
    else:
        report.add("prefix caching", "untried", "it does not say")
    if tried is None:
        report.add("cached_tokens", "untried", "--probe sends two tiny requests to see whether answers say it")
    elif tried.wrong:
        report.add("cached_tokens", "missing", tried.wrong, "the router's callers send the same kind of request")
    elif tried.cached_tokens is None:
        words = "answers do not say how much of the prompt was cached: the books cannot be checked"
        report.add("cached_tokens", "missing", words, advice("cached_tokens", found.kind))
    elif tried.cached_tokens == 0:
        words = f"a prompt of {tried.prompt_tokens} tokens was sent twice, and nothing of it was cached"
        report.add("cached_tokens", "missing", words, advice("prefix caching", found.kind))
    else:
        words = f"{tried.cached_tokens} of {tried.prompt_tokens} tokens the second time"
        report.add("cached_tokens", "ok", words)


def skew_s(date: str, took_s: float, now_s: float) -> float | None:
    """How far a server's clock is from ours, by its header `Date`, which has whole seconds.

    Args:
        date: The header.
        took_s: Time from question to answer, s.
        now_s: Our clock at the answer, s of `time.time()`.

    Returns:
        The least difference that explains it, s; above 0 = the server is ahead. None = there is no date.

    Example:
        >>> skew_s("Thu, 01 Jan 1970 00:01:40 GMT", 0.2, 100.9), skew_s("Thu, 01 Jan 1970 00:01:40 GMT", 0.0, 91.0)
        (0.0, 9.0)
    """
    try:
        theirs = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None
    # Written somewhere between question and answer, and anywhere within its second.
    least, most = theirs - now_s, theirs + 1.0 - (now_s - took_s)
    return least if least > 0 else min(most, 0.0)


def _clock(report: Report, health: Answer) -> None:
    skew = skew_s(health.date, health.took_s, time.time())
    if skew is None:
        report.add("clock", "untried", "its answers have no date")
    elif abs(skew) > SKEW_S:
        way = "ahead of" if skew > 0 else "behind"
        report.add("clock", "missing", f"{abs(skew):.0f} s {way} this machine", "run NTP on both: times of logs differ")
    else:
        report.add("clock", "ok", "that of this machine, as far as whole seconds tell")
