"""`/metrics` in the names of the real engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.engine.worker import Worker


class _Page:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, name: str, kind: str, value: float, **labels: str) -> None:
        family = name.removesuffix("_total") if kind == "counter" else name
        head = f"# TYPE {family if kind == 'gauge' else name} {kind}"
        if head not in self.lines:
            self.lines += [f"# HELP {name} {family.partition(':')[2].replace('_', ' ')}", head]
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in sorted(labels.items()))
        self.lines.append(f"{name}{{{shown}}} {float(value)!r}")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def page(worker: Worker) -> str:
    """Make the page.

    Args:
        worker: The engine.

    Returns:
        The Prometheus text format, with the metrics of each dialect that is served.
    """
    made = _Page()
    if worker.config.speaks("vllm"):
        _vllm(made, worker)
    if worker.config.speaks("sglang"):
        _sglang(made, worker)
    return "\n".join([*made.lines, ""])


def _vllm(made: _Page, worker: Worker) -> None:
    config, numbers = worker.config, worker.core.counters()
    labels = {"engine": "0", "model_name": config.model}
    queries, hits = numbers["prefix_queries_total"], numbers["prefix_hits_total"]
    blocks = str(int(numbers["kv_tokens"]) // config.block_tokens)
    cache = {"block_size": str(config.block_tokens), "num_gpu_blocks": blocks, "enable_prefix_caching": "True"}
    cache["kv_cache_size_tokens"] = str(int(numbers["kv_tokens"]))
    made.add("vllm:cache_config_info", "gauge", 1.0, engine="0", **cache)
    made.add("vllm:num_requests_running", "gauge", numbers["running"], **labels)
    made.add("vllm:num_requests_waiting", "gauge", numbers["waiting"], **labels)
    made.add("vllm:kv_cache_usage_perc", "gauge", numbers["used_tokens"] / numbers["kv_tokens"], **labels)
    made.add("vllm:prefix_cache_queries_total", "counter", queries, **labels)
    made.add("vllm:prefix_cache_hits_total", "counter", hits, **labels)
    made.add("vllm:num_preemptions_total", "counter", numbers["preemptions_total"], **labels)
    made.add("vllm:prompt_tokens_total", "counter", queries, **labels)
    for source, value in (("local_compute", queries - hits), ("local_cache_hit", hits), ("external_kv_transfer", 0.0)):
        made.add("vllm:prompt_tokens_by_source_total", "counter", value, source=source, **labels)
    made.add("vllm:prompt_tokens_cached_total", "counter", hits, **labels)
    made.add("vllm:generation_tokens_total", "counter", numbers["output_tokens_total"], **labels)
    for reason, value in worker.finished.items():
        made.add("vllm:request_success_total", "counter", value, finished_reason=reason, **labels)


def _sglang(made: _Page, worker: Worker) -> None:
    config, numbers = worker.config, worker.core.counters()
    labels = {"engine_type": "unified", "model_name": config.model}
    ranked = {**labels, "tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
    queries, hits = numbers["prefix_queries_total"], numbers["prefix_hits_total"]
    kv, used, evictable = numbers["kv_tokens"], numbers["used_tokens"], numbers["evictable_tokens"]
    gauges = {
        "max_total_num_tokens": kv,
        "page_size": config.block_tokens,
        "num_pages": kv // config.block_tokens,
        "context_len": kv,
        "num_running_reqs": numbers["running"],
        "num_queue_reqs": numbers["waiting"],
        "num_used_tokens": used,
        "token_usage": used / kv,
        "full_token_usage": used / kv,
        "kv_used_tokens": used,
        "kv_evictable_tokens": evictable,
        "kv_available_tokens": kv - used - evictable,
        "cache_hit_rate": hits / queries if queries else 0.0,
    }
    for name, value in gauges.items():
        made.add(f"sglang:{name}", "gauge", value, **ranked)
    made.add("sglang:num_retracted_requests_total", "counter", numbers["preemptions_total"], **ranked)
    made.add("sglang:prompt_tokens_total", "counter", queries, **labels)
    made.add("sglang:cached_tokens_total", "counter", hits, cache_source="device", **labels)
    made.add("sglang:generation_tokens_total", "counter", numbers["output_tokens_total"], **labels)
    made.add("sglang:num_requests_total", "counter", sum(worker.finished.values()), **labels)
    made.add("sglang:num_aborted_requests_total", "counter", worker.finished["abort"], **labels)
