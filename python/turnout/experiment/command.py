"""`turnout experiment`: plays an experiment and writes what came of it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator  # noqa: TC003 - typer evaluates the module's annotations
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from turnout.errors import InvalidArgument
from turnout.experiment.catalogue import EXPERIMENTS
from turnout.experiment.outcome import Outcome, table
from turnout.experiment.page import document, page, summary
from turnout.experiment.plan import FULL, NORMAL, QUICK
from turnout.experiment.pool import play_all
from turnout.simulate.table import plain


def experiment(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(EXPERIMENTS)}, or all.")],
    out: Annotated[Path, typer.Option(help="Folder of the reports; finished runs are kept in its folder runs.")] = Path(
        "experiments"
    ),
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; default: one per core.")] = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Few and short runs: to see that it works.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Five seeds and three times the duration.")] = False,
) -> None:
    """Play an experiment: policies side by side, expectations beside what came, one HTML report.

    What is finished is kept and not played again, so an interrupted experiment goes on where it was.
    """
    if name != "all" and name not in EXPERIMENTS:
        raise InvalidArgument(f"name: got {name!r}, accepted is {', '.join(EXPERIMENTS)} or all")
    if jobs is not None and jobs < 1:
        raise InvalidArgument(f"jobs: got {jobs}, accepted is a whole number >= 1")
    if quick and full:
        raise InvalidArgument("quick: got both --quick and --full, accepted is one of them")
    size = QUICK if quick else FULL if full else NORMAL
    for chosen in EXPERIMENTS.values() if name == "all" else [EXPERIMENTS[name]]:
        planned = chosen.jobs(size)
        with _bar(chosen.name) as done:
            results = play_all(planned, out / "runs", processes=jobs or os.cpu_count() or 1, done=done)
        outcome = Outcome(planned, results)
        claims = chosen.judge(outcome)
        folder = out / chosen.name
        folder.mkdir(parents=True, exist_ok=True)
        drawn = chosen.draw(outcome, folder)
        text = json.dumps(document(chosen, outcome, claims, size.name), indent=1, allow_nan=False) + "\n"
        (folder / "results.json").write_text(text, encoding="utf-8")
        (folder / "report.html").write_text(page(chosen, outcome, claims, drawn, size.name), encoding="utf-8")
        (folder / "summary.md").write_text(summary(chosen, outcome, claims), encoding="utf-8")
        print(chosen.title)
        for cell in outcome.cells:
            print(
                "", ", ".join(f"{key} {value}" for key, value in cell.items()), plain(*table(outcome, cell)), sep="\n"
            )
        print()
        for claim in claims:
            print(f"{'holds' if claim.holds else 'FAILS'}  {claim.expected}: {claim.came}")
        print(f"report: {folder / 'report.html'}", file=sys.stderr)


@contextlib.contextmanager
def _bar(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, only where somebody looks."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name)
        yield lambda finished, total: bar.update(task, completed=finished, total=total)
