"""Pictures of experiments: bars of arms, lines over a coordinate, one run over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")

from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from turnout.experiment.outcome import Estimate

DPI = 100
WINDOWS = 60
_SMALL = 100
_REACH = 1.15
_ROOM = 1.25
_OURS = "#c0392b"
_COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf", "#222222",
    "#88aa66", "#005577",
)  # fmt: skip
_MARKERS = "osD^vP<>Xp"


def bars(
    path: Path, title: str, rows: Mapping[str, Estimate], label: str, lines: Mapping[str, float] | None = None
) -> None:
    """One bar per arm with its interval, and bounds as lines.

    Args:
        path: PNG file.
        title: One line.
        rows: Estimates by arm, drawn from the top.
        label: What is measured, with its unit.
        lines: Bounds by name.
    """
    figure, axis = plt.subplots(figsize=(8.6, 1.5 + 0.3 * len(rows)), layout="constrained")
    names = list(rows)
    means = [rows[name].mean for name in names]
    halves = np.nan_to_num([rows[name].half for name in names])
    colours = [_OURS if name.startswith("block-time") else "#7f9db9" for name in names]
    axis.barh(names, means, xerr=halves, color=colours, height=0.7, error_kw={"linewidth": 1, "capsize": 2})
    for at, mean in enumerate(means):
        place = (mean + halves[at], at)
        axis.annotate(f" {mean:{',.3g' if mean < _SMALL else ',.0f'}}", place, va="center", fontsize=8)
    ends = [mean + half for mean, half in zip(means, halves, strict=True) if mean + half > 0]
    reach = max(ends, default=1.0)
    for number, (name, value) in enumerate((lines or {}).items()):
        # A bound far away would leave no room for what is compared: it is named alone.
        near = value <= _REACH * reach
        style: dict[str, Any] = {"color": "0.25", "linestyle": ("--", ":", "-.")[number % 3], "linewidth": 1.1}
        label_of = name if near else f"{name}: {value:,.0f}, outside"
        axis.plot([value if near else np.nan] * 2, [-0.6, len(names) - 0.4], label=label_of, **style)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.15 * reach)
    axis.margins(y=0.01)
    _dress(axis, title, label, None)
    axis.grid(visible=False, axis="y")
    if lines:
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    _save(figure, path)


def lines(  # noqa: PLR0913, PLR0917 - what a picture says
    path: Path,
    title: str,
    xs: Sequence[float],
    rows: Mapping[str, Sequence[Estimate]],
    labels: tuple[str, str],
    bound: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """One line per arm over a coordinate, block-time with a band for its interval, and bounds as broken lines.

    Args:
        path: PNG file.
        title: One line.
        xs: The coordinate.
        rows: Estimates by arm, one per value of the coordinate.
        labels: What stands on the axes.
        bound: Bounds by name.
    """
    figure, axis = plt.subplots(figsize=(9.2, 5.2), layout="constrained")
    x = np.array(xs)
    for number, (name, row) in enumerate(rows.items()):
        ours = name == "block-time"
        mean = np.array([entry.mean for entry in row])
        half = np.nan_to_num([entry.half for entry in row])
        colour = _OURS if ours else _COLOURS[number % len(_COLOURS)]
        axis.plot(
            x, mean, label=name, color=colour, linewidth=2.4 if ours else 1.3, marker=_MARKERS[number % len(_MARKERS)],
            markersize=4, zorder=3 if ours else 2,
        )  # fmt: skip
        if ours:
            # A band for each would hide the lines.
            axis.fill_between(x, mean - half, mean + half, color=colour, alpha=0.12, linewidth=0)
    top = max(entry.mean for row in rows.values() for entry in row)
    for number, (name, values) in enumerate((bound or {}).items()):
        if min(values) > _ROOM * top:
            continue
        axis.plot(x, values, color="0.3", linestyle=("--", ":", "-.")[number % 3], linewidth=1.1, label=name)
    axis.set_ylim(0, _ROOM * top)
    axis.set_xscale("log", base=2)
    axis.set_xticks(x, [f"{value:g}" for value in x])
    axis.minorticks_off()
    _dress(axis, title, *labels)
    axis.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
    _save(figure, path)


def over_time(
    path: Path, title: str, runs: Mapping[str, Mapping[str, Sequence[float]]], capacity_tokens: float
) -> None:
    """KV charge, turns held and the share served from cache over time, one line per arm.

    Args:
        path: PNG file.
        title: One line.
        runs: Series by arm.
        capacity_tokens: KV tokens of the fleet.
    """
    figure, axes = plt.subplots(3, 1, figsize=(9.2, 7.4), sharex=True, layout="constrained")
    for number, (name, series) in enumerate(runs.items()):
        columns = {key: np.array(values) for key, values in series.items()}
        minutes = columns["time_s"] / 60
        ours = name == "block-time"
        style: dict[str, Any] = {"label": name, "linewidth": 1.9 if ours else 1.2}
        style["color"] = _OURS if ours else _COLOURS[number % len(_COLOURS)]
        axes[0].plot(minutes, columns["charge_tokens"] / 1e3, **style)
        axes[1].plot(minutes, columns["held_turns"], **style)
        picks = np.unique(np.linspace(0, len(minutes) - 1, WINDOWS + 1).astype(int))
        prompt, cached = np.diff(columns["prompt_tokens"][picks]), np.diff(columns["cached_tokens"][picks])
        some = prompt > 0
        axes[2].plot(minutes[picks[1:]][some], 100 * cached[some] / prompt[some], **style)
    axes[0].axhline(capacity_tokens / 1e3, color="0.3", linestyle="--", linewidth=1, label="KV capacity")
    axes[2].set_ylim(-2, 102)
    _dress(axes[0], title, None, "KV charged,\nthousand tokens")
    _dress(axes[1], "", None, "turns held")
    _dress(axes[2], "", "simulated minutes", "prompt tokens\nfrom cache, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    _save(figure, path)


def _dress(axis: Axes, title: str, xlabel: str | None, ylabel: str | None) -> None:
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel(xlabel or "", fontsize=9)
    axis.set_ylabel(ylabel or "", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(visible=True, alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    """No software version or date in the file: the same runs give the same bytes."""
    figure.savefig(path, dpi=DPI, metadata={"Software": None})
    plt.close(figure)
