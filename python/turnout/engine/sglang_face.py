"""`/generate` and what else SGLang answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from turnout.engine.http import EventStream, RequestError, answer, body, json
from turnout.engine.samples import Samples, new_id, prompts_of
from turnout.engine.tokenizer import decode
from turnout.engine.worker import ABORT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

    from turnout.engine.publisher import Publisher
    from turnout.engine.worker import Stream, Worker

VERSION = "0.5.23"
DEFAULT_TOKENS = 128


class Sampling(msgspec.Struct):
    """How to sample. Fields that are not here are ignored."""

    max_new_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = DEFAULT_TOKENS
    n: Annotated[int, msgspec.Meta(ge=1)] = 1
    sampling_seed: int | None = None


class GenerateAsked(msgspec.Struct):
    """A request of `/generate`. Fields that are not here are ignored."""

    text: str | list[str] | None = None
    input_ids: list[Any] | None = None
    sampling_params: Sampling | None = None
    stream: bool = False
    rid: str | list[str] | None = None


class AbortAsked(msgspec.Struct):
    """A request of `/abort_request`."""

    rid: str = ""
    abort_all: bool = False


class WeightsAsked(msgspec.Struct):
    """A request of `/update_weight_version`."""

    new_version: str
    abort_all_requests: bool = False


class SglangFace:
    """The routes.

    Args:
        worker: Runs the requests.
        publisher: Publishes the cache events, or None.
    """

    def __init__(self, worker: Worker, publisher: Publisher | None) -> None:
        self._worker = worker
        self._publisher = publisher
        self._weight_version = "default"

    def routes(self) -> list[Route]:
        """What it answers."""
        both = ["GET", "POST"]
        return [
            Route("/generate", self.generate, methods=["POST", "PUT"]),
            Route("/flush_cache", self.flush_cache, methods=both),
            Route("/abort_request", self.abort_request, methods=["POST"]),
            Route("/pause_generation", self.pause_generation, methods=["POST"]),
            Route("/continue_generation", self.continue_generation, methods=["POST"]),
            Route("/update_weight_version", self.update_weight_version, methods=["POST"]),
            Route("/server_info", self.server_info),
            Route("/get_server_info", self.server_info),
            Route("/model_info", self.model_info),
            Route("/get_model_info", self.model_info),
            Route("/health_generate", self.health),
            Route("/v1/loads", self.loads),
        ]

    async def generate(self, request: Request) -> Response:
        """Complete one prompt, or several."""
        asked = await body(request, GenerateAsked)
        if (asked.text is None) == (asked.input_ids is None):
            raise RequestError("Either text or input_ids should be provided.", "text")
        given: Any = asked.input_ids if asked.text is None else asked.text
        param = "input_ids" if asked.text is None else "text"
        prompts = prompts_of(given, param)
        sampling = asked.sampling_params or Sampling()
        bound = sampling.max_new_tokens
        for prompt in prompts:
            if len(prompt) + (bound or 1) > self._worker.capacity_tokens:
                raise RequestError(
                    f"Requested token count exceeds the model's maximum context length of "
                    f"{self._worker.capacity_tokens} tokens: {len(prompt)} input and {bound or 1} output tokens.",
                    "max_new_tokens",
                )
        rids = [asked.rid] if isinstance(asked.rid, str) else asked.rid or [new_id("rid")]
        samples = Samples(self._worker, prompts, sampling.n, bound, abs(sampling.sampling_seed or 0), rids)
        # A list in is a list out, also where it has one element.
        listed = isinstance(given, list) and not isinstance(given[0], int)
        names = [rids[at] if len(rids) == len(prompts) else f"{rids[0]}" for at in range(len(prompts))]
        names = [name for name in names for _ in range(sampling.n)]
        if asked.stream:
            await samples.start()
            return EventStream(self._chunks(samples, names, listed=listed), samples.end)
        return await answer(request, self._whole(samples, names, listed=listed))

    async def _whole(self, samples: Samples, names: list[str], *, listed: bool) -> Response:
        began_s = time.monotonic()
        await samples.start()
        await samples.done()
        took_s = time.monotonic() - began_s
        outputs = [self._output(stream, name, took_s) for stream, name in zip(samples.streams, names, strict=True)]
        return json(outputs if listed or len(outputs) > 1 else outputs[0])

    async def _chunks(
        self, samples: Samples, names: list[str], *, listed: bool
    ) -> AsyncGenerator[dict[str, Any], None]:
        began_s = time.monotonic()
        async for index, _, _ in samples.pieces():
            output = self._output(samples.streams[index], names[index], time.monotonic() - began_s)
            yield {**output, "index": index} if listed or len(names) > 1 else output

    def _output(self, stream: Stream, name: str, took_s: float) -> dict[str, Any]:
        finish: dict[str, Any] | None = None
        if stream.finish == ABORT:
            finish = {"type": ABORT, "message": "Aborted", "status_code": None, "err_type": None}
        elif stream.finish is not None:
            finish = {"type": stream.finish, **({"length": len(stream.output)} if stream.finish == "length" else {})}
        meta = {
            "id": name,
            "finish_reason": finish,
            "prompt_tokens": stream.prompt_tokens,
            "completion_tokens": len(stream.output),
            "cached_tokens": stream.cached_tokens,
            "num_retractions": stream.preemptions,
            "weight_version": self._weight_version,
            "e2e_latency": took_s,
        }
        return {"text": decode(stream.output), "output_ids": list(stream.output), "meta_info": meta}

    async def flush_cache(self, _: Request) -> Response:
        """Forget what is cached."""
        self._worker.flush()
        return Response("Cache flushed.\n", media_type="text/plain")

    async def abort_request(self, request: Request) -> Response:
        """End one request, or all."""
        asked = await body(request, AbortAsked)
        self._worker.abort_named(None if asked.abort_all else asked.rid)
        return Response()

    async def pause_generation(self, request: Request) -> Response:
        """Let nothing start; modes `abort`, `retract` and `in_place`."""
        asked = await body(request, dict[str, Any])
        mode = asked.get("mode", "abort")
        await self._worker.pause("abort" if mode == "abort" else "keep")
        return json({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, _: Request) -> Response:
        """Go on."""
        self._worker.resume()
        return json({"message": "Generation continued successfully.", "status": "ok"})

    async def update_weight_version(self, request: Request) -> Response:
        """Name the weights, as answers will say it."""
        asked = await body(request, WeightsAsked)
        if asked.abort_all_requests:
            self._worker.abort_named(None)
        self._weight_version = asked.new_version
        message = f"Weight version updated to {asked.new_version}"
        return json({"success": True, "message": message, "new_version": asked.new_version})

    async def health(self, _: Request) -> Response:
        """Say that it runs."""
        return Response()

    async def model_info(self, _: Request) -> Response:
        """Describe the model."""
        name = self._worker.config.model
        info = {"model_path": name, "tokenizer_path": name, "is_generation": True, "preferred_sampling_params": None}
        return json({**info, "weight_version": self._weight_version, "has_image_understanding": False})

    async def server_info(self, _: Request) -> Response:
        """Describe the server, and where the cache events are."""
        config = self._worker.config
        info: dict[str, Any] = {
            "version": VERSION,
            "model_path": config.model,
            "served_model_name": config.model,
            "host": config.host,
            "page_size": config.block_tokens,
            "dp_size": 1,
            "context_length": self._worker.capacity_tokens,
            "max_total_num_tokens": self._worker.capacity_tokens,
            "max_running_requests": self._worker.core.counters()["max_running"],
            "weight_version": self._weight_version,
            "kv_events": None,
        }
        if self._publisher is not None:
            info["kv_events"] = {
                "publisher": "zmq",
                "endpoint_host": config.host,
                "endpoint_port_base": self._publisher.events_port,
                "replay_endpoint_port_base": self._publisher.replay_port,
                "load_endpoint_port_base": self._publisher.load_port,
                "load_topic": "load",
                "topic": "",
                "block_size": config.block_tokens,
                "dp_size": 1,
            }
        return json(info)

    async def loads(self, _: Request) -> Response:
        """Say how busy it is."""
        numbers = self._worker.core.counters()
        queries = numbers["prefix_queries_total"]
        load = {
            "timestamp": time.time(),
            "dp_rank": 0,
            "num_running_reqs": numbers["running"],
            "num_waiting_reqs": numbers["waiting"],
            "num_waiting_uncached_tokens": numbers["waiting_uncached_tokens"],
            "num_used_tokens": numbers["used_tokens"],
            "num_total_tokens": numbers["used_tokens"] + numbers["waiting_tokens"],
            "num_active_tokens": numbers["used_tokens"],
            "max_total_num_tokens": numbers["kv_tokens"],
            "max_running_requests": numbers["max_running"],
            "token_usage": numbers["used_tokens"] / numbers["kv_tokens"],
            "cache_hit_rate": numbers["prefix_hits_total"] / queries if queries else 0.0,
            "total_prefill_uncached_tokens": queries - numbers["prefix_hits_total"],
            "total_prefill_busy_us": int(numbers["prefill_busy_s_total"] * 1e6),
        }
        return json({"version": VERSION, "accelerator": None, "num_accelerators": 1, "loads": [load]})
