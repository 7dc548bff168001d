"""`turnout serve`: one router for a cluster, asked over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from turnout.errors import MissingExtra
from turnout.server.config import ServeConfig
from turnout.server.proxy_config import ProxyConfig


def serve(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
    engine: Annotated[list[str] | None, typer.Option(help="Address of an engine to follow; may be repeated.")] = None,
    workload: Annotated[list[str] | None, typer.Option(help="NAME or NAME=SHARE; may be repeated.")] = None,
    policy: Annotated[str, typer.Option(help="Policy, by name or as package.module:Class.")] = "block-time",
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="HTTP port; 0 = any free one.")] = 8077,
    token: Annotated[str | None, typer.Option(envvar="TURNOUT_TOKEN", help="Token that callers must bring.")] = None,
    allow_anybody: Annotated[  # noqa: FBT002 - an option
        bool, typer.Option("--allow-anybody", help="Listen at a public address without a token.")
    ] = False,
    journal: Annotated[Path | None, typer.Option(help="File that keeps the state over restarts.")] = None,
    reattach_s: Annotated[float, typer.Option(help="After a restart: time for callers to name open turns, s.")] = 120.0,
    wait_s: Annotated[float, typer.Option(help="Longest that a request to an engine is held, s.")] = 300.0,
    attempts: Annotated[int, typer.Option(help="Most engines that are tried for one request.")] = 3,
    tokens: Annotated[str, typer.Option(help="Token ids of text: auto, engine or text (docs/proxy.md).")] = "auto",
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer.json, for prompts that are text.")] = None,
    engine_api_key: Annotated[
        str | None, typer.Option(envvar="TURNOUT_ENGINE_API_KEY", help="Key that engines are sent.")
    ] = None,
    classify: Annotated[str | None, typer.Option(help="package.module:function that says whose a request is.")] = None,
) -> None:
    """Serve decisions over HTTP: the router of a cluster, with feeds from its engines.

    Prints one line of JSON with its address once it listens, and runs until SIGINT or SIGTERM.
    """
    config = ServeConfig(
        engines=tuple(engine or ()),
        workloads=tuple(workload or ()),
        policy=policy,
        host=host,
        port=port,
        token=token,
        allow_anybody=allow_anybody,
        journal=journal,
        reattach_s=reattach_s,
        proxy=ProxyConfig(
            wait_s=wait_s,
            attempts=attempts,
            tokens=tokens,  # type: ignore[arg-type] # checked by ProxyConfig
            tokenizer=tokenizer,
            engine_api_key=engine_api_key,
            classify=classify,
        ),
    )
    asyncio.run(_serve(config))


async def _serve(config: ServeConfig) -> None:
    try:
        from turnout.listening import stop_on_signals
        from turnout.server.app import run
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "turnout":
            raise
        raise MissingExtra(f"the server needs {error.name}: pip install 'turnout[serve]'") from error
    await run(config, stop_on_signals(), lambda url: print(json.dumps({"event": "ready", "url": url}), flush=True))
