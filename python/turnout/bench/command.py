"""The command `turnout bench`."""

from __future__ import annotations

import json
import platform
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

import turnout
from turnout.bench import index as index_bench

WHOLE = 100
"""From here on figures are shown without a fraction."""

if TYPE_CHECKING:
    from turnout.bench.measure import Row


def index(
    *,
    full: Annotated[
        bool, typer.Option("--full", help="the sizes of a large fleet: 10,000 agents, 1,000,000 sessions; minutes")
    ] = False,
    seed: Annotated[int, typer.Option(help="seed of the tokens")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="write the rows to this file as well")] = None,
) -> None:
    """Measure the prefix index: every figure beside its bound, taken in the same run."""
    console = Console(stderr=True)
    with console.status("") as status:
        rows = index_bench.run(full=full, seed=seed, report=lambda title: status.update(f"measuring {title}"))
    machine = {"machine": platform.machine(), "python": platform.python_version(), **turnout.build_info()}
    if json_path is not None:
        text = json.dumps({"machine": machine, "rows": [row.as_json() for row in rows]}, indent=1)
        json_path.write_text(text + "\n", encoding="utf-8")
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print("\n".join(_lines(rows)))


def _lines(rows: list[Row]) -> list[str]:
    """Columns of plain text, so that a table can be piped and pasted."""
    cells = [("operation", "figure", "bound", "ratio", "what bounds it")]
    cells += [
        (row.operation, _shown(row.figure, row.unit), _shown(row.bound_figure, row.unit), f"{row.ratio:.2f}", row.bound)
        for row in rows
    ]
    first, *widths = (max(len(line[at]) for line in cells) for at in range(4))
    return [
        f"{line[0]:<{first}}  {line[1]:>{widths[0]}}  {line[2]:>{widths[1]}}  {line[3]:>{widths[2]}}  {line[4]}"
        for line in cells
    ]


def _shown(figure: float, unit: str) -> str:
    return f"{figure:,.0f} {unit}" if figure >= WHOLE else f"{figure:.3g} {unit}"
