"""Experiments on shapes of load: groups, hot prompts, nothing to reuse, one batch; and on what is told wrongly."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from turnout.experiment import pictures
from turnout.experiment.arms import Arm, arm
from turnout.experiment.outcome import Claim, Outcome, bounds, estimate
from turnout.experiment.plan import (
    ADMITTING,
    BASELINES,
    CALM_LOAD,
    NEAR,
    REACHED,
    SCALE,
    STEADY,
    Experiment,
    Size,
    caps,
    cross,
    filling,
    fleet,
    outstanding,
)
from turnout.experiment.saturated import MIXED, RATE, percent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from turnout.experiment.job import Job

GROUPS: Final[dict[str, Any]] = {"number": 200, "samples": 16, "scale": SCALE}
CHAT: Final[dict[str, Any]] = {"sessions": 4_000, "scale": SCALE}
HOT: Final[dict[str, Any]] = {"sessions": 240, "scale": SCALE}


def _bars(
    name: str, title: str, key: str, path: tuple[str, ...] = (RATE,), label: str = "finished sessions per hour"
) -> Callable[[Outcome, Path], list[Path]]:
    """A draw function: one picture of bars per cell."""

    def draw(outcome: Outcome, folder: Path) -> list[Path]:
        paths = []
        for cell in outcome.cells:
            file = folder / f"{name}-{cell[key]}.png".replace(" ", "-")
            arms = [chosen for chosen in outcome.arms if outcome.picked(chosen, cell)]
            rows = {chosen: estimate(outcome.values(chosen, *path, cell=cell)) for chosen in arms}
            found = bounds(outcome, cell)
            lines = {"GPU work": found.gpu} if path == (RATE,) else None
            pictures.bars(file, f"{title}, {key} {cell[key]}", rows, label, lines)
            paths.append(file)
        return paths

    return draw


# --- groups ---


def _groups_jobs(size: Size) -> list[Job]:
    arms = [*BASELINES, *ADMITTING]
    fill = filling(size, "groups", GROUPS)
    jobs = []
    for factor in size.some([0.5, 2.0, 4.0], [1]):
        setup = fleet(size, 900, concurrency=outstanding(factor, fill))
        jobs += cross(size, arms, "groups", GROUPS, setup, {"load": factor})
    return jobs


def _groups_judge(outcome: Outcome) -> list[Claim]:
    claims = []
    for cell in outcome.cells:
        where = f"{cell['load']:g}x"
        best = outcome.best(RATE, cell=cell)
        ratio = outcome.ratio("block-time", best, RATE, cell=cell)
        claims.append(
            Claim(f"{where}: block-time within 2 % of the best arm", f"{percent(ratio)} of {best}", ratio.mean >= NEAR)
        )
        times = {name: outcome.mean(name, "group_s_p50", cell=cell) for name in outcome.arms}
        quick = min(times, key=lambda name: times[name])
        came = ", ".join(f"{name} {times[name]:.1f} s" for name in ("block-time", quick, "round-robin"))
        claims.append(
            Claim(
                f"{where}: and its groups take no more than 2 % longer than the quickest arm's",
                came,
                times["block-time"] <= 1.02 * times[quick],
            )
        )
    return claims


GROUP: Final = Experiment(
    "groups",
    "Groups of 16 samples that share 30,000 tokens",
    "One turn per sample, a prompt of 30,000 tokens that the 16 samples of a group share, answers of 8,000 tokens in "
    "the median (divided by 8 as all lengths). A load of 1 counts every sample with a prompt of its own, so what is "
    "shared is a gain.",
    _groups_jobs,
    _groups_judge,
    _bars("groups", "Groups of 16", "load"),
)


# --- skew ---


def _skew_jobs(size: Size) -> list[Job]:
    arms = [*BASELINES, *caps(size, [12, 16, 20, 24]), *ADMITTING]
    fill = filling(size, "hot", HOT)
    jobs = []
    for factor in size.some([0.7, 2.0], [1]):
        setup = fleet(size, 1_800, concurrency=outstanding(factor, fill))
        jobs += cross(size, arms, "hot", HOT, setup, {"load": factor})
    return jobs


def _against(others: tuple[str, ...], text: str) -> Callable[[Outcome], list[Claim]]:
    def judge(outcome: Outcome) -> list[Claim]:
        claims = []
        for cell in outcome.cells:
            where = ", ".join(f"{key} {value:g}" for key, value in cell.items())
            other = outcome.best(RATE, cell=cell, among=[name for name in outcome.arms if not others or name in others])
            ratio = outcome.ratio("block-time", other, RATE, cell=cell)
            claims.append(Claim(f"{where}: block-time {text}", f"{percent(ratio)} of {other}", ratio.mean >= NEAR))
        return claims

    return judge


SKEW: Final = Experiment(
    "skew",
    "System prompts of unequal popularity",
    "Agents with one of 16 system prompts of 16,000 tokens, the most popular of which half of them share: "
    "an affinity for the prefix alone would send them all to one replica.",
    _skew_jobs,
    _against((), "within 2 % of the best arm"),
    _bars("skew", "Hot prompts", "load"),
)


# --- no_reuse ---


def _no_reuse_jobs(size: Size) -> list[Job]:
    fill = filling(size, "chat", CHAT)
    jobs = []
    for factor in size.some([0.5, 0.7, 2.0], [1]):
        setup = fleet(size, 240, concurrency=outstanding(factor, fill))
        jobs += cross(size, [*BASELINES, *ADMITTING], "chat", CHAT, setup, {"load": factor})
    return jobs


def _no_reuse_judge(outcome: Outcome) -> list[Claim]:
    claims = _against(("sticky-least-loaded",), "never worse than least-loaded (2 % allowed)")(outcome)
    for cell in outcome.cells:
        if cell["load"] <= CALM_LOAD:
            hold = outcome.mean("block-time", "hold_s", "max", cell=cell)
            claims.append(
                Claim(f"load {cell['load']:g}: block-time holds nobody", f"longest hold {hold:.1f} s", hold == 0)
            )
    return claims


NO_REUSE: Final = Experiment(
    "no_reuse",
    "Single turns that share nothing",
    "Prompts of 2,000 tokens and answers of 600 in the median, no two of which share a token: there is "
    "nothing to keep, so a router can only do harm.",
    _no_reuse_jobs,
    _no_reuse_judge,
    _bars("no-reuse", "No reuse", "load"),
)


# --- batch_makespan ---


def _batch_jobs(size: Size) -> list[Job]:
    jobs = []
    for first in (False, True):
        arguments = {"sessions": 60 if size.thin else 400, "scale": SCALE, "longest_first": first}
        setup = fleet(size, 3_600, concurrency=arguments["sessions"], repeat=False) | {"duration_s": None}
        arms = [arm("open"), arm("sticky-least-loaded"), *caps(size, [16, 20, 24]), *ADMITTING]
        jobs += cross(size, arms, "batch", arguments, setup, {"order": "longest first" if first else "as it comes"})
    return jobs


def _batch_judge(outcome: Outcome) -> list[Claim]:
    claims = []
    for cell in outcome.cells:
        ratio = outcome.ratio("block-time", "open", "makespan_s", cell=cell)
        claims.append(
            Claim(
                f"{cell['order']}: no win over open on a synchronous batch (within 5 %)",
                f"makespan {percent(ratio)}",
                abs(ratio.mean - 1) <= 1 - REACHED,
            )
        )
    cells = [{"order": "longest first"}, {"order": "as it comes"}]
    ratio = outcome.ratio("block-time", "block-time", "makespan_s", cell=cells[0], under=cells[1])
    claims.append(Claim("block-time: longest first shortens the batch", f"makespan {percent(ratio)}", ratio.mean < 1))
    return claims


BATCH: Final = Experiment(
    "batch_makespan",
    "One synchronous batch of the mixture",
    "400 sessions of the mixture at once, played to the end of the last one; as the list comes, and with the "
    "longest first, which a trainer can only guess.",
    _batch_jobs,
    _batch_judge,
    _bars("batch", "One batch: makespan", "order", ("makespan_s",), "seconds to the end of the last session"),
)


# --- sensitivity ---

_ROBUST: Final = (arm("open"), arm("misa"), arm("misa-t"), arm("lease-gate"), arm("block-time"))


def _misled(**fields: Any) -> list[Arm]:  # noqa: ANN401 - fields of Arm
    return [dataclasses.replace(chosen, **fields) for chosen in _ROBUST]


def _sensitivity_jobs(size: Size) -> list[Job]:
    concurrency = 40 * size.replicas
    base = fleet(size, 1_800, concurrency=concurrency)
    doubts: list[tuple[str, list[Arm], dict[str, Any], dict[str, Any]]] = [
        ("as it is", list(_ROBUST), MIXED, {}),
        ("estimates x 0.5", _misled(factor=0.5), MIXED, {}),
        ("estimates x 2", _misled(factor=2.0), MIXED, {}),
        ("estimates with 30 % noise", _misled(noise=0.3), MIXED, {}),
        ("30 s old", _misled(stale_steps=30), MIXED, {}),
        ("control every 10 s", list(_ROBUST), MIXED, {"control_period_s": 10.0}),
        ("cache events 2 s late, 5 % lost", list(_ROBUST), MIXED, {"feed": [2.0, 0.05]}),
        ("30 % wrong labels", list(_ROBUST), {**MIXED, "mislabelled": 0.3}, {}),
        ("prefill x 0.5", list(_ROBUST), MIXED, {"prefill_factor": 0.5}),
        ("prefill x 2", list(_ROBUST), MIXED, {"prefill_factor": 2.0}),
        ("decode x 0.5", list(_ROBUST), MIXED, {"decode_factor": 0.5}),
        ("decode x 2", list(_ROBUST), MIXED, {"decode_factor": 2.0}),
    ]
    jobs = []
    for name, arms, arguments, changes in size.some(doubts, [0, 2, 4]):
        jobs += cross(size, arms, "mixed", arguments, {**base, **changes}, {"doubt": name})
    return jobs


def _sensitivity_judge(outcome: Outcome) -> list[Claim]:
    claims = []
    for cell in outcome.cells:
        if "as it is" in cell.values():
            continue
        if cell["doubt"].startswith(("prefill", "decode")):
            best = outcome.best(RATE, cell=cell)
            ratio = outcome.ratio("block-time", best, RATE, cell=cell)
            claims.append(
                Claim(
                    f"{cell['doubt']}: block-time still within 2 % of the best",
                    f"{percent(ratio)} of {best}",
                    ratio.mean >= NEAR,
                )
            )
            continue
        ratio = outcome.ratio("block-time", "block-time", RATE, cell=cell, under={"doubt": "as it is"})
        claims.append(Claim(f"{cell['doubt']}: block-time loses less than 3 %", percent(ratio), ratio.mean >= STEADY))
        ratio = outcome.ratio("misa-t", "misa-t", RATE, cell=cell, under={"doubt": "as it is"})
        claims.append(Claim(f"{cell['doubt']}: misa-t loses less than 3 %", percent(ratio), ratio.mean >= STEADY))
    return claims


def _sensitivity_draw(outcome: Outcome, folder: Path) -> list[Path]:
    path = folder / "sensitivity.png"
    rows = {}
    for cell in outcome.cells:
        for name in ("block-time", "misa-t"):
            rows[f"{name}: {cell['doubt']}"] = outcome.ratio(name, "open", RATE, cell=cell)
    pictures.bars(
        path, "Sessions per hour against open under the same conditions", rows, "ratio to open", {"open": 1.0}
    )
    return [path]


SENSITIVITY: Final = Experiment(
    "sensitivity",
    "What is told wrongly, late or otherwise than modelled",
    "The mixture with 160 sessions outstanding. Estimators that are wrong for good or noisy, limits from a view that "
    "is old, labels that are exchanged, cache events that come late, and engines with other step times than the router "
    "was told.",
    _sensitivity_jobs,
    _sensitivity_judge,
    _sensitivity_draw,
)
