"""What an engine's answer says of its output: which tokens, how many of the prompt were cached, how it ended."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec


class _Delta(msgspec.Struct):
    content: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _OpenAi(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _Meta(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: Any = None


class _Sglang(msgspec.Struct):
    text: str | None = None
    output_ids: list[int] | None = None
    meta_info: _Meta | None = None
    index: int = 0
    error: Any = None


class Output(Protocol):
    """Reads an answer, whole or event by event.

    Attributes:
        prompt_tokens: Length of the prompt as the engine counts it, tokens; None = not said.
        cached_tokens: Prompt tokens that the engine found in its cache; None = not said.
        aborted: The engine ended it early.
        finished: Some sample has ended.
        failed: The answer is an error.
    """

    prompt_tokens: int | None
    cached_tokens: int | None
    aborted: bool
    finished: bool
    failed: bool

    def read(self, data: bytes) -> None:
        """Read a whole answer, or the data of an event. What is of another shape is passed over."""

    def tokens(self) -> int | None:
        """Output tokens so far, over all samples; None = unknown."""

    def ids(self) -> list[int] | None:
        """Ids of the output of the only sample; None where they are not known in full."""

    def text(self) -> str | None:
        """Text of the only sample; None where there is more than text."""


class OpenAiOutput:
    """Answers of `/v1/completions`, `/v1/chat/completions` and `/inference/v1/generate`.

    Example:
        >>> output = OpenAiOutput()
        >>> output.read(b'{"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}')
        >>> output.tokens(), output.text(), output.finished
        (1, 'hi', True)
    """

    def __init__(self) -> None:
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.aborted = self.finished = self.failed = False
        self._stated: int | None = None
        self._pieces = 0
        self._ids: list[int] = []
        self._with_ids = 0
        self._text: list[str] = []
        self._only_text = True
        self._samples: set[int] = set()

    def read(self, data: bytes) -> None:
        """Read a whole answer, or the data of an event."""
        try:
            said = _OPENAI.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if said.error is not None:
            self.failed = True
        for choice in said.choices:
            self._read(choice)
        if said.usage is not None:
            usage = said.usage
            self.prompt_tokens = usage.prompt_tokens
            self._stated = usage.completion_tokens
            if usage.prompt_tokens_details is not None:
                self.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _read(self, choice: _Choice) -> None:
        self._samples.add(choice.index)
        part = choice.delta or choice.message
        text = choice.text if part is None else part.content
        if part is not None and part.tool_calls:
            self._only_text = False
        if text:
            if isinstance(text, str):
                self._text.append(text)
            else:
                self._only_text = False
        if choice.token_ids is not None:
            self._ids += choice.token_ids
            self._with_ids += len(choice.token_ids) > 0
        # Without ids a piece counts as one token: engines send one a step.
        self._pieces += bool(text or choice.token_ids or (part is not None and part.tool_calls))
        if choice.finish_reason is not None:
            self.finished = True
            self.aborted |= choice.finish_reason == "abort"

    def tokens(self) -> int | None:
        """Output tokens so far, over all samples."""
        if self._stated is not None:
            return self._stated
        return len(self._ids) if self._with_ids and self._with_ids == self._pieces else self._pieces

    def ids(self) -> list[int] | None:
        """Ids of the output of the only sample."""
        complete = self._ids and self._with_ids == self._pieces and len(self._samples) == 1
        return self._ids if complete and self._stated in {None, len(self._ids)} else None

    def text(self) -> str | None:
        """Text of the only sample."""
        return "".join(self._text) if self._only_text and len(self._samples) == 1 else None


class SglangOutput:
    """Answers of `/generate`: each event says everything so far.

    Example:
        >>> output = SglangOutput()
        >>> output.read(b'{"output_ids": [7, 8], "meta_info": {"completion_tokens": 2, "cached_tokens": 3}}')
        >>> output.tokens(), output.ids(), output.cached_tokens
        (2, [7, 8], 3)
    """

    def __init__(self) -> None:
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.aborted = self.finished = self.failed = False
        self._said: dict[int, _Sglang] = {}

    def read(self, data: bytes) -> None:
        """Read a whole answer, or the data of an event."""
        try:
            said = _SGLANG.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if isinstance(said, list):
            for index, each in enumerate(said):
                self._read(index, each)
        else:
            self._read(said.index, said)
        meta = [each.meta_info for each in self._said.values() if each.meta_info is not None]
        cached = [one.cached_tokens for one in meta if one.cached_tokens is not None]
        # Samples of one prompt share it: what the first one found is what was there.
        self.cached_tokens = min(cached) if cached else None
        self.prompt_tokens = next((one.prompt_tokens for one in meta), None)

    def _read(self, index: int, said: _Sglang) -> None:
        if said.error is not None:
            self.failed = True
            return
        self._said[index] = said
        finish = None if said.meta_info is None else said.meta_info.finish_reason
        if finish is not None:
            self.finished = True
            self.aborted |= finish == "abort" or (isinstance(finish, dict) and finish.get("type") == "abort")

    def tokens(self) -> int | None:
        """Output tokens so far, over all samples."""
        counts = [_tokens_of(said) for said in self._said.values()]
        known = [count for count in counts if count is not None]
        return sum(known) if known else None

    def ids(self) -> list[int] | None:
        """Ids of the output of the only sample."""
        if len(self._said) != 1:
            return None
        (said,) = self._said.values()
        ids = said.output_ids
        # Engines may be told to send only what is new: then the last event does not say everything.
        return ids if ids and len(ids) == _tokens_of(said) else None

    def text(self) -> str | None:
        """Text of the only sample."""
        if len(self._said) != 1:
            return None
        return next(iter(self._said.values())).text


_OPENAI: msgspec.json.Decoder[_OpenAi] = msgspec.json.Decoder(_OpenAi)
_SGLANG: msgspec.json.Decoder[_Sglang | list[_Sglang]] = msgspec.json.Decoder(_Sglang | list[_Sglang])


def _tokens_of(said: _Sglang) -> int | None:
    meta = said.meta_info
    if meta is not None and meta.completion_tokens is not None:
        return meta.completion_tokens
    return None if said.output_ids is None else len(said.output_ids)
