"""The table that `turnout simulate` prints: drawn on a terminal, plain columns when piped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from turnout.simulate.metrics import mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class _Measure(NamedTuple):
    """A column: heading, path into a record, factor, format."""

    heading: str
    path: tuple[str, ...]
    factor: float = 1.0
    form: str = ",.0f"


_MEASURES = (
    _Measure("finished", ("finished_sessions",)),
    _Measure("per hour", ("finished_sessions_per_hour",)),
    _Measure("output tok/s", ("output_tokens_per_s",)),
    _Measure("prefix hits %", ("prefix_hit_share",), 100, ".1f"),
    _Measure("re-prefill Mtok", ("reprefill_tokens",), 1e-6, ",.1f"),
    _Measure("mix TV points", ("mixture_tv_points",), 1, ".1f"),
    _Measure("hold p50 s", ("hold_s", "p50"), 1, ",.1f"),
    _Measure("p99 s", ("hold_s", "p99"), 1, ",.0f"),
    _Measure("max s", ("hold_s", "max"), 1, ",.0f"),
    _Measure("held now", ("held_turns",)),
    _Measure("pauses", ("pauses",)),
    _Measure("moves", ("moves",)),
    _Measure("preempted", ("preemptions",)),
    _Measure("Jain V", ("jain_virtual_time",), 1, ".2f"),
    _Measure("GPU work %", ("least_gpu_share",), 100, ".0f"),
)


def rows(records: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Lay records out as text: one row per policy, means over its seeds.

    Args:
        records: Records of runs, policies in the wanted order; the first policy is what the others are compared with.

    Returns:
        Headings, and one row of the same length per policy. A measure that nobody has is left out.
    """
    policies = list(dict.fromkeys(entry["policy"] for entry in records))
    by_policy = {name: [entry for entry in records if entry["policy"] == name] for name in policies}
    workloads = list(records[0]["workloads"]) if len(records[0]["workloads"]) > 1 else []
    measures = [entry for entry in _MEASURES if any(mean(own, *entry.path) is not None for own in by_policy.values())]
    measures[1:1] = [_Measure(name, ("workloads", name, "finished_sessions")) for name in workloads]
    first = mean(by_policy[policies[0]], "finished_sessions")
    table = []
    for name in policies:
        cells = [_cell(mean(by_policy[name], *entry.path), entry) for entry in measures]
        own = mean(by_policy[name], "finished_sessions")
        gain = f"{100 * (own / first - 1):+.0f} %" if first and own is not None and name != policies[0] else "-"
        table.append([name, *cells[:1], gain, *cells[1:]])
    return ["policy", measures[0].heading, "gain", *(entry.heading for entry in measures[1:])], table


def _cell(value: float | None, measure: _Measure) -> str:
    return "-" if value is None else format(value * measure.factor, measure.form)


def plain(headings: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Aligned columns, two spaces apart, names to the left and numbers to the right.

    Args:
        headings: One text per column.
        body: Rows of the same length.

    Returns:
        The lines, without a newline at the end.

    Example:
        >>> print(plain(["policy", "finished"], [["open", "7"], ["misa-t", "11"]]))
        policy  finished
        open           7
        misa-t        11
    """
    lines = [headings, *body]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def show(records: Sequence[Mapping[str, Any]], title: str) -> None:
    """Print the table to stdout.

    Args:
        records: Records of runs.
        title: One line that says what was run.
    """
    from rich.console import Console
    from rich.table import Table

    headings, body = rows(records)
    console = Console()
    if not console.is_terminal:
        print(title, plain(headings, body), sep="\n")
        return
    table = Table(title=title, title_justify="left", header_style="bold")
    for column, heading in enumerate(headings):
        table.add_column(heading, justify="left" if column == 0 else "right", no_wrap=column == 0)
    best = max(
        range(len(body)),
        key=lambda at: mean([r for r in records if r["policy"] == body[at][0]], "finished_sessions") or 0,
    )
    for at, row in enumerate(body):
        table.add_row(*row, style="bold green" if at == best and len(body) > 1 else None)
    console.print(table)
