"""The picture of a comparison: what every policy did with the fleet over time."""

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
    from numpy.typing import NDArray

    Series = Mapping[str, bytes]

WINDOWS = 60
"""Windows per run over which rates and shares are taken."""

NAME = "comparison.png"


def draw(runs: Sequence[tuple[Mapping[str, Any], Series]], title: str, folder: Path, capacity_tokens: float) -> Path:
    """Draw throughput, KV charge, prefix hits and holds over time, one line per policy.

    Args:
        runs: Record and samples of each run; of several seeds of a policy the first is drawn.
        title: What was run, one line.
        folder: Where the picture goes; made when it does not exist.
        capacity_tokens: KV tokens of the whole fleet.

    Returns:
        Path of the PNG file.
    """
    first: dict[str, dict[str, NDArray[np.float64]]] = {}
    for record, series in runs:
        first.setdefault(record["policy"], {name: np.frombuffer(column) for name, column in series.items()})
    figure, axes = plt.subplots(2, 2, figsize=(13, 7.6), sharex=True, layout="constrained")
    figure.suptitle(title, fontsize=11)
    _label(axes[0, 0], "Finished sessions", "sessions")
    _label(axes[0, 1], "KV tokens charged to sessions", "million tokens")
    _label(axes[1, 0], "Prompt tokens served from cache", "% of prompt tokens, in the window")
    _label(axes[1, 1], "Turns held in the router", "turns")
    for number, (policy, samples) in enumerate(first.items()):
        style = {"label": policy, "color": f"C{number}", "linewidth": 1.6}
        minutes = samples["time_s"] / 60
        axes[0, 0].plot(minutes, samples["finished_sessions"], **style)
        axes[0, 1].plot(minutes, samples["charge_tokens"] / 1e6, **style)
        at, share = _share(samples)
        axes[1, 0].plot(at / 60, 100 * share, **style)
        axes[1, 1].plot(minutes, samples["held_turns"], **style)
    axes[0, 1].axhline(capacity_tokens / 1e6, color="0.35", linestyle="--", linewidth=1, label="KV capacity")
    axes[1, 0].set_ylim(-2, 102)
    lines, labels = axes[0, 1].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    for axis in axes[1]:
        axis.set_xlabel("simulated minutes")
    folder.mkdir(exist_ok=True)
    path = folder / NAME
    # No software version or date in the file: the same runs give the same bytes.
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)
    return path


def _label(axis: Axes, title: str, unit: str) -> None:
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_ylabel(unit, fontsize=9)
    axis.grid(visible=True, alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _share(samples: Mapping[str, NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Share of prompt tokens that came from cache in each window that has any, and the windows' ends, s."""
    picks = np.unique(np.linspace(0, len(samples["time_s"]) - 1, WINDOWS + 1).astype(int))
    prompt, cached = (np.diff(samples[name][picks]) for name in ("prompt_tokens", "cached_tokens"))
    some = prompt > 0
    return samples["time_s"][picks[1:]][some], cached[some] / prompt[some]
