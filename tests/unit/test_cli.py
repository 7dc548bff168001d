"""The command, in a process of its own: output, errors, exit codes, equal bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHORT = ["--duration", "60", "--concurrency", "24"]
TRACE = Path(__file__).parents[3] / "shared" / "traces" / "weka-claude-code.train.jsonl.zst"


def turnout(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "turnout.cli", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=100)  # noqa: S603


def test_table_json_and_picture(tmp_path: Path) -> None:
    shown = turnout("simulate", *SHORT, "--json", "out.json", "--report", "report", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for name in ("open", "static-cap:20", "misa", "misa-t"):
        assert f"\n{name} " in shown.stdout
    assert (tmp_path / "report" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert set(document) == {"config", "runs", "wall_clock"}
    for run in document["runs"]:
        assert run["submitted_turns"] == run["placed_turns"] + run["held_turns"] + run["aborted_turns"]
        assert set(run["workloads"]) == {"agent", "rlvr", "rlhf"}
        assert {
            "policy", "seed", "finished_sessions", "finished_sessions_per_hour", "turns", "output_tokens_per_s",
            "prefix_hit_share", "reprefill_tokens", "mixture_tv_points", "hold_s", "pauses", "moves", "preemptions",
            "makespan_s",
        } <= set(run)  # fmt: skip
        assert set(run["hold_s"]) == {"p50", "p99", "max"}


def test_one_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    texts = []
    for name in ("a.json", "b.json"):
        arguments = [*SHORT, "--policy", "misa-t", "--policy", "open", "--seed", 1, "--seed", 2, "--json", name]
        shown = turnout("simulate", *arguments, cwd=tmp_path)
        assert shown.returncode == 0, shown.stderr
        document = json.loads((tmp_path / name).read_text(encoding="utf-8"))
        del document["wall_clock"]
        texts.append(json.dumps(document))
    assert texts[0] == texts[1]
    assert [run["seed"] for run in json.loads(texts[0])["runs"]] == [1, 2, 1, 2]


def test_outages_and_new_weights(tmp_path: Path) -> None:
    arguments = ["--sessions", 40, "--policy", "misa-t", "--replicas", 2]
    runs = {}
    for name, options in {
        "calm": [],
        "outage": ["--outage", "0@20+30"],
        "joining": ["--outage", "1@0+60"],
        "flush": ["--flush-every", 5],
        "told": ["--cache-events", "0.05/0.1"],
    }.items():
        shown = turnout("simulate", *arguments, *options, "--json", f"{name}.json", cwd=tmp_path)
        assert shown.returncode == 0, shown.stderr
        (runs[name],) = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))["runs"]
    assert {run["finished_sessions"] for run in runs.values()} == {40}
    assert runs["outage"]["lost_turns"] > 0 == runs["calm"]["lost_turns"] == runs["joining"]["lost_turns"]
    assert runs["outage"]["reprefill_tokens"] > runs["calm"]["reprefill_tokens"]
    assert runs["flush"]["prefix_hit_share"] < runs["calm"]["prefix_hit_share"]
    assert runs["joining"]["makespan_s"] > runs["calm"]["makespan_s"]


def test_a_run_is_shown_beside_its_bounds(tmp_path: Path) -> None:
    shown = turnout("simulate", *SHORT, "--policy", "open", "--policy", "misa-t", "--json", "out.json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    for run in json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["runs"]:
        assert run["prefix_hit_share"] <= run["unevicted_hit_share"] <= 1
        assert 0 < run["least_gpu_share"] < 1
        assert 1 / 3 <= run["jain_virtual_time"] <= 1
        assert 0 <= run["forecast_missing_share"] <= 1
        assert run["little_sessions_per_hour"] > 0


def test_a_number_of_sessions_is_played_to_its_end(tmp_path: Path) -> None:
    shown = turnout("simulate", "--sessions", 12, "--policy", "misa-t", "--json", "out.json", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    (run,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["runs"]
    assert (run["finished_sessions"], run["held_turns"]) == (12, 0)
    assert run["makespan_s"] > 0


ERRORS = {
    "unknown policy": (["--policy", "best"], "policy: got"),
    "no module": (["--policy", "nowhere:Policy"], "nowhere"),
    "unknown engine": (["--engine", "abacus"], "engine: got 'abacus'"),
    "capacity 0": (["--kv-tokens", "0"], "kv_tokens: got 0"),
    "no replica": (["--replicas", "0"], "replicas: got 0"),
    "no session": (["--concurrency", "0"], "concurrency: got 0"),
    "no time": (["--duration", "0"], "duration_s: got 0"),
    "missing trace": (["--trace", "missing.zst"], "missing.zst"),
    "not a trace": (["--trace", "text.zst"], "text.zst"),
    "a seed below 0": (["--seed", "-1"], "seed: got -1"),
    "gaps of nothing": (["--gap-scale", "2"], "gap-scale: got 2.0 without --trace"),
    "a trace cannot shrink": (["--trace", "text.zst", "--scale", "2"], "scale: got 2.0 with --trace"),
    "an outage of nobody": (["--outage", "9@0+1"], "outages: got replica 9"),
    "an outage in other words": (["--outage", "soon"], "outage: got 'soon'"),
    "cache events some time": (["--cache-events", "late"], "cache-events: got 'late'"),
    "weights after nothing": (["--flush-every", "0"], "flush_every_sessions: got 0"),
    "nowhere to write": (["--json", "no/such/folder/out.json"], "json:"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_line(tmp_path: Path, case: str) -> None:
    arguments, message = ERRORS[case]
    (tmp_path / "text.zst").write_text("no trace", encoding="utf-8")
    shown = turnout("simulate", *arguments, cwd=tmp_path)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith("turnout: ")
    assert shown.stderr.count("\n") == 1
    assert message in shown.stderr


def test_version_says_what_was_built(tmp_path: Path) -> None:
    shown = turnout("version", cwd=tmp_path)
    assert json.loads(shown.stdout)["profile"] in {"release", "debug"}


@pytest.mark.skipif(not TRACE.exists(), reason="the recorded traces are not on this machine")
def test_real_sessions_past_capacity(tmp_path: Path) -> None:
    options = ["--replicas", 4, "--kv-tokens", 788_000, "--engine", "qwen3-8b-h200", "--concurrency", 64]
    arguments = [*options, "--duration", 3600, "--policy", "open", "--policy", "misa-t", "--json", "out.json"]
    shown = turnout("simulate", "--trace", TRACE, *arguments, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    free, quota = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["runs"]
    assert free["prefix_hit_share"] < 0.3
    assert quota["prefix_hit_share"] > 0.8
    assert quota["finished_sessions"] > 1.3 * free["finished_sessions"]
    assert quota["held_turns"] > 0 == free["held_turns"]
