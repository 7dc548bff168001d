"""The command `turnout replay`."""

from __future__ import annotations

import time
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import Annotated

import typer

from turnout import record


def replay(journal: Annotated[Path, typer.Argument(help="a journal that turnout.record.JournalWriter kept")]) -> None:
    """Do every event of a journal again, compare every answer, and say what it held. Exits with 2 where one differs."""
    started = time.perf_counter()
    done = record.replay(journal)
    took = time.perf_counter() - started
    events = sum(done.events.values())
    each = f", {done.record_bytes / events:.0f} bytes and {1e6 * took / events:.1f} us each" if events else ""
    print(f"{events:,} events in {done.record_bytes:,} bytes{each}: every answer equal")
    for title, counts in (("events", done.events), ("decisions", done.decisions)):
        if counts:
            listed = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))
            print(f"{title}: {listed}")
    if done.torn_bytes:
        print(f"{done.torn_bytes} bytes at the end belong to a record that was torn: left out")
