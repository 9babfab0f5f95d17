"""Calibration of predictions before and after scaling: estimates, reliability diagrams, risk-coverage curves."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from alignattn.evaluation.calibration.measures import ECE_BINS, expected_calibration_error, reliability
from alignattn.evaluation.calibration.scaling import apply_temperature
from alignattn.evaluation.calibration.selective import risk_coverage, shift_auroc, shift_auroc_interval
from alignattn.evaluation.calibration.summary import summarise
from alignattn.evaluation.estimates import Estimate, EstimatesByState
from alignattn.reports.charts import line_chart, reliability_chart
from alignattn.reports.plots.comparisons import ReliabilityPanel

AREA = "area_under_risk_coverage"
"""A key of `alignattn.evaluation.calibration.FIGURES`."""


@dataclass(frozen=True)
class ScaledPredictions:
    """Predictions of rows, as saved and after temperature scaling.

    Attributes:
        probabilities: `[N, C]` by state: `before` and `after` temperature scaling.
        labels: `[N]`.
        temperature: the temperature of `after`; None without this state.
    """

    probabilities: Mapping[str, NDArray[np.float64]]
    labels: NDArray[np.int64]
    temperature: float | None = None

    @classmethod
    def by_temperature(
        cls, probabilities: NDArray[np.float64], labels: NDArray[np.int64], temperature: float
    ) -> "ScaledPredictions":
        """Return predictions before and after temperature scaling."""
        after = apply_temperature(probabilities, temperature)
        return cls({"before": probabilities, "after": after}, labels, temperature)

    def estimates(self, **drawn: Any) -> EstimatesByState:
        """Return the figures of each state; arguments as for `summarise`."""
        return {state: summarise(rows, self.labels, **drawn) for state, rows in self.probabilities.items()}

    def shifts_to(self, other: "ScaledPredictions", **drawn: Any) -> dict[str, Estimate]:
        """Return how well confidence separates these rows from others (AUROC), for each state that both have.

        Args:
            other: predictions of rows outside the domain.
            **drawn: as for `shift_auroc_interval`.
        """
        return {
            state: Estimate(
                shift_auroc(rows, other.probabilities[state]),
                shift_auroc_interval(rows, other.probabilities[state], **drawn),
            )
            for state, rows in self.probabilities.items()
            if state in other.probabilities
        }

    def charts(self, estimates: EstimatesByState, num_bins: int = ECE_BINS) -> dict[str, Markup]:
        """Return a reliability diagram per state and a chart of risk over coverage, by captions with the figures.

        Args:
            estimates: the result of `estimates`.
            num_bins: number of bins of the diagrams and their errors.
        """
        by_state = {"before": "as saved", "after": f"temperature {self.temperature or 1:.2f}"}
        names = {state: by_state[state] for state in self.probabilities}
        panels = [
            reliability_panel(rows, self.labels, num_bins, names[state]) for state, rows in self.probabilities.items()
        ]
        curves = {names[state]: risk_coverage(rows, self.labels) for state, rows in self.probabilities.items()}
        areas = (f"AURC {percent_text(estimates[state][AREA], unit=' %')} {name}" for state, name in names.items())
        caption = f"risk over coverage: {', '.join(areas)}"
        chart = line_chart(
            {
                name: list(zip(curve.coverage.tolist(), curve.risk.tolist(), strict=True))
                for name, curve in curves.items()
            },
            title=caption,
            x_label="coverage: share of rows with an answer",
            y_label="risk: share of wrong answers",
            stairs=True,
        )
        return {panel.title: reliability_chart(panel) for panel in panels} | {caption: chart}


def reliability_panel(
    probabilities: NDArray[np.float64], labels: NDArray[np.int64], num_bins: int = ECE_BINS, how: str = "as saved"
) -> ReliabilityPanel:
    """Return the reliability diagram of probabilities, with its error in the title.

    Args:
        probabilities: `[N, C]`.
        labels: `[N]`.
        num_bins: number of bins of the diagram and its error.
        how: how the probabilities were obtained, for the title.
    """
    bins = reliability(probabilities, labels, num_bins)
    error = expected_calibration_error(probabilities, labels, num_bins)
    return ReliabilityPanel(
        f"{how}: ECE {100 * error:.1f} %", bins.confidence.tolist(), bins.accuracy.tolist(), bins.counts.tolist()
    )


def interval_text(estimate: Estimate, digits: int = 1, factor: float = 100) -> str:
    """Return the ends of an estimate's interval; empty without an interval."""
    ends = estimate.interval
    return "" if ends is None else f"{factor * ends.low:.{digits}f}–{factor * ends.high:.{digits}f}"


def percent_text(estimate: Estimate, digits: int = 1, unit: str = "") -> str:
    """Return a share in percent, with its interval in brackets after the unit."""
    ends = interval_text(estimate, digits)
    return f"{100 * estimate.value:.{digits}f}{unit}{f' ({ends})' if ends else ''}"
