"""What an engine is started with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from turnout import _core
from turnout.errors import InvalidArgument

DIALECTS: Final = ("vllm", "sglang", "both")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine.

    Attributes:
        host: Address to listen at.
        port: HTTP port; 0 = any free one.
        engine: Step times, a name of `turnout._core.engines()`.
        kv_tokens: KV capacity, tokens; None = that of the engine. It bounds prompt and output of one request, too.
        block_tokens: Block size, tokens.
        model: Name of the model.
        dialect: "vllm", "sglang" or "both": which faces and metrics there are. Cache events have SGLang's form for
            "sglang" alone.
        speed: Seconds of the model per second of the wall clock.
        kv_events_port: Port of the cache events; replay is at the next one, load at the one after it. 0 = any free
            ones; None = nothing is published.
        seed: Seed of all output.

    Raises:
        InvalidArgument: A value is out of range.

    Example:
        >>> EngineConfig(engine="qwen3-8b-h100").capacity_tokens
        390000
    """

    host: str = "127.0.0.1"
    port: int = 0
    engine: str = "qwen3-8b-h200"
    kv_tokens: int | None = None
    block_tokens: int = 16
    model: str = "turnout-model"
    dialect: str = "vllm"
    speed: float = 1.0
    kv_events_port: int | None = 0
    seed: int = 0

    def __post_init__(self) -> None:
        names = _core.engines()
        _check("engine", self.engine, self.engine in names, ", ".join(names))
        _check("dialect", self.dialect, self.dialect in DIALECTS, ", ".join(DIALECTS))
        _check("speed", self.speed, math.isfinite(self.speed) and 0 < self.speed <= 1e4, "above 0 to 10000")  # noqa: PLR2004 - said there
        _check("port", self.port, 0 <= self.port < 2**16, "0 to 65535")
        ports = self.kv_events_port
        _check("kv_events_port", ports, ports is None or 0 <= ports < 2**16 - 2, "0 to 65533")
        _check("model", self.model, bool(self.model), "a name")

    @property
    def capacity_tokens(self) -> int:
        """KV capacity, tokens."""
        return self.kv_tokens if self.kv_tokens is not None else int(_core.engines()[self.engine]["kv_tokens"])

    @property
    def event_form(self) -> str:
        """Form of the cache events, "vllm" or "sglang"."""
        return "sglang" if self.dialect == "sglang" else "vllm"

    def speaks(self, dialect: str) -> bool:
        """Whether there is this face.

        Args:
            dialect: "vllm" or "sglang".

        Returns:
            Whether it is served.
        """
        return self.dialect in {dialect, "both"}


def _check(argument: str, value: object, accepted: bool, what: str) -> None:  # noqa: FBT001 - a condition, not a switch
    if not accepted:
        raise InvalidArgument(f"{argument}: got {value!r}, accepted is {what}", argument, str(value), what)
