"""The report of an experiment: one HTML file that needs nothing beside it."""

from __future__ import annotations

import base64
import html
from typing import TYPE_CHECKING, Any

from turnout.experiment.outcome import bounds, table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from turnout.experiment.outcome import Claim, Outcome
    from turnout.experiment.plan import Experiment

_BRIEF = ("makespan s", "group p50 s", "from cache %", "from the mixture, points", "hold p99 s", "pauses", "preempted")

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; font-size: 13px; display: block; overflow-x: auto; margin-bottom: 1.5rem }
th, td { padding: 3px 9px; text-align: right; border-bottom: 1px solid #e4e4e4; white-space: nowrap }
th:first-child, td:first-child, .claims td, .claims th { text-align: left; white-space: normal }
.yes { color: #1b7f3b; font-weight: 600 } .no { color: #b3261e; font-weight: 600 }
img { max-width: 100%; display: block; margin: 1rem 0 }
"""


def page(experiment: Experiment, outcome: Outcome, claims: Sequence[Claim], drawn: Sequence[Path], size: str) -> str:
    """Lay out a report.

    Args:
        experiment: What was asked.
        outcome: The runs.
        claims: What was expected and what came.
        drawn: PNG files, put into the page.
        size: Name of the size that was played.

    Returns:
        The HTML text.
    """
    seeds = len({job.seed for job in outcome.jobs})
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{_text(experiment.title)}</title>",
        f"<style>{_STYLE}</style><h1>{_text(experiment.title)}</h1><p>{_text(experiment.about)}</p>",
        f"<p>Size {_text(size)}: {len(outcome.jobs)} runs, {seeds} seeds; ± is half the 95 % interval over seeds.</p>",
        "<h2>Expected before the run, and what came</h2><table class='claims'>",
        "<tr><th>expected</th><th>came</th><th>holds</th></tr>",
    ]
    for claim in claims:
        verdict = "<td class='yes'>yes</td>" if claim.holds else "<td class='no'>no</td>"
        parts.append(f"<tr><td>{_text(claim.expected)}</td><td>{_text(claim.came)}</td>{verdict}</tr>")
    parts.append("</table>")
    for path in drawn:
        picture = base64.b64encode(path.read_bytes()).decode()
        parts.append(f"<img alt='{_text(path.stem)}' src='data:image/png;base64,{picture}'>")
    for cell in outcome.cells:
        heading = ", ".join(f"{key} {value}" for key, value in cell.items())
        found = bounds(outcome, cell)
        parts += [
            f"<h2>{_text(heading)}</h2>",
            (
                f"<p>Bounds, sessions per hour: GPU work {found.gpu:,.0f}, critical path {found.path:,.0f}, "
                f"Little's law with every cache kept {found.kept:,.0f}.</p>"
            ),
            _table(*table(outcome, cell)),
        ]
    return "\n".join([*parts, "</html>", ""])


def summary(experiment: Experiment, outcome: Outcome, claims: Sequence[Claim]) -> str:
    """The claims, and the measures that most differ, as Markdown.

    Args:
        experiment: What was asked.
        outcome: The runs.
        claims: What was expected and what came.

    Returns:
        Markdown text.
    """
    parts = [f"## {experiment.title}", "", experiment.about, "", "| expected | came | holds |", "|---|---|---|"]
    parts += [f"| {claim.expected} | {claim.came} | {'yes' if claim.holds else '**no**'} |" for claim in claims]
    for cell in outcome.cells:
        headings, rows = table(outcome, cell)
        shown = [at for at, heading in enumerate(headings) if at == 0 or heading in _BRIEF or heading.endswith("/h")]
        parts += ["", ", ".join(f"{key} {value}" for key, value in cell.items()) + ":", ""]
        parts.append("| " + " | ".join(headings[at] for at in shown) + " |")
        parts.append("|---|" + "--:|" * (len(shown) - 1))
        parts += ["| " + " | ".join(row[at] for at in shown) + " |" for row in rows]
    return "\n".join([*parts, ""])


def document(experiment: Experiment, outcome: Outcome, claims: Sequence[Claim], size: str) -> dict[str, Any]:
    """What `results.json` holds: no clock and no path, so that the same runs give the same bytes.

    Args:
        experiment: What was asked.
        outcome: The runs.
        claims: What was expected and what came.
        size: Name of the size that was played.

    Returns:
        Plain data.
    """
    return {
        "experiment": experiment.name,
        "size": size,
        "claims": [claim._asdict() for claim in claims],
        "runs": [
            {
                "arm": job.arm.name,
                "cell": job.cell,
                "seed": job.seed,
                "config": job.config(),
                "record": result["record"],
            }
            for job, result in zip(outcome.jobs, outcome.results, strict=True)
        ],
    }


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{_text(cell)}</th>" for cell in headings) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "".join([*lines, "</table>"])


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)
