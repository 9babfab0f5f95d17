"""Reliability diagrams of probabilities: what `alignattn.plots` draws, from predictions."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from alignattn.calibration.measures import ECE_BINS, expected_calibration_error, reliability
from alignattn.plots import ReliabilityPanel, draw_reliability, svg_text


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
        by_state: probabilities `[N, C]`, `before` and, where there is a temperature, `after` scaling.
        labels: `[N]`.
        temperature: that of `after`.
        num_bins: of the diagrams.
    """
    titles = {"before": "as saved", "after": f"temperature {temperature or 1:.2f}"}
    return [reliability_panel(rows, labels, num_bins, titles[state]) for state, rows in by_state.items()]


def reliability_svg(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> str:
    """Return the reliability diagram of probabilities `[N, C]` and labels `[N]` as an `<svg>` element."""
    return svg_text(draw_reliability([reliability_panel(probabilities, labels)], title=""))
