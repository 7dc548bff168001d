"""Reading of `/metrics` and `/v1/loads`: the few numbers that a router uses, under the names of both engines."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.samples import Sample


@dataclass(frozen=True, slots=True)
class Reading:
    """What an engine says about itself; None = it does not say.

    Attributes:
        kind: `"vllm"`, `"sglang"`, or None when the page names neither.
        kv_fraction: Share of its KV cache that running requests use, 0..1.
        running: Requests that run.
        waiting: Requests that wait inside the engine.
        preemptions_total: Preemptions (vLLM) or retractions (SGLang) since it started.
        kv_tokens: KV capacity, tokens, over all ranks.
        block_tokens: Tokens per KV block or page.
        prefix_caching: Whether it keeps what it computed for the next prompt.
        prompt_tokens_total: Prompt tokens since it started.
        cached_tokens_total: The part of those that was found in its cache.
        started_at_s: When its process started, s of its wall clock.
    """

    kind: str | None = None
    kv_fraction: float | None = None
    running: int | None = None
    waiting: int | None = None
    preemptions_total: int | None = None
    kv_tokens: float | None = None
    block_tokens: int | None = None
    prefix_caching: bool | None = None
    prompt_tokens_total: int | None = None
    cached_tokens_total: int | None = None
    started_at_s: float | None = None

    @property
    def computed_tokens_total(self) -> int | None:
        """Prompt tokens that were not found in the cache, since the engine started."""
        if self.prompt_tokens_total is None or self.cached_tokens_total is None:
            return None
        return self.prompt_tokens_total - self.cached_tokens_total


VLLM = {
    "kv_cache_usage_perc": "fraction",
    "num_requests_running": "running",
    "num_requests_waiting": "waiting",
    "num_preemptions_total": "preemptions",
    "prompt_tokens_total": "prompt",
    "prompt_tokens_cached_total": "cached",
    "cache_config_info": "config",
}
SGLANG = {
    "token_usage": "fraction",
    "num_running_reqs": "running",
    "num_queue_reqs": "waiting",
    "num_retracted_requests_total": "preemptions",
    "prompt_tokens_total": "prompt",
    "cached_tokens_total": "cached",
    "max_total_num_tokens": "capacity",
    "page_size": "page",
}
NAMES = {f"vllm:{name}": (("vllm"), role) for name, role in VLLM.items()}
NAMES |= {f"sglang:{name}": (("sglang"), role) for name, role in SGLANG.items()}
START = "process_start_time_seconds"
WANTED = (*NAMES, START)


def _wanted(text: str) -> str:
    """The lines of the metrics that are used: a page has thousands, and parsing all would hold up the event loop."""
    kept = [line for line in text.splitlines() if line.startswith(WANTED)]
    return "\n".join(line for line in kept if line.partition("{")[0].partition(" ")[0] in WANTED) + "\n"


def read_metrics(text: str, *, rank: int | None = None) -> Reading:
    """Read a page of metrics.

    Args:
        text: The body of `/metrics`.
        rank: Only the samples of this data-parallel rank; None = all ranks together (sums; the mean of shares).

    Returns:
        What it says. Lines that are no metrics make it say nothing.

    Example:
        >>> page = 'vllm:num_requests_running{engine="0"} 3.0'
        >>> read_metrics(page).running, read_metrics(page).kind
        (3, 'vllm')
    """
    found: dict[str, list[Sample]] = defaultdict(list)
    kind: str | None = None
    started = None
    try:
        samples = [s for family in text_string_to_metric_families(_wanted(text)) for s in family.samples]
    except ValueError:
        return Reading()
    for sample in samples:
        if sample.name == START:
            started = sample.value
            continue
        if sample.name not in NAMES or not math.isfinite(sample.value):
            continue
        kind, role = NAMES[sample.name]
        if _of_rank(sample.labels, rank):
            found[role].append(sample)
    capacity, block, caching = _capacity(found)
    return Reading(
        kind=kind,
        kv_fraction=_mean(found["fraction"]),
        running=_sum(found["running"]),
        waiting=_sum(found["waiting"]),
        preemptions_total=_sum(found["preemptions"]),
        kv_tokens=capacity,
        block_tokens=block,
        prefix_caching=caching,
        prompt_tokens_total=_sum(found["prompt"]),
        cached_tokens_total=_sum(found["cached"]),
        started_at_s=started,
    )


def _of_rank(labels: dict[str, str], rank: int | None) -> bool:
    """Tensor- and pipeline-parallel ranks hold parts of the same tokens: the first of them speaks for all."""
    if labels.get("tp_rank", "0") != "0" or labels.get("pp_rank", "0") != "0":
        return False
    said = labels.get("engine", labels.get("dp_rank"))
    return rank is None or said is None or said == str(rank)


def _capacity(found: dict[str, list[Sample]]) -> tuple[float | None, int | None, bool | None]:
    tokens = _sum(found["capacity"])
    block = int(found["page"][0].value) if found["page"] else None
    caching = None
    sizes: list[int] = []
    for sample in found["config"]:
        labels = sample.labels
        block = _whole(labels.get("block_size")) or block
        caching = {"True": True, "False": False}.get(labels.get("enable_prefix_caching", ""), caching)
        blocks = _whole(labels.get("num_gpu_blocks"))
        size = _whole(labels.get("kv_cache_size_tokens")) or (blocks * block if blocks and block else None)
        if size:
            sizes.append(size)
    total = sum(sizes) or tokens
    return (float(total) if total else None), block, caching


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _sum(samples: Iterable[Sample]) -> int | None:
    values = [sample.value for sample in samples]
    return round(sum(values)) if values else None


def _mean(samples: Iterable[Sample]) -> float | None:
    values = [sample.value for sample in samples]
    return min(1.0, max(0.0, sum(values) / len(values))) if values else None


def read_loads(body: dict[str, Any], *, rank: int | None = None) -> Reading:
    """Read what SGLang answers to `/v1/loads`.

    Args:
        body: The JSON object.
        rank: Only this data-parallel rank; None = all together.

    Returns:
        What it says.

    Example:
        >>> read_loads({"loads": [{"dp_rank": 0, "num_running_reqs": 2, "max_total_num_tokens": 2048}]}).kv_tokens
        2048.0
    """
    loads = body.get("loads")
    rows = [row for row in loads if isinstance(row, dict)] if isinstance(loads, list) else []
    rows = [row for row in rows if rank is None or row.get("dp_rank", 0) == rank]

    def total(name: str) -> int | None:
        values = [row[name] for row in rows if _is_number(row.get(name))]
        return round(sum(values)) if values else None

    capacity, used = total("max_total_num_tokens"), total("num_used_tokens")
    return Reading(
        kind="sglang" if rows else None,
        kv_fraction=min(1.0, used / capacity) if capacity and used is not None else None,
        running=total("num_running_reqs"),
        waiting=total("num_waiting_reqs"),
        kv_tokens=float(capacity) if capacity else None,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
