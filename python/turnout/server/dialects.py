"""What a request asks, in each of the dialects that engines speak: prompt, output bound, samples, stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from turnout.errors import InvalidArgument
from turnout.server.outputs import OpenAiOutput, SglangOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnout.server.outputs import Output

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks.

    Attributes:
        body: All of it.
        kind: What its prompt is: token ids, text, or the messages of a chat.
        prompt: The prompt; several in one request stand one after the other.
        model: The model; None = whichever there is.
        stream: Whether the answer shall come in events.
        max_new_tokens: Bound of the output of one sample, tokens; None = not said.
        samples: Samples of the prompt.
        salt: Salt of the cache.
        priority: Order among the waiting, highest first; 0 = as all.
    """

    body: Body
    kind: Literal["ids", "text", "chat"]
    prompt: Any
    model: str | None = None
    stream: bool = False
    max_new_tokens: int | None = None
    samples: int = 1
    salt: str | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of request.

    Attributes:
        path: Where it is sent, here and at the engine.
        read: Reads the body.
        output: Makes what reads the answer.
        ask_output: Changes a body so that the answer says usage and ids; None = it does anyway.
        cumulative: Each event of a stream says all that the earlier ones of its sample said.
    """

    path: str
    read: Callable[[Body], Asked]
    output: Callable[[], Output]
    ask_output: Callable[[Body], Body] | None = None
    cumulative: bool = False


def parse(raw: bytes) -> Body:
    """Read a JSON body.

    Args:
        raw: Its bytes.

    Returns:
        The object.

    Raises:
        InvalidArgument: It is no JSON object.

    Example:
        >>> parse(b'{"n": 1}')
        {'n': 1}
    """
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"body: {error}, accepted is a JSON object", "body", "", "a JSON object") from None
    if not isinstance(body, dict):
        raise InvalidArgument("body: accepted is a JSON object", "body", type(body).__name__, "a JSON object")
    return body


def _chat(body: Body) -> Asked:
    messages = body.get("messages")
    if not (isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages)):
        raise _refuse("messages", "a list of messages")
    return _openai(body, "chat", messages, body.get("max_completion_tokens") or body.get("max_tokens"))


def _completions(body: Body) -> Asked:
    kind, prompt = _prompt(body.get("prompt"), "prompt")
    return _openai(body, kind, prompt, body.get("max_tokens"))


def _openai(body: Body, kind: Literal["ids", "text", "chat"], prompt: object, bound: object) -> Asked:
    return Asked(
        body,
        kind,
        prompt,
        model=_text(body.get("model")),
        stream=body.get("stream") is True,
        max_new_tokens=_count(bound),
        samples=_count(body.get("n")) or 1,
        salt=_text(body.get("cache_salt")),
        priority=-_whole(body.get("priority")),  # vLLM serves the lowest number first
    )


def _token_in(body: Body) -> Asked:
    """VLLM's token-in, token-out request."""
    kind, prompt = _prompt(body.get("token_ids"), "token_ids")
    if kind != "ids":
        raise _refuse("token_ids", "a list of token ids")
    sampling = body.get("sampling_params")
    sampling = sampling if isinstance(sampling, dict) else {}
    return Asked(
        body,
        kind,
        prompt,
        model=_text(body.get("model")),
        stream=body.get("stream") is True,
        max_new_tokens=_count(sampling.get("max_tokens")),
        samples=_count(sampling.get("n")) or 1,
        salt=_text(body.get("cache_salt")),
        priority=-_whole(body.get("priority")),
    )


def _generate(body: Body) -> Asked:
    given = [name for name in ("text", "input_ids") if body.get(name) is not None]
    if len(given) != 1:
        raise _refuse("text", "either text or input_ids")
    kind, prompt = _prompt(body[given[0]], given[0])
    sampling = body.get("sampling_params")
    if isinstance(sampling, list):  # one for each prompt of a batch
        sampling = sampling[0] if sampling else None
    sampling = sampling if isinstance(sampling, dict) else {}
    return Asked(
        body,
        kind,
        prompt,
        model=_text(body.get("model")),
        stream=body.get("stream") is True,
        max_new_tokens=_count(sampling.get("max_new_tokens")),
        samples=_count(sampling.get("n")) or 1,
        salt=_text(body.get("extra_key")),
        priority=_whole(body.get("priority")),
    )


def _ask_openai(body: Body) -> Body:
    asked = {**body, "return_token_ids": True}
    if body.get("stream") is True:
        options = body.get("stream_options")
        asked["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    return asked


CHAT: Final = Dialect("/v1/chat/completions", _chat, OpenAiOutput, _ask_openai)
COMPLETIONS: Final = Dialect("/v1/completions", _completions, OpenAiOutput, _ask_openai)
TOKEN_IN: Final = Dialect("/inference/v1/generate", _token_in, OpenAiOutput)
GENERATE: Final = Dialect("/generate", _generate, SglangOutput, cumulative=True)
DIALECTS: Final = (CHAT, COMPLETIONS, TOKEN_IN, GENERATE)


def _prompt(given: Any, argument: str) -> tuple[Literal["ids", "text"], Any]:  # noqa: ANN401 - JSON
    """A prompt, or several of one kind as one: what is charged is the sum, and what is found cached is the first's."""
    if isinstance(given, str):
        return "text", given
    if isinstance(given, list) and given:
        if all(isinstance(part, str) for part in given):
            return "text", "".join(given)
        if isinstance(given[0], list) and all(isinstance(part, list) for part in given):
            given = [token for part in given for token in part]
        if given and isinstance(given[0], int):
            return "ids", given
    raise _refuse(argument, "text, token ids, or a list of either, at least one")


def _count(value: object) -> int | None:
    """A positive number; whatever else stands there is the engine's to refuse."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40 else None


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else 0


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _refuse(argument: str, accepted: str) -> InvalidArgument:
    return InvalidArgument(f"{argument}: accepted is {accepted}", argument, "", accepted)
