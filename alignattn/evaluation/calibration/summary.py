"""All measures of a set of predictions, with confidence intervals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alignattn.evaluation.calibration.measures import (
    ECE_BINS,
    RowScores,
    equal_mass_error,
    equal_width_error,
    largest_error,
    mean_error_of_classes,
)
from alignattn.evaluation.calibration.selective import area_of
from alignattn.evaluation.estimates import Estimate, Interval
from alignattn.evaluation.statistics.example_scores import ExampleScores, mean
from alignattn.evaluation.statistics.intervals import RESAMPLES, SEED, IntervalMethod


@dataclass(frozen=True)
class CalibrationFigure:
    """How a figure is computed from the scores of rows.

    Attributes:
        heading: heading of its column in a table.
        of: the attributes of `RowScores` that it is computed from.
        statistic: function of these, `[..., N]` each, and of the number of bins if it is binned.
        is_binned: whether it is an error computed in bins, which sampling noise biases upwards.
        is_share: whether it is a fraction, which tables print in percent.
    """

    heading: str
    of: tuple[str, ...]
    statistic: Callable[..., NDArray[np.float64]]
    is_binned: bool = False
    is_share: bool = False

    @property
    def interval_method(self) -> IntervalMethod:
        """The bootstrap interval that fits it."""
        return "basic" if self.is_binned else "percentile"


def mean_loss(losses: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mean of losses, which is no share of rows even if each is 0 or 1."""
    return mean(losses)


_BINNED: Mapping[str, Any] = {"of": ("confidence", "is_right"), "is_binned": True, "is_share": True}

FIGURES: Mapping[str, CalibrationFigure] = {
    "accuracy": CalibrationFigure("accuracy %", ("is_right",), mean, is_share=True),
    "expected_calibration_error": CalibrationFigure("ECE %", statistic=equal_width_error, **_BINNED),
    "adaptive_calibration_error": CalibrationFigure("adaptive ECE %", statistic=equal_mass_error, **_BINNED),
    "maximum_calibration_error": CalibrationFigure("MCE %", statistic=largest_error, **_BINNED),
    "classwise_calibration_error": CalibrationFigure(
        "classwise ECE %", ("by_class",), mean_error_of_classes, is_binned=True, is_share=True
    ),
    "area_under_risk_coverage": CalibrationFigure("AURC %", ("confidence", "is_right"), area_of, is_share=True),
    "brier_score": CalibrationFigure("Brier", ("squared_error",), mean_loss),
    "negative_log_likelihood": CalibrationFigure("NLL", ("log_loss",), mean_loss),
}
"""The figures by their names in results; the functions of the same names document definitions and units."""


def summarise(
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    num_bins: int = ECE_BINS,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> dict[str, Estimate]:
    """Return each of `FIGURES` for predictions, with the intervals over rows of `ExampleScores`.

    Accuracy has Wilson's interval, the others have bootstrap intervals: calibration errors by the method `basic`,
    clipped to 0 and 1, the rest by `percentile`. With few rows the intervals of calibration errors are
    too short. On simulated samples of 200 rows (1000 rows), the 95 % intervals contained the true expected calibration
    error in 73 to 87 % (83 to 92 %), the adaptive one in 49 to 87 % (61 to 93 %) and the maximum one in 43 to 49 % (79
    to 86 %) of cases; least often for a calibrated model, whose true errors are 0.

    Args:
        probabilities: `[N, C]`, rows that sum to 1.
        labels: `[N]`, class numbers.
        num_bins: number of bins of the calibration errors.
        resamples: number of resamples of the bootstrap.
        seed: seed of the bootstrap.
    """
    scores = RowScores.of(probabilities, labels)
    estimates = {}
    for name, figure in FIGURES.items():
        statistic = partial(figure.statistic, num_bins=num_bins) if figure.is_binned else figure.statistic
        found = [getattr(scores, name) for name in figure.of]
        arrays = [array for one in found for array in (one if isinstance(one, tuple) else [one])]
        measure = ExampleScores(scores.confidence, statistic, tuple(arrays), figure.interval_method)
        interval = measure.interval(resamples=resamples, seed=seed)
        if interval is not None and figure.is_binned:
            interval = Interval(float(np.clip(interval.low, 0, 1)), float(np.clip(interval.high, 0, 1)))
        estimates[name] = Estimate(measure.value, interval)
    return estimates


def interval_notes(where: str, num_bins: int | None = None, resamples: int = RESAMPLES) -> list[str]:
    """Return what a reader of a table needs to know about the intervals of `summarise`.

    Args:
        where: where the intervals stand in the table.
        num_bins: number of bins of the calibration errors; None if the table has none.
        resamples: number of resamples of the bootstrap.
    """
    notes = [
        f"{where} its 95% interval over rows: Wilson's for a share of rows, else the bootstrap ({resamples} resamples)."
    ]
    if num_bins is not None:
        notes += [
            f"Calibration errors have {num_bins} bins. Chance makes them too large on few rows. Intervals correct for",
            "this, so a value may lie above its interval. On few rows the intervals are also too short.",
        ]
    return notes
