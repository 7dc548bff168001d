"""`turnout serve`: one router for a cluster, asked over HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from turnout.errors import InvalidArgument, MissingExtra

if TYPE_CHECKING:
    from turnout.server.config import ServeConfig


NOTHING: Final = object()
"""An option that takes back what the file says."""


def serve(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
    config: Annotated[Path | None, typer.Option(help="TOML file with settings; options override it.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="Address of an engine to follow; may be repeated.")] = None,
    workload: Annotated[list[str] | None, typer.Option(help="NAME or NAME=SHARE; may be repeated.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="Policy, by name or as package.module:Class [default: block-time].")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen at [default: 127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="HTTP port; 0 = any free one [default: 8077].")] = None,
    admin_port: Annotated[
        int | None, typer.Option(help="Port of its own for metrics, fleet and explanations [default: none].")
    ] = None,
    token: Annotated[str | None, typer.Option(envvar="TURNOUT_TOKEN", help="Token that callers must bring.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File that holds the token.")] = None,
    allow_anybody: Annotated[
        bool | None, typer.Option("--allow-anybody", help="Listen at a public address without a token.")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="json or text, on stderr [default: json].")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error [default: info].")] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Directory that keeps the state over restarts [default: one per port, see docs/serve.md]."),
    ] = None,
    standby_of: Annotated[
        Path | None, typer.Option(help="State of another server on this disk: wait for its end and go on from there.")
    ] = None,
    no_state: Annotated[  # noqa: FBT002 - an option
        bool, typer.Option("--no-state", help="Keep nothing: a restart begins anew.")
    ] = False,
    reattach_s: Annotated[
        float | None, typer.Option(help="After a restart: time for callers to name open turns, s [default: 120].")
    ] = None,
    wait_s: Annotated[
        float | None, typer.Option(help="Longest that a request to an engine is held, s [default: 300].")
    ] = None,
    attempts: Annotated[
        int | None, typer.Option(help="Most engines that are tried for one request [default: 3].")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Token ids of text: auto, engine or text, see docs/proxy.md [default: auto].")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer.json, for prompts that are text.")] = None,
    engine_api_key: Annotated[
        str | None, typer.Option(envvar="TURNOUT_ENGINE_API_KEY", help="Key that engines are sent.")
    ] = None,
    classify: Annotated[str | None, typer.Option(help="package.module:function that says whose a request is.")] = None,
    infer_sessions: Annotated[
        bool | None,
        typer.Option(help="A request that names no session continues the one that its prompt does [default: yes]."),
    ] = None,
    ext_proc_port: Annotated[
        int | None, typer.Option(help="Port for Envoy's ext_proc; 0 = any free one [default: none].")
    ] = None,
    spoe_port: Annotated[
        int | None, typer.Option(help="Port for HAProxy's SPOE; 0 = any free one [default: none].")
    ] = None,
    gate_hold_s: Annotated[
        float | None, typer.Option(help="How long a request of these proxies may be held, s [default: 600].")
    ] = None,
    demo: Annotated[  # noqa: FBT002 - an option
        bool, typer.Option("--demo", help="Start model engines and a load beside it, to look at.")
    ] = False,
    demo_engines: Annotated[int, typer.Option(help="How many engines --demo starts.")] = 4,
    check_config: Annotated[  # noqa: FBT002 - an option
        bool, typer.Option("--check-config", help="Print the settings in force, the token hidden, and exit.")
    ] = False,
) -> None:
    """Serve decisions over HTTP: the router of a cluster, with feeds from its engines.

    Prints one line of JSON with its address once it listens, and runs until SIGINT or SIGTERM.
    """
    flags: dict[str, Any] = {
        "engines": tuple(engine) if engine else None,
        "workloads": tuple(workload) if workload else None,
        "policy": policy,
        "host": host,
        "port": port,
        "admin_port": admin_port,
        "token": token,
        "token_file": token_file,
        "allow_anybody": allow_anybody,
        "log": {"format": log_format, "level": log_level},
        "state": {"directory": state, "reattach_s": reattach_s},
        "proxy": {
            "wait_s": wait_s,
            "attempts": attempts,
            "tokens": tokens,
            "tokenizer": tokenizer,
            "engine_api_key": engine_api_key,
            "classify": classify,
            "infer_sessions": infer_sessions,
        },
        "gates": {"ext_proc_port": ext_proc_port, "spoe_port": spoe_port, "hold_s": gate_hold_s},
    }
    if standby_of is not None:
        flags["state"] |= {"directory": standby_of, "standby": True}
    if no_state:
        flags["state"] = {"keep": False, "directory": NOTHING, "standby": False}
    try:
        settings = _settings(config, flags)
        if check_config:
            from turnout.server.config_file import effective

            print(json.dumps(effective(settings), indent=1))
            return
        asyncio.run(_serve_demo(settings, demo_engines) if demo else _serve(settings))
    except ImportError as error:
        if isinstance(error, MissingExtra) or error.name is None or error.name.partition(".")[0] == "turnout":
            raise
        raise MissingExtra(f"the server needs {error.name}: pip install 'turnout[serve]'") from error


def _settings(file: Path | None, flags: dict[str, Any]) -> ServeConfig:
    """What the file says, overridden by options; a table of options changes those fields of its group alone."""
    from turnout.server.config import ServeConfig, located
    from turnout.server.config_file import read_settings

    said = {} if file is None else read_settings(file)
    given = {name: value for name, value in flags.items() if value is not None}
    if "policy" in given:
        said.pop("policy_arguments", None)
    if "token" in given or "token_file" in given:
        said.pop("token", None)
        said.pop("token_file", None)
    defaults = ServeConfig()
    for name, value in given.items():
        if isinstance(value, dict):
            changed = {key: None if each is NOTHING else each for key, each in value.items() if each is not None}
            if changed:
                said[name] = dataclasses.replace(said.get(name, getattr(defaults, name)), **changed)
        else:
            said[name] = value
    try:
        return ServeConfig(**said)
    except InvalidArgument as error:
        if error.argument not in said or error.argument in given:
            raise
        raise located(error, "server") from None  # the file said it, so its section is named


def _print(event: str, said: dict[str, Any]) -> None:
    print(json.dumps({"event": event, **said}), flush=True)


async def _serve(config: ServeConfig) -> None:
    from turnout.listening import stop_on_signals
    from turnout.server.app import run
    from turnout.server.logs import set_up

    set_up(config.log)
    await run(
        config, stop_on_signals(), functools.partial(_print, "ready"), stands_by=functools.partial(_print, "standby")
    )


async def _serve_demo(config: ServeConfig, engines: int) -> None:
    """The same with model engines and a load. Nothing is kept unless a directory is named: the engines are new."""
    from turnout.demo import Demo
    from turnout.listening import stop_on_signals
    from turnout.server.app import run
    from turnout.server.logs import set_up

    stop, resting = stop_on_signals(), asyncio.Event()
    async with Demo(engines) as demo:
        set_up(config.log)
        keep = config.state.keep and config.state.directory is not None
        config = dataclasses.replace(
            config,
            engines=(*config.engines, *demo.urls),
            workloads=config.workloads or demo.workloads,
            state=dataclasses.replace(config.state, keep=keep),
            token_file=None,
        )

        def started(urls: dict[str, str]) -> None:
            demo.drive(urls["url"], config.token)
            _print("ready", {**urls, "engines": demo.urls})

        async def rest() -> None:
            # The callers go first, so that none of them meets a server that is ending.
            await stop.wait()
            await demo.rest()
            resting.set()

        ending = asyncio.create_task(rest())
        try:
            await run(config, resting, started)
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
