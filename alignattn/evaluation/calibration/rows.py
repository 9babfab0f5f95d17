"""What a row of probabilities and its label must be."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alignattn.utils.errors import AlignAttnError

SUM_TOLERANCE = 1e-3
"""How far the probabilities of a row may miss 1 by: those of a model in half precision do."""

PROBABILITY_FLOOR = float(np.finfo(np.float32).tiny)
"""Stands for a probability of 0 (1.2e-38): what models compute in single precision and find smaller is stored as 0."""


def find_bad_rows(probabilities: NDArray[np.float64], labels: ArrayLike) -> dict[int, str]:
    """Return what is wrong with each row, counted from 0, that is no distribution or whose label is no class.

    Args:
        probabilities: `[N, C]`.
        labels: `[N]`, numbers from 0 to C - 1.
    """
    classes = np.asarray(labels)
    # Comparisons with NaN are false, so NaN is never good.
    is_distribution = (probabilities >= 0).all(axis=1) & (np.abs(probabilities.sum(axis=1) - 1) <= SUM_TOLERANCE)
    is_class = np.isin(classes, np.arange(probabilities.shape[1]))
    bad = np.flatnonzero(~(is_distribution & is_class))
    return {int(row): _problem(probabilities[row], classes[row]) for row in bad}


def checked_rows(probabilities: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return probabilities `[N, C]` and labels `[N]` as arrays."""
    rows, classes = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if rows.ndim != 2 or rows.size == 0 or classes.shape != rows.shape[:1]:
        raise AlignAttnError(
            f"calibration needs probabilities [N, C] and labels [N] of at least one row, not {rows.shape} "
            f"and {classes.shape}"
        )
    for row, problem in find_bad_rows(rows, classes).items():
        raise AlignAttnError(f"row {row + 1}: {problem}")
    return rows, classes.astype(np.int64)


def log_probabilities(probabilities: ArrayLike) -> NDArray[np.float64]:
    """Return the logarithms of distributions `[N, C]`, in nats, which are logits up to a constant.

    Rows are scaled to sum to 1 exactly; probabilities below `PROBABILITY_FLOOR` are raised to it.
    """
    rows = np.asarray(probabilities, dtype=np.float64)
    floored = np.maximum(rows, PROBABILITY_FLOOR)
    return np.log(floored) - np.log(floored.sum(axis=1, keepdims=True))


def _problem(row: NDArray[np.float64], label: float) -> str:
    if not np.isfinite(row).all():
        return "its probabilities hold NaN or infinity"
    if (row < 0).any():
        return f"its probabilities hold {row.min():.6g}, and none may be negative"
    if abs(row.sum() - 1) > SUM_TOLERANCE:
        return f"its probabilities sum to {row.sum():.6g} and must sum to 1"
    return f"its label {label:g} is none of the classes 0 to {len(row) - 1}"
