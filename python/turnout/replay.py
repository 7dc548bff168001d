"""The command `turnout replay`."""

from __future__ import annotations

import sys
import time
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import Annotated

import typer

from turnout import record
from turnout.errors import AnswerDiffers


def replay(journal: Annotated[Path, typer.Argument(help="a journal that turnout.record.JournalWriter kept")]) -> None:
    """Do every event of a journal again, compare every answer, and say what it held.

    Exits with 1 where one differs, with 2 where the journal cannot be read.
    """
    started = time.perf_counter()
    try:
        done = record.replay(journal)
    except AnswerDiffers as error:
        print(f"turnout: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
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
