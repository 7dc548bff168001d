"""`/v1/models`, `/v1/completions`, `/v1/chat/completions` as OpenAI and vLLM have them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from starlette.routing import Route

from turnout.engine import tokenizer
from turnout.engine.http import EventStream, RequestError, answer, body, json
from turnout.engine.samples import Samples, new_id, prompts_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from turnout.engine.worker import Worker

MOST_SAMPLES = 128
DEFAULT_TOKENS = 16
Positive = Annotated[int, msgspec.Meta(ge=1)]


class StreamOptions(msgspec.Struct):
    """What a stream says beside its tokens."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Asked(msgspec.Struct, kw_only=True):
    """What both kinds of completion take. Fields that are not here are ignored."""

    model: str | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MOST_SAMPLES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = None
    return_token_ids: bool | None = None
    request_id: str | None = None


class CompletionAsked(Asked, kw_only=True):
    """A completion."""

    prompt: Any = None
    max_tokens: Positive | None = DEFAULT_TOKENS
    echo: bool = False


class Message(msgspec.Struct):
    """A message of a chat; content may come in parts."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatAsked(Asked, kw_only=True):
    """A chat completion."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None


def text_of(message: Message) -> str:
    """Join the text of a message.

    Args:
        message: The message.

    Returns:
        Its text.

    Raises:
        RequestError: It has a part that is no text.
    """
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    for part in message.content:
        if not isinstance(part.get("text"), str):
            kind = part.get("type")
            raise RequestError(f"messages: got a part of type {kind!r}, accepted is text", "messages")
    return "".join(part["text"] for part in message.content)


class OpenAiFace:
    """The routes.

    Args:
        worker: Runs the requests.
        started_s: Wall clock of the start, seconds since 1970.
    """

    def __init__(self, worker: Worker, started_s: float) -> None:
        self._worker = worker
        self._started_s = int(started_s)

    def routes(self) -> list[Route]:
        """What it answers."""
        return [
            Route("/v1/models", self.models),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
        ]

    async def models(self, _: Request) -> Response:
        """List the one model."""
        name = self._worker.config.model
        model = {"id": name, "object": "model", "created": self._started_s, "owned_by": "turnout", "root": name}
        return json({"object": "list", "data": [{**model, "max_model_len": self._worker.capacity_tokens}]})

    async def completions(self, request: Request) -> Response:
        """Complete prompts."""
        asked = await body(request, CompletionAsked)
        prompts = prompts_of(asked.prompt, "prompt")
        bound = asked.max_tokens if asked.max_tokens is not None else DEFAULT_TOKENS
        return await self._serve(request, asked, prompts, bound)

    async def chat(self, request: Request) -> Response:
        """Answer a chat."""
        asked = await body(request, ChatAsked)
        prompt = tokenizer.chat([(message.role, text_of(message)) for message in asked.messages])
        return await self._serve(request, asked, [prompt], asked.max_completion_tokens or asked.max_tokens)

    async def _serve(self, request: Request, asked: Asked, prompts: list[list[int]], bound: int | None) -> Response:
        worker = self._worker
        if asked.model is not None and asked.model != worker.config.model:
            raise RequestError(f"The model `{asked.model}` does not exist.", "model", 404)
        for prompt in prompts:
            if len(prompt) + (bound or 1) > worker.capacity_tokens:
                raise RequestError(
                    f"This model's maximum context length is {worker.capacity_tokens} tokens. However, you requested "
                    f"{bound or 1} output tokens and your prompt contains {len(prompt)} input tokens.",
                    "max_tokens",
                )
        chat = isinstance(asked, ChatAsked)
        name = asked.request_id or request.headers.get("x-request-id") or new_id("chatcmpl" if chat else "cmpl")
        samples = Samples(worker, prompts, asked.n or 1, bound, abs(asked.seed or 0), [name])
        base = {"id": name, "created": int(time.time()), "model": worker.config.model}
        echo = isinstance(asked, CompletionAsked) and asked.echo
        if asked.stream:
            await samples.start()
            return EventStream(_chunks(samples, base, asked, prompts, chat=chat), samples.end)
        return await answer(request, _whole(samples, base, asked, prompts, chat=chat, echo=echo))


def usage_of(samples: Samples) -> dict[str, Any]:
    """What a request used.

    Args:
        samples: The request.

    Returns:
        OpenAI's `usage`.
    """
    prompt, output = samples.prompt_tokens, samples.output_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": samples.cached_tokens},
    }


async def _whole(  # noqa: PLR0913 - the parts of an answer
    samples: Samples, base: dict[str, Any], asked: Asked, prompts: list[list[int]], *, chat: bool, echo: bool
) -> Response:
    await samples.start()
    await samples.done()
    choices: list[dict[str, Any]] = []
    for index, stream in enumerate(samples.streams):
        prompt = prompts[index // (asked.n or 1)]
        text = tokenizer.decode(stream.output)
        choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": stream.finish}
        if chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = tokenizer.decode(prompt) + text if echo else text
        if asked.return_token_ids:
            choice["token_ids"] = stream.output
            if not chat:
                choice["prompt_token_ids"] = prompt
        choices.append(choice)
    kind = "chat.completion" if chat else "text_completion"
    whole = {**base, "object": kind, "choices": choices, "usage": usage_of(samples)}
    if chat and asked.return_token_ids:
        whole["prompt_token_ids"] = prompts[0]
    return json(whole)


async def _chunks(
    samples: Samples, base: dict[str, Any], asked: Asked, prompts: list[list[int]], *, chat: bool
) -> AsyncGenerator[dict[str, Any], None]:
    base = {**base, "object": "chat.completion.chunk" if chat else "text_completion"}
    options = asked.stream_options or StreamOptions()
    if chat:
        for index in range(len(samples.streams)):
            delta = {"role": "assistant", "content": ""}
            yield {**base, "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]}
    begun: set[int] = set()
    async for index, piece, ended in samples.pieces():
        finish = samples.streams[index].finish if ended else None
        choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": finish}
        text = tokenizer.decode(piece)
        if chat:
            choice["delta"] = {"content": text}
        else:
            choice["text"] = text
        if asked.return_token_ids:
            choice["token_ids"] = piece
            if index not in begun:
                choice["prompt_token_ids"] = prompts[index // (asked.n or 1)]
        begun.add(index)
        chunk = {**base, "choices": [choice]}
        if options.continuous_usage_stats:
            chunk["usage"] = usage_of(samples)
        yield chunk
    if options.include_usage:
        yield {**base, "choices": [], "usage": usage_of(samples)}
