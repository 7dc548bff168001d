"""`turnout simulate`: options in, table, JSON and picture out."""

from __future__ import annotations

import contextlib
import functools
import math
import platform
import re
import sys
import time
from collections.abc import Iterator  # noqa: TC003 - typer evaluates the module's annotations
from pathlib import Path  # noqa: TC003 - as above
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from turnout.errors import InvalidArgument
from turnout.simulate import metrics, report, table
from turnout.simulate.engines import ENGINES, engine
from turnout.simulate.mixture import mixture
from turnout.simulate.run import Progress as OnProgress
from turnout.simulate.run import Run, Setup, run_all
from turnout.simulate.traces import read_trace

DEFAULT_POLICIES = ["open", "static-cap:20", "misa", "misa-t"]
"""20 sessions per replica is the best of a sweep on the embedded mixture."""

MIXTURE_SESSIONS = 400
"""Sessions in the list of the embedded mixture; a run of a given duration plays it again when it ends."""

MIXTURE_CONCURRENCY = 160
MIXTURE_DURATION_S = 3_600.0
MIXTURE_SCALE = 8.0
TRACE_CONCURRENCY = 64
TRACE_DURATION_S = 3_600.0


def simulate(  # noqa: PLR0913, PLR0917 - one parameter per option of the command
    trace: Annotated[Path | None, typer.Option(help="rt1 trace to play; default: an embedded mixed workload.")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Policy, repeatable: {', '.join(DEFAULT_POLICIES)} (the default), static-cap:N, package.module:Class."
        ),
    ] = None,
    replicas: Annotated[int, typer.Option(help="Number of replicas.")] = 4,
    kv_tokens: Annotated[
        float | None,
        typer.Option(
            help="KV tokens per replica; default: the engine's, divided by --scale for the embedded workload."
        ),
    ] = None,
    engine_name: Annotated[
        str, typer.Option("--engine", help=f"Model engine: {', '.join(ENGINES)}.")
    ] = "qwen3-8b-h200",
    concurrency: Annotated[
        int | None,
        typer.Option(help=f"Sessions outstanding; default {MIXTURE_CONCURRENCY}, with --trace {TRACE_CONCURRENCY}."),
    ] = None,
    sessions: Annotated[
        int | None,
        typer.Option(help="Play so many sessions once, to their end (or to --duration); default: until --duration."),
    ] = None,
    duration: Annotated[
        float | None, typer.Option(help="Simulated seconds; default 3600, or no end with --sessions.")
    ] = None,
    flush_every: Annotated[
        int | None, typer.Option(help="New weights, and empty caches, whenever so many more sessions have finished.")
    ] = None,
    outage: Annotated[
        list[str] | None,
        typer.Option(
            help="R@AT+AWAY, repeatable: replica R is away from second AT for AWAY seconds; 3@0+900 joins at 900 s."
        ),
    ] = None,
    cache_events: Annotated[
        str | None,
        typer.Option(
            help="LAG or LAG/LOSS: the engines tell the router what they cache, LAG seconds late; of their "
            "batches a share LOSS comes by replay only. Default: the router judges by its own decisions."
        ),
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Seed, repeatable; default 0.")] = None,
    gap_scale: Annotated[float, typer.Option(help="Factor on the recorded gaps between the turns of a trace.")] = 1.0,
    scale: Annotated[
        float, typer.Option(help="The embedded workload's lengths and gaps are divided by this.")
    ] = MIXTURE_SCALE,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write config and numbers of every run to this file.")
    ] = None,
    report_dir: Annotated[Path | None, typer.Option("--report", help="Write a picture to this folder.")] = None,
) -> None:
    """Play recorded or synthetic rollouts on model engines behind the real router, and compare policies."""
    policies, seeds = policy or DEFAULT_POLICIES, seed or [0]
    _distinct("policy", policies)
    _distinct("seed", seeds)
    if bad := [value for value in seeds if not 0 <= value < 2**63]:
        raise InvalidArgument(f"seed: got {bad[0]}, accepted is 0 to 2^63 - 1")
    if trace is None and gap_scale != 1.0:
        raise InvalidArgument(f"gap-scale: got {gap_scale} without --trace, accepted is a trace whose gaps it scales")
    if trace is not None and scale != MIXTURE_SCALE:
        raise InvalidArgument(f"scale: got {scale} with --trace, accepted only for the embedded workload")
    if trace is None and not 1 <= scale <= 1_000:  # noqa: PLR2004 - as in mixture()
        raise InvalidArgument(f"scale: got {scale}, accepted is 1 to 1000")
    capacity = kv_tokens if kv_tokens is not None else engine(engine_name).kv_tokens / (1 if trace else scale)
    default_duration_s = math.inf if sessions is not None else TRACE_DURATION_S if trace else MIXTURE_DURATION_S
    setup = Setup(
        replicas=replicas,
        kv_tokens=capacity,
        engine=engine_name,
        concurrency=concurrency if concurrency is not None else TRACE_CONCURRENCY if trace else MIXTURE_CONCURRENCY,
        duration_s=duration if duration is not None else default_duration_s,
        repeat=sessions is None,
        flush_every_sessions=flush_every,
        outages=tuple(_outage(text) for text in outage or ()),
        feed=None if cache_events is None else _feed(cache_events),
    )
    for option, folder in (("json", json_file and json_file.parent), ("report", report_dir and report_dir.parent)):
        if folder is not None and not folder.is_dir():
            raise InvalidArgument(f"{option}: {folder} is not a folder, accepted is a path in an existing one")
    if trace is None:
        scenario = functools.cache(
            lambda seed: mixture(sessions if sessions is not None else MIXTURE_SESSIONS, seed=seed, scale=scale)
        )
    else:
        recorded = read_trace(trace, sessions=sessions, gap_scale=gap_scale)
        scenario = functools.cache(lambda _seed: recorded)
    config = _config(setup, policies, seeds, scenario(seeds[0]))
    started = time.time()
    with _bar(
        [f"{name} (seed {number})" if len(seeds) > 1 else name for name in policies for number in seeds]
    ) as progress:
        runs = run_all(policies, seeds, scenario, setup, progress)
    table.show([run.record for run in runs], title(config))
    if json_file is not None:
        json_file.write_text(metrics.to_json(_document(config, runs, started)), encoding="utf-8")
        print(f"numbers: {json_file}", file=sys.stderr)
    if report_dir is not None:
        fleet_tokens = setup.replicas * setup.kv_tokens
        picture = report.draw([(run.record, run.series) for run in runs], title(config), report_dir, fleet_tokens)
        print(f"picture: {picture}", file=sys.stderr)


