"""`turnout experiment`: plans, statistics, kept runs, equal bytes."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from turnout.errors import InvalidArgument, UnknownPolicy
from turnout.experiment.arms import Arm, Guaranteed, Misled, arm, make
from turnout.experiment.catalogue import EXPERIMENTS
from turnout.experiment.job import Job, play
from turnout.experiment.outcome import Outcome, estimate
from turnout.experiment.plan import NORMAL, QUICK
from turnout.experiment.pool import play_all
from turnout.policies import FleetView, Limits, MisaT

if TYPE_CHECKING:
    from pathlib import Path

SETUP = {"replicas": 1, "kv_tokens": 98_500.0, "engine": "qwen3-8b-h200", "concurrency": 20, "duration_s": 60}
MIXED = {"sessions": 40, "scale": 8.0}


def job(**changes) -> Job:
    setup = {**SETUP, "repeat": True}
    return dataclasses.replace(Job(arm("misa-t"), "mixed", MIXED, 0, setup), **changes)


def experiment(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "turnout.cli", "experiment", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=250)  # noqa: S603


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_plans_compare_like_with_like(name: str) -> None:
    for size in (QUICK, NORMAL):
        jobs = EXPERIMENTS[name].jobs(size)
        assert {chosen.seed for chosen in jobs} == set(size.seeds)
        for cell in Outcome(jobs, [{}] * len(jobs)).cells:
            here = [chosen for chosen in jobs if chosen.cell == cell]
            assert len({json.dumps([chosen.load, chosen.load_args, chosen.setup]) for chosen in here}) == 1
            assert len({(chosen.arm.name, chosen.seed) for chosen in here}) == len(here)
        for chosen in {planned.arm.name: planned.arm for planned in jobs}.values():
            assert make(chosen).limits(FleetView.build(["r0"], ["a"], kv_tokens=1_000), Limits()) is not None


def test_the_normal_size_has_three_seeds_or_more() -> None:
    assert len(NORMAL.seeds) >= 3


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_to_its_report(name: str, tmp_path: Path) -> None:
    """In this process: what two seeds of a minute say is no matter, that every picture and claim can be made is."""
    chosen = EXPERIMENTS[name]
    tiny = QUICK._replace(duration=0.02)
    planned = chosen.jobs(tiny)
    played: dict[str, dict] = {}
    for one in planned:
        if one.key() not in played:
            played[one.key()] = play(one)
    outcome = Outcome(planned, [played[one.key()] for one in planned])
    claims = chosen.judge(outcome)
    assert claims
    assert all(claim.expected and claim.came for claim in claims)
    drawn = chosen.draw(outcome, tmp_path)
    assert drawn
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_one_seed_gives_the_same_bytes_and_what_is_kept_is_not_played_again(tmp_path: Path) -> None:
    files = {}
    for out in ("a", "b"):
        shown = experiment("lease", "--quick", "--out", out, "--jobs", 2, cwd=tmp_path)
        assert shown.returncode == 0, shown.stderr
        folder = tmp_path / out / "lease"
        files[out] = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    assert files["a"] == files["b"]
    assert {"report.html", "results.json", "summary.md"} < set(files["a"])
    report = files["a"]["report.html"].decode()
    assert report.count("data:image/png;base64,") == sum(name.endswith(".png") for name in files["a"])
    assert "src='data:" in report
    assert "http" not in report

    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "a" / "runs").iterdir()}
    assert kept
    assert experiment("lease", "--quick", "--out", "a", cwd=tmp_path).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a" / "runs").iterdir()} == kept


def test_an_interrupted_experiment_goes_on(tmp_path: Path) -> None:
    jobs = [job(seed=seed) for seed in (0, 1)]
    told: list[tuple[int, int]] = []
    whole = play_all(jobs, tmp_path, processes=1, done=lambda *now: told.append(now))
    assert told == [(0, 2), (1, 2), (2, 2)]
    first, second = (tmp_path / f"{one.key()}.json" for one in jobs)
    first.unlink()
    second.write_text(second.read_text(encoding="utf-8")[:100], encoding="utf-8")
    assert play_all(jobs, tmp_path, processes=1) == whole
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}


def test_the_key_is_what_decides_the_numbers() -> None:
    base = job()
    assert base.key() == job(cell={"load": 1.0}).key() == job(arm=arm("misa-t", "another name")).key()
    others = [
        job(seed=1), job(arm=arm("misa")), job(load_args={**MIXED, "sessions": 41}),
        job(arm=Arm("misa-t", "misa-t", noise=0.1)),
        job(setup={**SETUP, "repeat": True, "decode_factor": 2.0}),
    ]  # fmt: skip
    assert len({base.key(), *(other.key() for other in others)}) == 6


def test_records_have_the_metrics_and_their_bounds() -> None:
    record = play(job(setup={**SETUP, "repeat": True, "duration_s": 200}))["record"]
    assert record["sessions_per_hour"] == pytest.approx(sum(record["steady_by_workload"].values()), rel=1e-3)
    assert record["sessions_per_hour"] <= record["critical_path_per_hour"]
    assert record["prefix_hit_share"] <= record["unevicted_hit_share"]
    grouped = play(
        job(load="groups", load_args={"number": 8, "samples": 4, "scale": 16.0}, setup={**SETUP, "repeat": True})
    )
    assert grouped["record"]["groups"] > 0
    assert 0 < grouped["record"]["group_s_p50"] <= grouped["record"]["group_s_p99"]


def test_a_run_without_an_end_in_time_plays_the_list_once() -> None:
    record = play(job(setup={**SETUP, "repeat": False, "duration_s": None, "feed": [0.5, 0.1]}))["record"]
    assert record["finished_sessions"] == 40
    assert record["sessions_per_hour"] == pytest.approx(3600 * 40 / record["makespan_s"], rel=1e-3)


def test_estimates() -> None:
    assert estimate([5.0]).show() == "5"
    assert math.isnan(estimate([]).mean)
    assert estimate([]).show() == "-"
    wide = estimate([1.0, 3.0])
    assert (wide.mean, round(wide.half, 3)) == (2.0, 12.706)
    assert estimate(np.arange(30.0)).half == pytest.approx(2.1 * np.std(np.arange(30.0), ddof=1) / math.sqrt(30))


def test_comparisons_are_paired_by_seed() -> None:
    """A gain of exactly 10 % under every seed has no interval, however much the seeds differ."""
    jobs, results = [], []
    for name, factor in (("open", 1.0), ("misa", 1.1)):
        for seed, base in ((1, 200.0), (0, 100.0), (2, 400.0)):
            jobs.append(job(arm=arm(name), seed=seed, cell={"load": 1.0}))
            results.append({"record": {"sessions_per_hour": factor * base}})
    outcome = Outcome(jobs, results)
    ratio = outcome.ratio("misa", "open", "sessions_per_hour")
    assert ratio.mean == pytest.approx(1.1)
    assert ratio.half == pytest.approx(0.0, abs=1e-12)
    assert outcome.values("open", "sessions_per_hour").tolist() == [100.0, 200.0, 400.0]
    assert outcome.best("sessions_per_hour") == "misa"
    assert outcome.axis("load") == [1.0]


class Reader:
    """Answers with what it reads."""

    def limits(self, view: FleetView, last: Limits) -> Limits:  # noqa: ARG002 - the contract's signature
        return Limits(growth_tokens=view.growth_tokens, memory={"step": np.array([view.step])})


def test_policies_are_misled() -> None:
    views = [
        dataclasses.replace(FleetView.build(["r0"], ["a"], kv_tokens=1_000, growth_tokens=8.0), step=at)
        for at in range(4)
    ]
    doubled = Misled(Reader(), 2.0, 0.0, 0)
    assert doubled.limits(views[0], Limits()).growth_tokens.tolist() == [16.0]
    late = Misled(Reader(), 1.0, 0.0, 2)
    assert [int(late.limits(view, Limits()).memory["step"][0]) for view in views] == [0, 0, 0, 1]
    noisy = [Misled(Reader(), 1.0, 0.3, 0).limits(view, Limits()).growth_tokens[0] for view in views]
    assert len(set(noisy)) == 4
    assert noisy == [Misled(Reader(), 1.0, 0.3, 0).limits(view, Limits()).growth_tokens[0] for view in views]


def test_guarantees_are_shares_of_the_fleet() -> None:
    view = FleetView.build(["r0", "r1"], ["a", "b"], kv_tokens=1_000)
    limits = Guaranteed(MisaT(), {"b": 0.25}).limits(view, Limits())
    assert limits.guarantee_tokens.tolist() == [0.0, 500.0]


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(UnknownPolicy):
        make(arm("fifo"))
    with pytest.raises(InvalidArgument, match=r"^args: got"):
        make(arm("fifo", depth=3))
    for arguments, said in (
        (["nothing"], "name: got 'nothing'"),
        (["lease", "--jobs", 0], "jobs: got 0"),
        (["lease", "--quick", "--full"], "quick: got both"),
    ):
        shown = experiment(*arguments, cwd=tmp_path)
        assert shown.returncode == 2
        assert said in shown.stderr
    assert list(tmp_path.iterdir()) == []
