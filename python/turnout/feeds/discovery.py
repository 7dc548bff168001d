"""What an engine is and where it publishes, asked of the engine itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from turnout.feeds.config import Engine, KvSource, Timing
from turnout.feeds.fetch import ask
from turnout.feeds.metrics import Reading, read_metrics

if TYPE_CHECKING:
    import aiohttp

WILDCARDS = frozenset({"*", "0.0.0.0", "::", "[::]", ""})  # noqa: S104 - recognised, not bound
MOST_RANKS = 1024


@dataclass(frozen=True, slots=True)
class Discovered:
    """What an engine says it is.

    Attributes:
        kind: `"vllm"`, `"sglang"`, or `"auto"` when it could not be told.
        version: As it says; empty = unknown.
        sources: Where its ranks publish cache events.
        load_endpoints: Where SGLang's ranks publish load reports.
        reading: Its metrics.
        missing: What it does not offer, in words.
    """

    kind: str
    version: str
    sources: tuple[KvSource, ...]
    load_endpoints: tuple[str, ...]
    reading: Reading
    missing: tuple[str, ...]


def reachable(endpoint: str, host: str, offset: int = 0) -> str | None:
    """An address as others can reach it: wildcards replaced by the worker's own host, the port moved by an offset.

    Args:
        endpoint: As the engine was configured, for example `"tcp://*:5557"`.
        host: The worker's host.
        offset: Added to the port of tcp addresses (data-parallel rank).

    Returns:
        The address; None when it cannot be one (no port, or port 0).

    Example:
        >>> reachable("tcp://*:5557", "10.0.0.1", 2)
        'tcp://10.0.0.1:5559'
    """
    scheme, separator, rest = endpoint.partition("://")
    if not separator:
        return None
    if scheme == "inproc":
        return f"{endpoint}_dp{offset}" if offset else endpoint
    if scheme != "tcp":
        return endpoint
    there, separator, port = rest.rpartition(":")
    if not separator or not port.isdecimal() or not 0 < int(port) + offset <= 65_535 or int(port) == 0:  # noqa: PLR2004 - ports
        return None
    there = host if there in WILDCARDS else there
    if ":" in there and not there.startswith("["):
        there = f"[{there}]"
    return f"tcp://{there}:{int(port) + offset}"


def vllm_sources(body: dict[str, Any], host: str) -> tuple[KvSource, ...]:
    """Endpoints from `GET /kv_event_sources`, by rank. Where ranks show the same port, each adds its own number."""
    configs = {int(rank): config for rank, config in body.items() if rank.isdecimal() and isinstance(config, dict)}
    same = len({config.get("endpoint") for config in configs.values()}) < len(configs)
    sources = []
    for rank, config in sorted(configs.items())[:MOST_RANKS]:
        if config.get("enable_kv_cache_events") is False or config.get("publisher") == "null":
            continue
        offset = rank if same else 0
        endpoint = reachable(str(config.get("endpoint") or ""), host, offset)
        replay = reachable(str(config.get("replay_endpoint") or ""), host, offset)
        if endpoint is not None:
            sources.append(KvSource(endpoint, replay, rank, str(config.get("topic") or "")))
    return tuple(sources)


def sglang_sources(info: dict[str, Any], host: str) -> tuple[tuple[KvSource, ...], tuple[str, ...]]:
    """Endpoints from `GET /server_info`: port bases, to which each data-parallel rank adds its number."""
    events = info.get("kv_events")
    if not isinstance(events, dict):
        return (), ()
    there = str(events.get("endpoint_host") or "*")
    there = host if there in WILDCARDS else there
    size = events.get("dp_size")
    ranks = range(min(size, MOST_RANKS) if isinstance(size, int) and size > 0 else 1)

    def at(field: str, rank: int) -> str | None:
        base = events.get(field)
        return reachable(f"tcp://{there}:{base}", host, rank) if isinstance(base, int) else None

    sources = []
    for rank in ranks:
        endpoint = at("endpoint_port_base", rank)
        if endpoint is not None and events.get("publisher") not in {None, "null"}:
            topic = str(events.get("topic") or "")
            sources.append(KvSource(endpoint, at("replay_endpoint_port_base", rank), rank, topic))
    loads = (at("load_endpoint_port_base", rank) for rank in ranks)
    return tuple(sources), tuple(load for load in loads if load is not None)


async def discover(session: aiohttp.ClientSession, engine: Engine, timing: Timing) -> Discovered:
    """Ask an engine what it is.

    Args:
        session: The HTTP client.
        engine: Which one; what it states by hand is not asked.
        timing: Limits of each question.

    Returns:
        What it says, and what it lacks in words.
    """
    paths = ("/metrics", "/version", "/server_info", "/kv_event_sources")
    metrics, version, info, sources = await asyncio.gather(*(ask(session, engine.url + path, timing) for path in paths))
    reading = read_metrics(metrics.body, rank=engine.rank) if metrics.good else Reading()
    server = info.json()
    kind = engine.kind if engine.kind != "auto" else reading.kind
    if kind is None:
        sglang = "kv_events" in server or "max_total_num_tokens" in server
        kind = "sglang" if sglang else "vllm" if "version" in version.json() or sources.good else "auto"
    missing = [] if metrics.good else ["no /metrics" + (" (SGLang: --enable-metrics)" if kind == "sglang" else "")]
    said = server.get("version") if kind == "sglang" else version.json().get("version")
    found: tuple[KvSource, ...] = ()
    loads: tuple[str, ...] = ()
    if kind == "sglang":
        found, loads = sglang_sources(server, engine.host)
    elif kind == "vllm":
        found = vllm_sources(sources.json(), engine.host)
    if isinstance(engine.kv_events, tuple):
        found = engine.kv_events
    elif engine.kv_events == "off":
        found = ()
    elif not found:
        missing.append("cache events are off: start it with --kv-events-config")
    if engine.rank is not None:
        found = tuple(source for source in found if source.rank == engine.rank)
        loads = loads[engine.rank : engine.rank + 1]
    missing.extend(
        f"rank {source.rank} has no replay_endpoint: a gap costs what is known of its cache"
        for source in found
        if source.replay_endpoint is None
    )
    return Discovered(kind, str(said or ""), found, loads, _with_info(reading, server), tuple(missing))


def _with_info(reading: Reading, server: dict[str, Any]) -> Reading:
    """SGLang states some things in `/server_info` that a page of metrics may lack."""
    page, tokens, off = (server.get(name) for name in ("page_size", "max_total_num_tokens", "disable_radix_cache"))
    if reading.block_tokens is None and isinstance(page, int) and page > 0:
        reading = replace(reading, block_tokens=page)
    if reading.kv_tokens is None and isinstance(tokens, int) and tokens > 0:
        reading = replace(reading, kv_tokens=float(tokens))
    if reading.prefix_caching is None and isinstance(off, bool):
        reading = replace(reading, prefix_caching=not off)
    return reading