def _distinct(option: str, values: list[Any]) -> None:
    """Refuse a value that is given twice: its runs would be the same."""
    twice = next((value for at, value in enumerate(values) if value in values[:at]), None)
    if twice is not None:
        raise InvalidArgument(f"{option}: got {twice!r} twice, accepted is each value once")


def _feed(text: str) -> tuple[float, float]:
    """`LAG` or `LAG/LOSS` as (lag_s, loss)."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/(\d+(?:\.\d+)?))?", text)
    if found is None:
        raise InvalidArgument(f"cache-events: got {text!r}, accepted is LAG or LAG/LOSS such as 0.1/0.02")
    return float(found[1]), float(found[2] or 0)


def _outage(text: str) -> tuple[int, float, float]:
    """`R@AT+AWAY` as (replica, at_s, away_s)."""
    found = re.fullmatch(r"(\d+)@(\d+(?:\.\d+)?)\+(\d+(?:\.\d+)?|inf)", text)
    if found is None:
        raise InvalidArgument(f"outage: got {text!r}, accepted is R@AT+AWAY such as 1@600+120, AWAY also inf")
    replica, at_s, away_s = found.groups()
    return int(replica), float(at_s), float(away_s)


def _config(setup: Setup, policies: list[str], seeds: list[int], scenario: Any) -> dict[str, Any]:  # noqa: ANN401
    """Everything that decides the numbers; no clock, no path."""
    return {
        "policies": policies,
        "seeds": seeds,
        "replicas": setup.replicas,
        "kv_tokens": setup.kv_tokens,
        "engine": setup.engine,
        "concurrency": setup.concurrency,
        "duration_s": setup.duration_s if math.isfinite(setup.duration_s) else None,
        "repeat": setup.repeat,
        "control_period_s": setup.control_period_s,
        "flush_every_sessions": setup.flush_every_sessions,
        "outages": [
            {"replica": replica, "at_s": at_s, "away_s": away_s if math.isfinite(away_s) else None}
            for replica, at_s, away_s in setup.outages
        ],
        "feed": None if setup.feed is None else {"lag_s": setup.feed[0], "loss": setup.feed[1]},
        "sessions": scenario.sessions,
        "turns": scenario.turns,
        **scenario.config,
    }


def title(config: dict[str, Any]) -> str:
    """One line that says what was run.

    Args:
        config: The `config` of the JSON file.

    Returns:
        The line.
    """
    what = config.get("trace") or f"mixture at 1/{config['scale']:g} of its size"
    end = f"{config['duration_s']:,.0f} s" if config["duration_s"] else f"{config['sessions']} sessions to the end"
    fleet = f"{config['replicas']} x {config['engine']} with {config['kv_tokens']:,.0f} KV tokens"
    return f"{what}: {fleet}, {config['concurrency']} sessions outstanding, {end}"


def _document(config: dict[str, Any], runs: list[Run], started: float) -> dict[str, Any]:
    """The JSON file. All that differs between two equal commands stands under `wall_clock`."""
    return {
        "config": config,
        "runs": [run.record for run in runs],
        "wall_clock": {
            "started_unix_s": round(started, 3),
            "machine": f"{platform.system()} {platform.machine()}",
            "run_wall_s": [round(run.wall_s, 3) for run in runs],
        },
    }


@contextlib.contextmanager
def _bar(names: list[str]) -> Iterator[OnProgress | None]:
    """A progress bar on stderr, one line per run, only where somebody looks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        tasks = [bar.add_task(name, total=1.0) for name in names]
        yield lambda number, share: bar.update(tasks[number], completed=share)
