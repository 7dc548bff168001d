"""The experiments by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turnout.experiment import saturated, shapes

if TYPE_CHECKING:
    from turnout.experiment.plan import Experiment

EXPERIMENTS: Final[dict[str, Experiment]] = {
    experiment.name: experiment
    for experiment in (
        saturated.MIXTURE,
        saturated.OVERLOAD,
        shapes.GROUP,
        saturated.ISOLATION,
        shapes.SKEW,
        shapes.NO_REUSE,
        shapes.BATCH,
        saturated.LEASE,
        saturated.GROWTH,
        shapes.SENSITIVITY,
    )
}
"""All that `turnout experiment` knows."""
