"""How far a classifier's confidence lies from its accuracy."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alignattn.errors import AlignAttnError

ECE_BINS = 10
"""As in Desai & Durrett 2020 and Zhang et al. 2021."""

SUM_TOLERANCE = 1e-3


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, num_bins: int = ECE_BINS) -> float:
    """Return the expected calibration error (Guo et al. 2017, eq. 5), a fraction.

    Rows are put into bins of equal width by their confidence, the largest probability; the error is the mean over
    rows of the distance between their bin's accuracy and its mean confidence. Bins are closed on the right: the last
    one holds a confidence of 1.

    Args:
        probabilities: `[N, C]`, rows that sum to 1.
        labels: `[N]`, class numbers.
        num_bins: how many bins.

    Raises:
        AlignAttnError: if there are no rows, or a row is no distribution over the classes.
    """
    rows, classes = _checked(np.asarray(probabilities, dtype=np.float64), np.asarray(labels))
    confidence = rows.max(axis=1)
    is_right = rows.argmax(axis=1) == classes
    bins = np.clip(np.ceil(confidence * num_bins).astype(int) - 1, 0, num_bins - 1)
    gaps = np.bincount(bins, weights=is_right - confidence, minlength=num_bins)
    return float(np.abs(gaps).sum() / len(rows))


def _checked(probabilities: NDArray[np.float64], labels: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
    if probabilities.ndim != 2 or len(probabilities) == 0 or labels.shape != probabilities.shape[:1]:
        raise AlignAttnError(
            f"calibration needs probabilities [N, C] and labels [N] of at least one row, not {probabilities.shape} "
            f"and {labels.shape}"
        )
    is_wrong = ~(np.abs(probabilities.sum(axis=1) - 1) <= SUM_TOLERANCE) | (probabilities < 0).any(axis=1)
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        raise AlignAttnError(
            f"row {row + 1} of the probabilities is {probabilities[row].tolist()}: it must be a distribution "
            "that sums to 1"
        )
    return probabilities, labels
