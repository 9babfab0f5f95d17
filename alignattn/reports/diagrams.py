"""Reliability diagrams and risk-coverage curves of probabilities, for `alignattn.reports.plots`."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from alignattn.evaluation.calibration.measures import ECE_BINS, expected_calibration_error, reliability
from alignattn.evaluation.calibration.selective import risk_coverage
from alignattn.evaluation.calibration.summary import Estimate, EstimatesByState
from alignattn.reports.plots import CoveragePanel, ReliabilityPanel, draw_reliability, svg_text

AREA = "area_under_risk_coverage"
"""In `alignattn.evaluation.calibration.FIGURES`."""


def reliability_panel(
    probabilities: NDArray[np.float64], labels: NDArray[np.int64], num_bins: int = ECE_BINS, how: str = "as saved"
) -> ReliabilityPanel:
    """Return the reliability diagram of probabilities `[N, C]` and labels `[N]`, its error in the title.

    Args:
        probabilities: `[N, C]`.
        labels: `[N]`.
        num_bins: of the diagram and its error.
        how: the probabilities came about, for the title.
    """
    bins = reliability(probabilities, labels, num_bins)
    error = expected_calibration_error(probabilities, labels, num_bins)
    return ReliabilityPanel(
        f"{how}: ECE {100 * error:.1f} %", bins.confidence.tolist(), bins.accuracy.tolist(), bins.counts.tolist()
    )


def reliability_panels(
    by_state: Mapping[str, NDArray[np.float64]], labels: NDArray[np.int64], temperature: float | None, num_bins: int
) -> list[ReliabilityPanel]:
    """Return a panel a state of the same predictions.

    Args:
        by_state: probabilities `[N, C]`, `before` and, where there is a temperature, `after` scaling, or by what else.
        labels: `[N]`.
        temperature: that of `after`.
        num_bins: of the diagrams.
    """
    return [
        reliability_panel(rows, labels, num_bins, state_name(state, temperature)) for state, rows in by_state.items()
    ]


def state_name(state: str, temperature: float | None) -> str:
    """Return what was done to probabilities, for eyes."""
    return {"before": "as saved", "after": f"temperature {temperature or 1:.2f}"}.get(state, state)


def coverage_panel(
    title: str,
    by_state: Mapping[str, NDArray[np.float64]],
    labels: NDArray[np.int64],
    estimates: EstimatesByState,
    temperature: float | None,
) -> CoveragePanel:
    """Return the risk-coverage curves of the same predictions, a curve a state, their areas in the title.

    Args:
        title: of the panel.
        by_state: as for `reliability_panels`.
        labels: `[N]`.
        estimates: of the same states.
        temperature: that of `after`.
    """
    names = {state: state_name(state, temperature) for state in by_state}
    areas = [f"AURC {_area(estimates[state][AREA])} {name}" for state, name in names.items()]
    curves = {names[state]: risk_coverage(rows, labels) for state, rows in by_state.items()}
    return CoveragePanel(
        "\n".join([title, *areas]),
        {name: (curve.coverage.tolist(), curve.risk.tolist()) for name, curve in curves.items()},
    )


def _area(estimate: Estimate) -> str:
    ends = estimate.interval
    return f"{100 * estimate.value:.1f} %" + ("" if ends is None else f" ({100 * ends.low:.1f}–{100 * ends.high:.1f})")


def reliability_svg(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> str:
    """Return the reliability diagram of probabilities `[N, C]` and labels `[N]` as an `<svg>` element."""
    return svg_text(draw_reliability([reliability_panel(probabilities, labels)], title=""))
