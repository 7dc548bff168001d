"""What to add to an engine's command line, in the words of the engine."""

from __future__ import annotations

from typing import Final

_SOCKETS: Final = '"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"'
_EVENTS: Final = {
    "vllm": f"""add --kv-events-config '{{"enable_kv_cache_events":true,{_SOCKETS}}}'""",
    "sglang": f"add --kv-events-config '{{{_SOCKETS}}}'",
}
_METRICS: Final = {
    "vllm": "start it without --disable-log-stats, and let /metrics through",
    "sglang": "add --enable-metrics",
}
_CACHING: Final = {"vllm": "add --enable-prefix-caching", "sglang": "start it without --disable-radix-cache"}
_CACHED: Final = {"vllm": "add --enable-prompt-tokens-details", "sglang": "add --enable-cache-report"}
_TABLES: Final = {"events": _EVENTS, "metrics": _METRICS, "prefix caching": _CACHING, "cached_tokens": _CACHED}


def advice(check: str, kind: str) -> str:
    """What to do about something that is missing.

    Args:
        check: What is missing: `events`, `metrics`, `prefix caching` or `cached_tokens`.
        kind: `vllm`, `sglang`, or what it is taken for.

    Returns:
        The words; for both engines where the kind is unknown.

    Example:
        >>> advice("metrics", "sglang")
        'add --enable-metrics'
        >>> advice("cached_tokens", "auto")
        'vLLM: add --enable-prompt-tokens-details; SGLang: add --enable-cache-report'
    """
    table = _TABLES[check]
    return table.get(kind) or f"vLLM: {table['vllm']}; SGLang: {table['sglang']}"
