"""`turnout doctor URL...`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

from turnout.errors import MissingExtra

if TYPE_CHECKING:
    from turnout.doctor.report import Report


def doctor(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Addresses of engines' HTTP servers.")],
    *,
    probe: Annotated[bool, typer.Option("--probe", help="Send each engine two tiny requests.")] = False,
    listen_s: Annotated[float, typer.Option(help="How long to listen to cache events, s.")] = 3.0,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json that the engines' must be equal to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Look whether engines offer what the router needs, and say what to add to their command lines.

    Exits with 0 when all is good, 1 when something is missing, 2 when an engine cannot be reached.
    """
    try:
        from turnout.doctor.examine import Options, examine
        from turnout.doctor.report import lines
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] == "turnout":
            raise
        raise MissingExtra(f"the doctor needs {error.name}: pip install 'turnout[feeds]'") from error

    async def look() -> list[Report]:
        options = Options(probe=probe, listen_s=listen_s, tokenizer=tokenizer)
        return await asyncio.gather(*(examine(url, options) for url in urls))

    reports = asyncio.run(look())
    code = max(report.code for report in reports)
    if as_json:
        print(
            json.dumps({"code": code, "engines": [{**asdict(each), "code": each.code} for each in reports]}, indent=1)
        )
    else:
        print("\n".join(lines(reports)))
    raise typer.Exit(code)
