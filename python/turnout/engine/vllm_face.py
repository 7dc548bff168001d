"""What vLLM answers beside the OpenAI interface: caches, pauses, tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from turnout.engine import tokenizer
from turnout.engine.http import EventStream, RequestError, answer, body, json
from turnout.engine.openai_face import DEFAULT_TOKENS, MOST_SAMPLES, Message, text_of
from turnout.engine.publisher import BUFFER_STEPS, HIGH_WATER
from turnout.engine.samples import Samples, new_id

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

    from turnout.engine.publisher import Publisher
    from turnout.engine.worker import Worker

VERSION = "0.33.0"
MODES = ("abort", "wait", "keep")


class TokenizeAsked(msgspec.Struct):
    """Text or a chat."""

    prompt: str | None = None
    messages: list[Message] | None = None


class DetokenizeAsked(msgspec.Struct):
    """Token ids."""

    tokens: list[int]


class Sampling(msgspec.Struct):
    """How to sample. Fields that are not here are ignored."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = DEFAULT_TOKENS
    n: Annotated[int, msgspec.Meta(ge=1, le=MOST_SAMPLES)] = 1
    seed: int | None = None


class GenerateAsked(msgspec.Struct):
    """Token ids in, token ids out. Fields that are not here are ignored."""

    token_ids: Annotated[list[int], msgspec.Meta(min_length=1)]
    sampling_params: Sampling = msgspec.field(default_factory=Sampling)
    request_id: str | None = None
    stream: bool = False


class AbortAsked(msgspec.Struct):
    """Requests to end; all when none is named."""

    request_ids: list[str] | None = None


class VllmFace:
    """The routes.

    Args:
        worker: Runs the requests.
        publisher: Publishes the cache events, or None.
    """

    def __init__(self, worker: Worker, publisher: Publisher | None) -> None:
        self._worker = worker
        self._publisher = publisher

    def routes(self) -> list[Route]:
        """What it answers."""
        return [
            Route("/reset_prefix_cache", self.reset_prefix_cache, methods=["POST"]),
            Route("/kv_event_sources", self.kv_event_sources),
            Route("/pause", self.pause, methods=["POST"]),
            Route("/resume", self.resume, methods=["POST"]),
            Route("/is_paused", self.is_paused),
            Route("/abort_requests", self.abort_requests, methods=["POST"]),
            Route("/version", self.version),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/inference/v1/generate", self.generate, methods=["POST"]),
        ]

    async def reset_prefix_cache(self, _: Request) -> Response:
        """Forget what is cached."""
        self._worker.flush()
        return Response()

    async def kv_event_sources(self, _: Request) -> Response:
        """Say where the cache events are, by data-parallel rank."""
        if self._publisher is None:
            return json({})
        host = self._worker.config.host
        source = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://{host}:{self._publisher.events_port}",
            "replay_endpoint": f"tcp://{host}:{self._publisher.replay_port}",
            "buffer_steps": BUFFER_STEPS,
            "hwm": HIGH_WATER,
            "max_queue_size": HIGH_WATER,
            "topic": "",
        }
        return json({"0": source})

    async def pause(self, request: Request) -> Response:
        """Let nothing start; what runs is ended, waited for, or kept."""
        mode = request.query_params.get("mode", "abort")
        if mode not in MODES:
            raise RequestError(f"mode: got {mode!r}, accepted is {', '.join(MODES)}", "mode")
        await request.body()
        return await answer(request, self._pause(mode))

    async def _pause(self, mode: str) -> Response:
        await self._worker.pause(mode)
        return json({"status": "paused"})

    async def resume(self, _: Request) -> Response:
        """Go on."""
        self._worker.resume()
        return json({"status": "resumed"})

    async def is_paused(self, _: Request) -> Response:
        """Say whether new requests wait."""
        return json({"is_paused": self._worker.paused})

    async def abort_requests(self, request: Request) -> Response:
        """End some requests, or all."""
        asked = await body(request, AbortAsked)
        names: list[str | None] = [*asked.request_ids] if asked.request_ids is not None else [None]
        return json({"aborted": sum(self._worker.abort_named(name) for name in names)})

    async def version(self, _: Request) -> Response:
        """Say which vLLM it resembles."""
        return json({"version": VERSION})

    async def tokenize(self, request: Request) -> Response:
        """Turn text or a chat into tokens."""
        asked = await body(request, TokenizeAsked)
        if asked.messages is not None:
            tokens = tokenizer.chat([(message.role, text_of(message)) for message in asked.messages])
        elif asked.prompt is not None:
            tokens = tokenizer.encode(asked.prompt)
        else:
            raise RequestError("prompt: got nothing, accepted is prompt or messages", "prompt")
        most = self._worker.capacity_tokens
        return json({"count": len(tokens), "max_model_len": most, "tokens": tokens, "token_strs": None})

    async def detokenize(self, request: Request) -> Response:
        """Turn tokens into text."""
        asked = await body(request, DetokenizeAsked)
        if bad := [token for token in asked.tokens if not 0 <= token < 2**32]:
            raise RequestError(f"tokens: got {bad[0]}, accepted is 0 to 4294967295", "tokens")
        return json({"prompt": tokenizer.decode(asked.tokens)})

    async def generate(self, request: Request) -> Response:
        """Complete token ids."""
        asked = await body(request, GenerateAsked)
        prompt = asked.token_ids
        sampling = asked.sampling_params
        most = self._worker.capacity_tokens
        if len(prompt) + (sampling.max_tokens or 1) > most:
            raise RequestError(f"This model's maximum context length is {most} tokens.", "token_ids")
        name = asked.request_id or new_id("generate-tokens")
        samples = Samples(self._worker, [prompt], sampling.n, sampling.max_tokens, abs(sampling.seed or 0), [name])
        if asked.stream:
            await samples.start()
            return EventStream(_pieces(samples, name), samples.end)
        return await answer(request, _whole(samples, name))


async def _whole(samples: Samples, name: str) -> Response:
    await samples.start()
    await samples.done()
    choices = [
        {"index": index, "logprobs": None, "finish_reason": stream.finish, "token_ids": stream.output}
        for index, stream in enumerate(samples.streams)
    ]
    return json({"request_id": name, "choices": choices, "prompt_logprobs": None})


async def _pieces(samples: Samples, name: str) -> AsyncGenerator[dict[str, Any], None]:
    async for index, piece, ended in samples.pieces():
        finish = samples.streams[index].finish if ended else None
        choice = {"index": index, "logprobs": None, "finish_reason": finish, "token_ids": piece}
        yield {"request_id": name, "choices": [choice]}
