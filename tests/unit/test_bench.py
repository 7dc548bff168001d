"""The benchmark command: every row has a figure and a bound; what it says of itself can be read back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from typer.testing import CliRunner

from turnout.bench import index as bench
from turnout.bench.measure import Row, best_ns, best_of_each_ns
from turnout.bench.rivals import BLOCK_TOKENS, DictIndex
from turnout.cli import build_app

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that take a second; what is measured stays the same."""
    monkeypatch.setattr(bench, "_agents", lambda rng, sessions: AGENTS(rng, sessions=sessions // 50))
    monkeypatch.setattr(bench, "_many", lambda rng, sessions: MANY(rng, sessions=sessions // 50))
    monkeypatch.setattr(bench, "_groups", lambda rng, groups: GROUPS(rng, groups=groups // 16))


AGENTS, MANY, GROUPS = bench._agents, bench._many, bench._groups


def test_the_command_prints_and_writes_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    path = tmp_path / "rows.json"
    result = CliRunner().invoke(build_app(), ["bench", "index", "--json", str(path)])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert written["machine"]["kernel"] in result.output
    for row in written["rows"]:
        assert row["operation"] in result.output
        assert row["figure"] > 0
        assert row["bound_figure"] > 0
        assert row["ratio"] == row["figure"] / row["bound_figure"]


def test_memory_per_token_stays_near_the_fingerprints() -> None:
    """Bytes are counted, not timed: 8 bytes for 16 tokens, an eighth of slack, and the records of runs and holdings."""
    agents = list(AGENTS(np.random.default_rng(1), sessions=100))
    groups = list(GROUPS(np.random.default_rng(1), groups=64))
    assert next(row for row in agents if row.unit == "B").ratio < 1.4
    assert next(row for row in groups if row.unit == "B").ratio < 1.6


def test_timing_counts_operations() -> None:
    assert best_ns(len, [1], calls=1_000, operations=1_000) < best_ns(len, [1], calls=1_000)
    assert best_of_each_ns(len, [[1], [2]]) > 0
    assert Row("x", 3.0, "ns", "y", 2.0).as_json()["ratio"] == 1.5


def test_the_dictionary_answers_as_the_index_does() -> None:
    rival, tokens = DictIndex(), np.arange(100, dtype=np.uint32)
    rival.insert(tokens[:64], 0)
    rival.insert(tokens, 1)
    assert rival.lookup(tokens) == {0: 4, 1: 6}
    assert BLOCK_TOKENS == 16
