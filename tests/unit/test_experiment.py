"""`turnout experiment`: what it writes, that it goes on where it stopped, and the same bytes for the same seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "turnout.cli", "experiment", *arguments, "--out", str(folder), "--jobs", "2"]
    environment = {**os.environ, "MPLCONFIGDIR": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603 - our own command


def test_the_same_seed_gives_the_same_bytes_and_finished_runs_are_kept(tmp_path: Path) -> None:
    first = run(tmp_path / "a", "no_reuse", "--quick")
    assert first.returncode == 0, first.stderr
    folder = tmp_path / "a" / "no_reuse"
    written = {path.name for path in folder.iterdir()}
    assert {"results.json", "report.html"} <= written
    assert any(name.endswith(".png") for name in written)
    results = (folder / "results.json").read_bytes()
    json.loads(results)
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in report, "the report stands alone"
    assert "http://" not in report.replace("http://www.w3.org", "")
    assert "holds" in first.stdout or "FAILS" in first.stdout

    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "a" / "runs").rglob("*") if path.is_file()}
    assert kept
    next(iter(kept)).unlink()
    again = run(tmp_path / "a", "no_reuse", "--quick")
    assert again.stdout == first.stdout
    assert (folder / "results.json").read_bytes() == results
    unchanged = [path for path, at in kept.items() if path.stat().st_mtime_ns == at]
    assert len(unchanged) == len(kept) - 1, "one run was missing, one was played"


@pytest.mark.parametrize("arguments", [("nothing",), ("mixture", "--quick", "--full")])
def test_what_cannot_be_played_is_named(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    refused = run(tmp_path, *arguments)
    assert refused.returncode == 2
    assert "accepted is" in refused.stderr
