"""`turnout serve`: one router for a cluster, asked over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from turnout.adapters.proxies import HOLD_S
from turnout.errors import MissingExtra
from turnout.server.config import ServeConfig


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
    ext_proc_port: Annotated[int | None, typer.Option(help="Port for Envoy's ext_proc; 0 = any free one.")] = None,
    spoe_port: Annotated[int | None, typer.Option(help="Port for HAProxy's SPOE; 0 = any free one.")] = None,
    gate_hold_s: Annotated[float, typer.Option(help="How long a proxy's request may be held, s.")] = HOLD_S,
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
        ext_proc_port=ext_proc_port,
        spoe_port=spoe_port,
        gate_hold_s=gate_hold_s,
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

    def started(url: str, ways_in: dict[str, str]) -> None:
        print(json.dumps({"event": "ready", "url": url, **ways_in}), flush=True)

    await run(config, stop_on_signals(), started)
