"""`turnout engine`: a model engine until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Annotated

import typer

from turnout import _core
from turnout.engine.config import DIALECTS, EngineConfig


def engine(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="HTTP port; 0 = any free one.")] = 0,
    name: Annotated[str, typer.Option("--engine", help=f"Step times: {', '.join(_core.engines())}.")] = "qwen3-8b-h200",
    kv_tokens: Annotated[int | None, typer.Option(help="KV capacity, tokens; default: the engine's.")] = None,
    block_tokens: Annotated[int, typer.Option(help="Block size, tokens.")] = 16,
    model: Annotated[str, typer.Option(help="Name of the model.")] = "turnout-model",
    dialect: Annotated[str, typer.Option(help=f"Faces and metrics: {', '.join(DIALECTS)}.")] = "vllm",
    speed: Annotated[float, typer.Option(help="Seconds of the model per second of the wall clock.")] = 1.0,
    kv_events_port: Annotated[
        int,
        typer.Option(help="Port of cache events; replay at the next, load after it. 0 = any free ones, -1 = none."),
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of all output.")] = 0,
) -> None:
    """Serve a model engine: the interfaces, caches and times of an inference engine, without a GPU.

    Prints one line of JSON with the real ports once it answers, and runs until SIGINT or SIGTERM.
    """
    config = EngineConfig(
        host=host,
        port=port,
        engine=name,
        kv_tokens=kv_tokens,
        block_tokens=block_tokens,
        model=model,
        dialect=dialect,
        speed=speed,
        kv_events_port=None if kv_events_port == -1 else kv_events_port,
        seed=seed,
    )
    asyncio.run(_serve(config))


async def _serve(config: EngineConfig) -> None:
    from turnout.engine import EngineServer

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with EngineServer(config) as server:
        print(json.dumps(server.ready()), flush=True)
        await server.wait(stop)
