"""The tables of docs/interface.md agree with the signatures, the stub and the fields of view and limits."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import turnout
from turnout import _core
from turnout.aio import AsyncRouter
from turnout.aio.arguments import AbortArguments, CompleteArguments, SubmitArguments
from turnout.policies import FleetView, Limits
from turnout.policies.limits import _RULES
from turnout.policies.view import _COLUMNS
from turnout.server import schema
from turnout.server.decisions import OPERATIONS

PAGE = (Path(__file__).parents[2] / "docs" / "interface.md").read_text(encoding="utf-8")
ROUTER_ALONE = {
    "audit", "drain", "raw_set_limits", "raw_view", "restore", "snapshot", "start_journal", "stats", "step",
    "stop_journal", "take_journal", "view",
}  # fmt: skip
"""Methods that are no events: what the outbox, the control loop and records are read with."""


def table(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    below = PAGE[PAGE.index(f"## {heading}") :]
    lines = re.search(r"((?:^\|.*\n)+)", below, re.MULTILINE)
    assert lines is not None
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines[1].splitlines()[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


EVENTS = {name: names(row[1]) for row in table("Events") for name in names(row[0])}


def arguments(call: object) -> list[str]:
    return [name for name in inspect.signature(call).parameters if name not in {"self", "now"}]  # type: ignore[arg-type]


def test_every_event_is_in_the_table_and_no_other() -> None:
    public = {name for name, member in inspect.getmembers(turnout.Router, callable) if not name.startswith("_")}
    assert set(EVENTS) == public - ROUTER_ALONE
    assert public >= ROUTER_ALONE


@pytest.mark.parametrize("event", EVENTS)
def test_the_arguments_are_those_of_the_signature(event: str) -> None:
    assert sorted(EVENTS[event]) == sorted(arguments(getattr(turnout.Router, event)))
    takes_time = "now" in inspect.signature(getattr(turnout.Router, event)).parameters
    assert takes_time == (event not in {"peek", "prompt"})


@pytest.mark.parametrize("event", EVENTS)
def test_the_asyncio_router_and_the_server_know_every_event(event: str) -> None:
    assert callable(getattr(AsyncRouter, event))
    if event not in {"prompt", "set_limits", "tick", "expect_callers", "reset_feed", "end_feeds"}:
        assert event in {operation.name for operation in OPERATIONS}


@pytest.mark.parametrize(
    ("event", "typed", "message"),
    [
        ("submit", {"prompt", *SubmitArguments.__annotations__}, schema.Turn),
        ("complete", {"turn", "output", *inspect.get_annotations(CompleteArguments)}, schema.End),
        ("abort", {"turn", "output", *AbortArguments.__annotations__}, schema.Abort),
        ("choose", None, schema.Choose),
        ("progress", None, schema.Progress),
    ],
)
def test_typed_arguments_and_messages_have_every_argument(event: str, typed: set[str] | None, message: type) -> None:
    assert typed is None or typed - {"now"} == set(EVENTS[event])
    fields = set(message.__struct_fields__) - {"token_bytes", "outputs"}  # type: ignore[attr-defined]
    assert fields == set(EVENTS[event])


def test_reports_of_engines_are_those_of_the_core() -> None:
    assert set(EVENTS["observe"]) == set(schema.Observe.__struct_fields__)
    assert set(inspect.signature(_core.Router.observe).parameters) - {"self", "now"} == set(EVENTS["observe"])


def test_the_columns_are_those_of_the_view() -> None:
    rows = {names(row[0])[0]: row for row in table("FleetView")}
    fields = [field.name for field in dataclasses.fields(FleetView)]
    assert list(rows) == [name for name in fields if name in _COLUMNS]
    assert set(fields) - set(_COLUMNS) == {"step", "now_s", "elapsed_s", "replicas", "workloads"}
    shapes = {"(R,)": "R", "(W,)": "W", "(R, W)": "RW"}
    kinds = {"f8": "", "i8": "int64", "?": "bool"}
    for name, (_, shape, meaning) in rows.items():
        assert shapes[shape] == _COLUMNS[name].shape, name
        noted = next((kind for kind in ("int64", "bool") if meaning.lower().startswith(kind)), "")
        assert noted == kinds[_COLUMNS[name].dtype], name
    raw = turnout.Router([turnout.Replica("r", kv_tokens=100)]).raw_view(now=0.0)["columns"]
    assert {name: (column[0], column[1]) for name, column in raw.items()} == {
        name: (column.shape, column.dtype) for name, column in _COLUMNS.items()
    }


def test_the_fields_are_those_of_the_limits() -> None:
    rows = {names(row[0])[0]: row for row in table("Limits")}
    assert list(rows) == [field.name for field in dataclasses.fields(Limits)]
    shapes = {"()": "", "(R,)": "R", "(W,)": "W", "(R, W)": "RW"}
    for name, rule in _RULES.items():
        assert shapes[rows[name][1]] == rule.shape, name
    for name, row in rows.items():
        assert name == "memory" or "default" in row[2].lower() or "(default)" in row[2], f"{name} states no default"
