"""One run of an experiment as plain data, played, and kept under the content of its configuration."""

from __future__ import annotations

import functools
import hashlib
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

import turnout.simulate
from turnout import _core, policies
from turnout.experiment.arms import Arm, make
from turnout.simulate.bounds import needs
from turnout.simulate.engines import engine
from turnout.simulate.loads import load
from turnout.simulate.run import Setup, run

WARM_UP_SHARE: Final = 0.25
"""Part of a run with an end in time that the steady rate leaves out: caches fill, and all sessions began at once."""

SERIES: Final = (
    "time_s", "finished_sessions", "prompt_tokens", "cached_tokens", "charge_tokens", "used_tokens", "held_turns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """What is played, by whom, where.

    Attributes:
        arm: The policy.
        load: Name of the load.
        load_args: Its arguments but the seed.
        seed: Seed of the load and of the router's ties.
        setup: Fields of `Setup`; a `duration_s` of None = to the end of the list.
        cell: Where the run stands in the tables: not part of what decides its numbers.
    """

    arm: Arm
    load: str
    load_args: dict[str, Any]
    seed: int
    setup: dict[str, Any]
    cell: dict[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """Everything that decides the numbers; no clock, no path."""
        return {
            "arm": self.arm.config(),
            "load": self.load,
            "load_args": self.load_args,
            "seed": self.seed,
            "setup": self.setup,
        }

    def key(self) -> str:
        """Name of the run: equal exactly when the configuration and what plays it are."""
        text = json.dumps({"config": self.config(), "code": code()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.cache
def code() -> str:
    """What plays runs: the version and a digest of the simulator, the policies and the core."""
    digest = hashlib.sha256()
    files = [Path(_core.__file__), Path(__file__), Path(__file__).with_name("arms.py")]
    for package in (turnout.simulate, policies):
        files += sorted(Path(package.__file__ or "").parent.glob("*.py"))
    for path in files:
        digest.update(path.read_bytes())
    return f"{_core.build_info()['version']}-{digest.hexdigest()[:16]}"


@functools.lru_cache(maxsize=8)
def _scenario(name: str, arguments: str, seed: int) -> Any:  # noqa: ANN401 - a Scenario
    return load(name, json.loads(arguments), seed)


def play(job: Job) -> dict[str, Any]:
    """Play a job.

    Args:
        job: The job.

    Returns:
        `{"config", "record", "series"}`: plain numbers, the same for the same job.
    """
    scenario = _scenario(job.load, json.dumps(job.load_args), job.seed)
    setup = _setup(job.setup)
    done = run(job.arm.policy, job.seed, scenario, setup, decide=make(job.arm))
    record = done.record
    columns = {
        name: np.frombuffer(column, np.float64 if name.endswith("_s") else np.int64)
        for name, column in done.finishes.items()
    }
    record |= _steady(columns, scenario, setup, record)
    record |= _bounds(record, scenario, setup)
    if "samples" in scenario.config:
        record |= _groups(columns, int(scenario.config["samples"]))
    series = {name: [round(value, 3) for value in np.frombuffer(done.series[name]).tolist()] for name in SERIES}
    return {"config": job.config(), "record": record, "series": series}


def _setup(fields: dict[str, Any]) -> Setup:
    """The setup of a job; JSON knows neither infinity nor tuples."""
    duration_s, feed = fields["duration_s"], fields.get("feed")
    return Setup(
        **{
            **fields,
            "duration_s": math.inf if duration_s is None else duration_s,
            "feed": None if feed is None else tuple(feed),
        }
    )


def _steady(columns: dict[str, Any], scenario: Any, setup: Setup, record: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """Sessions per hour after the warm-up, overall and by workload, and how long the finished ones took."""
    end = setup.duration_s if math.isfinite(setup.duration_s) else record["makespan_s"]
    begin = WARM_UP_SHARE * end if math.isfinite(setup.duration_s) else 0.0
    counted = columns["finished_s"] >= begin
    of = scenario.session_workload[columns["session"][counted]]
    per_hour = 3600.0 / max(end - begin, 1e-9)
    counts = np.bincount(of, minlength=len(scenario.workloads))
    took = (columns["finished_s"] - columns["started_s"])[counted]
    targets = scenario.targets / scenario.targets.sum()
    share = counts / max(counts.sum(), 1)
    return {
        "sessions_per_hour": round(per_hour * float(counts.sum()), 3),
        "steady_by_workload": {
            name: round(per_hour * float(count), 3) for name, count in zip(scenario.workloads, counts, strict=True)
        },
        "steady_tv_points": round(50.0 * float(np.abs(share - targets).sum()), 3),
        "session_s_mean": round(float(took.mean()), 3) if took.size else None,
        "reprefill_per_session": round(record["reprefill_tokens"] / max(record["finished_sessions"], 1), 1),
    }


def _bounds(record: dict[str, Any], scenario: Any, setup: Setup) -> dict[str, Any]:  # noqa: ANN401
    """Sessions per hour that no policy exceeds, by what limits them."""
    model = engine(setup.engine).slowed(setup.prefill_factor, setup.decode_factor)
    found = needs(scenario, model, setup.kv_tokens)
    kv = setup.replicas * setup.kv_tokens
    busy = record["least_gpu_share"]
    return {
        "gpu_sessions_per_hour": round(record["finished_sessions_per_hour"] / busy, 1) if busy else None,
        "little_kept_per_hour": round(3600.0 * kv / found.token_seconds, 1),
        "critical_path_per_hour": round(3600.0 * setup.concurrency / found.alone_s, 1),
        "sessions_that_fill_kv": round(kv / found.context_tokens, 1),
    }


def _groups(columns: dict[str, Any], samples: int) -> dict[str, Any]:
    """Time from the first submit to the last completion of the groups that finished, s."""
    place = columns["session"] // samples + 10**6 * columns["lap"]
    names, of, counts = np.unique(place, return_inverse=True, return_counts=True)
    first, last = np.full(len(names), np.inf), np.zeros(len(names))
    np.minimum.at(first, of, columns["started_s"])
    np.maximum.at(last, of, columns["finished_s"])
    took = (last - first)[counts == samples]
    if not took.size:
        return {"groups": 0, "group_s_p50": None, "group_s_p99": None}
    p50, p99 = np.quantile(took, [0.5, 0.99], method="inverted_cdf")
    return {"groups": int(took.size), "group_s_p50": round(float(p50), 3), "group_s_p99": round(float(p99), 3)}
