"""Experiments past capacity: the ablation on the mixture, agents at rising load, a flood, leases, growth."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from turnout.experiment import pictures
from turnout.experiment.arms import Arm, arm
from turnout.experiment.outcome import Claim, Outcome, bounds, estimate, part
from turnout.experiment.plan import (
    ADMITTING,
    BASELINES,
    CALM_LOAD,
    HIGH_LOAD,
    NEAR,
    REACHED,
    SCALE,
    WIN,
    Experiment,
    Size,
    caps,
    cross,
    filling,
    fleet,
    outstanding,
)

if TYPE_CHECKING:
    from pathlib import Path

    from turnout.experiment.job import Job

RATE: Final = "sessions_per_hour"
AGENTS: Final[dict[str, Any]] = {"shares": {"agent": 1.0}, "sessions": 240, "scale": SCALE}
MIXED: Final[dict[str, Any]] = {"sessions": 400, "scale": SCALE}
LADDER: Final = ("open", "static-cap", "session-admission", "misa", "misa-t", "block-time")
OVERLOADS: Final = (0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0)


def percent(ratio: Any) -> str:  # noqa: ANN401 - an Estimate
    """A ratio as a gain in percent, with its interval."""
    half = "" if ratio.half != ratio.half else f" ± {100 * ratio.half:.1f}"
    return f"{100 * (ratio.mean - 1):+.1f}{half} %"


def best_cap(outcome: Outcome, cell: dict[str, Any] | None = None) -> str:
    """The best of the swept static caps."""
    return outcome.best(RATE, cell=cell, among=[name for name in outcome.arms if name.startswith("static-cap")])


# --- mixture ---


def _mixture_jobs(size: Size) -> list[Job]:
    quotas = Arm("misa-t + cap", "misa-t", {"session_cap": True})
    arms = [*BASELINES, *caps(size, [12, 16, 20, 24, 28, 32, 40]), *ADMITTING, quotas]
    jobs = []
    for concurrency in size.some([160, 320], [0]):
        at = concurrency * size.replicas // 4
        setup = fleet(size, 3_600, concurrency=at)
        jobs += cross(size, arms, "mixed", MIXED, setup, {"outstanding": at})
    return jobs


def _mixture_judge(outcome: Outcome) -> list[Claim]:
    claims = []
    for cell in outcome.cells:
        where = f"{cell['outstanding']} sessions outstanding"
        arms = [best_cap(outcome, cell) if name == "static-cap" else name for name in LADDER]
        steps = [outcome.ratio(upper, lower, RATE, cell=cell) for lower, upper in itertools.pairwise(arms)]
        came = ", ".join(f"{name} {percent(step)}" for name, step in zip(arms[1:], steps, strict=True))
        rises = all(step.mean > 1 for step in steps)
        claims.append(Claim(f"{where}: each arm of {' < '.join(LADDER)} above the one before", came, rises))
        best = outcome.best(RATE, cell=cell)
        share = outcome.ratio("block-time", best, RATE, cell=cell)
        claims.append(
            Claim(
                f"{where}: block-time is the best arm",
                f"best: {best}, block-time {percent(share)} of it",
                best == "block-time",
            )
        )
        for name in ("misa-t", "misa-t + cap", "block-time"):
            off = estimate(outcome.values(name, "steady_tv_points", cell=cell))
            claims.append(
                Claim(
                    f"{where}: {name} completes the mixture within 1 point of the target",
                    f"{off.show('.2f')} points",
                    off.mean <= 1,
                )
            )
        least, kept = bounds(outcome, cell).least, bounds(outcome, cell).kept
        rate = outcome.mean("block-time", RATE, cell=cell)
        claims.append(
            Claim(
                f"{where}: block-time reaches 95 % of the least bound",
                f"{100 * part(rate, least):.0f} % of {least:,.0f}/h (GPU work, critical path); "
                f"{100 * part(rate, kept):.0f} % of {kept:,.0f}/h (Little)",
                rate >= REACHED * least,
            )
        )
    return claims


def _mixture_draw(outcome: Outcome, folder: Path) -> list[Path]:
    paths = []
    for cell in outcome.cells:
        path = folder / f"mixture-{cell['outstanding']}.png"
        rows = {name: estimate(outcome.values(name, RATE, cell=cell)) for name in outcome.arms}
        found = bounds(outcome, cell)
        lines = {"GPU work": found.gpu, "Little, caches kept": found.kept}
        title = f"Mixture, {cell['outstanding']} sessions outstanding: finished sessions per hour"
        pictures.bars(path, title, rows, "sessions per hour", lines)
        paths.append(path)
    return paths


MIXTURE: Final = Experiment(
    "mixture",
    "The ablation of MISA-T on the embedded mixture",
    "Agents, long and short single answers in shares of 48.6, 33.1 and 18.3 %, past capacity. Routers that "
    "admit everybody, static caps swept over sessions per replica, then one mechanism after another.",
    _mixture_jobs,
    _mixture_judge,
    _mixture_draw,
)


# --- overload ---


def _overload_jobs(size: Size) -> list[Job]:
    fill = filling(size, "blend", AGENTS)
    arms = [*BASELINES, *caps(size, [12, 16, 20, 24, 32]), *ADMITTING]
    jobs = []
    for factor in size.some(OVERLOADS, [1, 4]):
        setup = fleet(size, 1_800, concurrency=outstanding(factor, fill))
        jobs += cross(size, arms, "blend", AGENTS, setup, {"load": factor})
    return jobs


def _overload_judge(outcome: Outcome) -> list[Claim]:
    loads = outcome.axis("load")
    high = [at for at in loads if at >= HIGH_LOAD]
    claims = []
    for other in ("misa-t", "lease-gate"):
        ratios = {at: outcome.ratio("block-time", other, RATE, cell={"load": at}) for at in high}
        came = ", ".join(f"{at:g}x: {percent(ratio)}" for at, ratio in ratios.items())
        claims.append(
            Claim(
                f"block-time at least 10 % above {other} at 2x to 4x", came, all(r.mean >= WIN for r in ratios.values())
            )
        )
    peak = max(outcome.mean("block-time", RATE, cell={"load": at}) for at in loads)
    shares = {at: part(outcome.mean("block-time", RATE, cell={"load": at}), peak) for at in high}
    came = ", ".join(f"{at:g}x: {100 * share:.0f} %" for at, share in shares.items())
    claims.append(Claim("block-time keeps 95 % of its own peak up to 4x", came, min(shares.values()) >= REACHED))
    shares = {
        at: part(outcome.mean("block-time", RATE, cell={"load": at}), bounds(outcome, {"load": at}).least)
        for at in high
    }
    came = ", ".join(f"{at:g}x: {100 * share:.0f} %" for at, share in shares.items())
    claims.append(
        Claim(
            "block-time reaches 95 % of the least bound (GPU work, critical path) up to 4x",
            came,
            min(shares.values()) >= REACHED,
        )
    )
    for at in [at for at in loads if at <= CALM_LOAD]:
        cell = {"load": at}
        best = outcome.best(RATE, cell=cell)
        ratio = outcome.ratio("block-time", best, RATE, cell=cell)
        claims.append(
            Claim(f"{at:g}x: block-time within 2 % of the best arm", f"{percent(ratio)} of {best}", ratio.mean >= NEAR)
        )
        hold = outcome.mean("block-time", "hold_s", "max", cell=cell)
        claims.append(Claim(f"{at:g}x: block-time holds nobody", f"longest hold {hold:.1f} s", hold == 0))
    return claims


def _overload_draw(outcome: Outcome, folder: Path) -> list[Path]:
    loads = outcome.axis("load")
    rate = folder / "overload.png"
    fixed = [name for name in outcome.arms if not name.startswith("static-cap")]
    rows = {name: [estimate(outcome.values(name, RATE, cell={"load": at})) for at in loads] for name in fixed}
    swept = [best_cap(outcome, {"load": at}) for at in loads]
    rows["static cap, best at each load"] = [
        estimate(outcome.values(name, RATE, cell={"load": at})) for name, at in zip(swept, loads, strict=True)
    ]
    found = [bounds(outcome, {"load": at}) for at in loads]
    bound = {
        "GPU work": [entry.gpu for entry in found],
        "critical path": [entry.path for entry in found],
        "Little, caches kept": [entry.kept for entry in found],
    }
    labels = ("load: sessions outstanding, in multiples of those that fill the KV", "finished sessions per hour")
    pictures.lines(rate, "Agents at rising load: finished sessions per hour", loads, rows, labels, bound)
    over = folder / "over-time.png"
    high = {"load": 2.0}
    shown = ["open", best_cap(outcome, high), "lease-gate", "misa-t", "block-time"]
    runs = {name: outcome.picked(name, high)[0]["series"] for name in shown}
    setup = next(job.setup for job in outcome.jobs)
    title = "Agents at twice the load that fills the KV: what is charged, held and served from cache"
    pictures.over_time(over, title, runs, setup["replicas"] * setup["kv_tokens"])
    return [rate, over]


OVERLOAD: Final = Experiment(
    "overload",
    "Agents from half to four times of capacity",
    "Agents alone. A load of 1 is as many sessions outstanding as fill the KV of the fleet together, "
    "at the pace of full batches.",
    _overload_jobs,
    _overload_judge,
    _overload_draw,
)


# --- isolation ---

_CALM: Final = 24
_FLOOD: Final = 4 * _CALM


def _isolation_jobs(size: Size) -> list[Job]:
    share = {"agent": 0.5}
    guaranteed = [
        Arm("block-time, half guaranteed", "block-time", guarantee=share),
        Arm("lease-gate, half guaranteed", "lease-gate", guarantee=share),
    ]
    arms = [arm("open"), arm("cache-aware"), *caps(size, [16, 20, 24]), *ADMITTING, *guaranteed]
    jobs = []
    for flood in (1, 4):
        calm = _CALM * size.replicas // 4
        numbers = {"agent": calm, "rlvr": calm * flood}
        # Who sends more is not entitled to more.
        arguments = {"numbers": numbers, "each": 60, "targets": {"agent": 0.5, "rlvr": 0.5}, "scale": SCALE}
        setup = fleet(size, 2_400, concurrency=sum(numbers.values()), repeat=False)
        jobs += cross(size, arms, "clients", arguments, setup, {"flood": flood})
    return jobs


def _victim(outcome: Outcome, name: str) -> Any:  # noqa: ANN401 - an Estimate
    return outcome.ratio(name, name, "steady_by_workload", "agent", cell={"flood": 4}, under={"flood": 1})


def _isolation_judge(outcome: Outcome) -> list[Claim]:
    return [
        Claim(
            f"{name}: the other workload loses less than 5 % to a flood",
            percent(_victim(outcome, name)),
            _victim(outcome, name).mean > REACHED,
        )
        for name in outcome.arms
        if name.startswith(("block-time", "misa-t", "lease-gate"))
    ]


def _isolation_draw(outcome: Outcome, folder: Path) -> list[Path]:
    path = folder / "isolation.png"
    rows = {name: _victim(outcome, name) for name in outcome.arms}
    pictures.bars(
        path,
        "What is left of the agents' throughput when the other workload sends four times as much",
        rows,
        "share of the throughput without flood",
        {"5 % lost": 0.95},
    )
    return [path]


ISOLATION: Final = Experiment(
    "isolation",
    "A flood by one workload",
    "24 agent clients and 24 clients with long single answers share the fleet, which they about fill; "
    "then the latter become four times as many, while both are still to finish as often. What the "
    "agents finish with the flood is compared with what they finish without it, by arm.",
    _isolation_jobs,
    _isolation_judge,
    _isolation_draw,
)


# --- lease and growth ---


def _lease_jobs(size: Size) -> list[Job]:
    fill = filling(size, "blend", AGENTS)
    arms = [
        arm("block-time", f"block-time kappa={kappa:g}", kappa=kappa)
        for kappa in size.some([0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 16.0], [0, 3])
    ]
    arms += [
        arm("lease-gate", f"lease-gate {lease:g} s", lease_s=lease)
        for lease in size.some([0.0, 5.0, 15.0, 30.0, 60.0, 600.0], [3])
    ]
    jobs = []
    for factor in size.some([1.0, 2.0, 4.0], [1]):
        setup = fleet(size, 1_800, concurrency=outstanding(factor, fill))
        jobs += cross(size, arms, "blend", AGENTS, setup, {"load": factor})
    return jobs


def _lease_judge(outcome: Outcome) -> list[Claim]:
    claims = []
    for cell in outcome.cells:
        best = outcome.best(RATE, cell=cell)
        ratio = outcome.ratio("block-time kappa=1", best, RATE, cell=cell)
        claims.append(
            Claim(
                f"{cell['load']:g}x: no other lease is more than 2 % above kappa = 1",
                f"{percent(ratio)} of {best}",
                ratio.mean >= NEAR,
            )
        )
    return claims


def _per_cell_bars(name: str, title: str, key: str) -> Any:  # noqa: ANN401 - a draw function
    def draw(outcome: Outcome, folder: Path) -> list[Path]:
        paths = []
        for cell in outcome.cells:
            path = folder / f"{name}-{cell[key]}.png"
            arms = [chosen for chosen in outcome.arms if outcome.picked(chosen, cell)]
            rows = {chosen: estimate(outcome.values(chosen, RATE, cell=cell)) for chosen in arms}
            pictures.bars(path, f"{title}, {key} {cell[key]}", rows, "finished sessions per hour")
            paths.append(path)
        return paths

    return draw


LEASE: Final = Experiment(
    "lease",
    "How long an idle session keeps its KV",
    "Agents past capacity. Block-time leases of kappa B / P seconds, kappa swept, and fixed leases behind a gate.",
    _lease_jobs,
    _lease_judge,
    _per_cell_bars("lease", "Leases", "load"),
)


def _growth_jobs(size: Size) -> list[Job]:
    arms = [
        arm("block-time"),
        arm("block-time", "block-time, growth reserved", reserve_growth=True),
        arm("lease-gate"),
        arm("misa-t"),
    ]
    jobs = []
    for kind in ("agent", "rlvr"):
        arguments = {"shares": {kind: 1.0}, "sessions": 240, "scale": SCALE}
        setup = fleet(size, 1_800, concurrency=outstanding(2.0, filling(size, "blend", arguments)))
        jobs += cross(size, arms, "blend", arguments, setup, {"sessions": kind})
    return jobs


def _growth_judge(outcome: Outcome) -> list[Claim]:
    claims = []
    for cell in outcome.cells:
        ratio = outcome.ratio("block-time, growth reserved", "block-time", RATE, cell=cell)
        claims.append(
            Claim(f"{cell['sessions']}: room reserved for growth gains throughput", percent(ratio), ratio.mean > 1)
        )
        spared = (
            outcome.mean("block-time, growth reserved", "preemptions", cell=cell),
            outcome.mean("block-time", "preemptions", cell=cell),
        )
        claims.append(
            Claim(
                f"{cell['sessions']}: and it spares preemptions",
                f"{spared[0]:,.0f} instead of {spared[1]:,.0f}",
                spared[0] < spared[1],
            )
        )
    return claims


GROWTH: Final = Experiment(
    "growth",
    "Room for what sessions grow to",
    "Agents, and long single answers, at twice the load that fills the KV: a ceiling on what is "
    "there, and one on what it will become.",
    _growth_jobs,
    _growth_judge,
    _per_cell_bars("growth", "Growth", "sessions"),
)
