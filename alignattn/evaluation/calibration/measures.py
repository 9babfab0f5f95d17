"""Calibration errors and proper scores of predicted probabilities, in NumPy.

Each public function is called with probabilities `[N, C]`, rows that sum to 1, and labels `[N]`, class numbers. It
raises `AlignAttnError` if there are no rows, a row is no distribution, a label is not one of the classes, as a text or
None is not, or `num_bins` is below 1. A row's confidence is its largest probability. The row is right if the class with
this probability, the first of equal ones, is its label.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alignattn.evaluation.statistics.example_scores import ExampleScores
from alignattn.utils.errors import AlignAttnError, one_line, shown

SUM_TOLERANCE = 1e-3
"""Tolerance of the sum of a row's probabilities, for models in half precision."""

PROBABILITY_FLOOR = float(np.finfo(np.float32).tiny)
"""Replaces smaller probabilities: the smallest normal number of single precision, 1.2e-38."""


def find_bad_rows(probabilities: ArrayLike, labels: ArrayLike) -> dict[int, str]:
    """Return the problem of each row with invalid probabilities or an invalid label, by row number from 0.

    Args:
        probabilities: `[N, C]`.
        labels: `[N]`, numbers from 0 to C - 1.
    """
    rows, given = as_array(probabilities, "probabilities", np.float64), as_array(labels, "labels")
    # A text is no class number, not even "1"; NumPy would compare some of them with numbers.
    classes = (
        given if given.dtype.kind in "biuf" else np.array([one if isinstance(one, Real) else math.nan for one in given])
    )
    # Comparisons with NaN are false, so rows with NaN are bad.
    is_distribution = (rows >= 0).all(axis=1) & (np.abs(rows.sum(axis=1) - 1) <= SUM_TOLERANCE)
    is_class = np.isin(classes, np.arange(rows.shape[1]))
    bad = np.flatnonzero(~(is_distribution & is_class))
    return {int(row): _problem(rows[row], given[row : row + 1].tolist()[0]) for row in bad}


def checked_rows(probabilities: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return probabilities `[N, C]` and labels `[N]` as validated arrays."""
    rows, classes = as_array(probabilities, "probabilities", np.float64), as_array(labels, "labels")
    if rows.ndim != 2 or rows.size == 0 or classes.shape != rows.shape[:1]:
        raise AlignAttnError(
            f"calibration needs probabilities [N, C] and labels [N] of at least one row, not {rows.shape} "
            f"and {classes.shape}"
        )
    for row, problem in find_bad_rows(rows, classes).items():
        raise AlignAttnError(f"row {row + 1}: {problem}")
    return rows, classes.astype(np.int64)


def as_array(values: ArrayLike, name: str, dtype: type | None = None) -> NDArray[Any]:
    """Return values as an array; raises `AlignAttnError` if they are not numbers, or rows differ in length."""
    try:
        return np.asarray(values, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise AlignAttnError(f"{name} are no array of numbers: {one_line(error)}") from error


def log_probabilities(probabilities: ArrayLike) -> NDArray[np.float64]:
    """Return the logarithms of distributions `[N, C]`, in nats, which are logits up to a constant.

    Rows are scaled to sum to exactly 1; probabilities below `PROBABILITY_FLOOR` are raised to it.
    """
    rows = as_array(probabilities, "probabilities", np.float64)
    floored = np.maximum(rows, PROBABILITY_FLOOR)
    return np.log(floored) - np.log(floored.sum(axis=1, keepdims=True))


def _problem(row: NDArray[np.float64], label: Any) -> str:
    if not np.isfinite(row).all():
        return "its probabilities hold NaN or infinity"
    if (row < 0).any():
        return f"its probabilities hold {row.min():.6g}, and none may be negative"
    if abs(row.sum() - 1) > SUM_TOLERANCE:
        return f"its probabilities sum to {row.sum():.6g} and must sum to 1"
    named = f"{label:g}" if isinstance(label, Real) else shown(label)
    return f"its label {named} is not one of the classes 0 to {len(row) - 1}"


ECE_BINS = 10
"""As in Desai & Durrett 2020 and Zhang et al. 2021."""


@dataclass(frozen=True)
class RowScores:
    """The contributions of each row to the measures.

    Attributes:
        confidence: `[N]`, the largest probability.
        is_right: `[N]`, 1 where the likeliest class is the label, else 0.
        squared_error: `[N]`, the row's Brier score, 0 to 2.
        log_loss: `[N]`, minus the logarithm of the label's probability, in nats.
        by_class: the probability `[N]` of each class, then for each class whether it is the label, `[N]`.
    """

    confidence: NDArray[np.float64]
    is_right: NDArray[np.float64]
    squared_error: NDArray[np.float64]
    log_loss: NDArray[np.float64]
    by_class: tuple[NDArray[np.float64], ...]

    @classmethod
    def of(cls, probabilities: ArrayLike, labels: ArrayLike) -> "RowScores":
        """Return the scores of probabilities `[N, C]` for labels `[N]`, both checked."""
        rows, classes = checked_rows(probabilities, labels)
        index = np.arange(len(rows))
        errors = rows.copy()
        errors[index, classes] -= 1
        return cls(
            confidence=rows.max(axis=1),
            is_right=(rows.argmax(axis=1) == classes).astype(np.float64),
            squared_error=(errors**2).sum(axis=1),
            log_loss=-log_probabilities(rows)[index, classes],
            by_class=(*rows.T, *np.eye(rows.shape[1])[classes].T),
        )


@dataclass(frozen=True)
class Reliability:
    """The bins of a reliability diagram, equally wide from 0 to 1 and closed on the right.

    Attributes:
        confidence: `[num_bins]`, mean confidence; NaN in an empty bin.
        accuracy: `[num_bins]`, share of rows that are right; NaN in an empty bin.
        counts: `[num_bins]`, rows.
    """

    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    counts: NDArray[np.int64]


def expected_calibration_error(probabilities: ArrayLike, labels: ArrayLike, num_bins: int = ECE_BINS) -> float:
    """Return the expected calibration error (Naeini et al. 2015; Guo et al. 2017, section 2), a fraction, 0 to 1.

    With rows in bins B_m of equal width by confidence: Σ_m |B_m| / N · |accuracy(B_m) - confidence(B_m)|. Bins are
    closed on the right: the last one holds a confidence of 1.
    """
    scores = RowScores.of(probabilities, labels)
    return float(equal_width_error(scores.confidence, scores.is_right, num_bins))


def adaptive_calibration_error(probabilities: ArrayLike, labels: ArrayLike, num_bins: int = ECE_BINS) -> float:
    """Return the expected calibration error over bins of equal mass, a fraction, 0 to 1.

    The bins are those of Nguyen & O'Connor 2015, each with N / num_bins rows in the order of confidence. Only the
    likeliest class of each row counts, as in the expected calibration error; Nixon et al. 2019 average such errors over
    all classes. Rows of equal confidence share a bin, so the order of rows does not matter.
    """
    scores = RowScores.of(probabilities, labels)
    return float(equal_mass_error(scores.confidence, scores.is_right, num_bins))


def maximum_calibration_error(probabilities: ArrayLike, labels: ArrayLike, num_bins: int = ECE_BINS) -> float:
    """Return the maximum calibration error (Naeini et al. 2015; Guo et al. 2017, section 2), a fraction, 0 to 1.

    It is the largest |accuracy(B_m) - confidence(B_m)| of the nonempty bins of the expected calibration error. A bin
    with few rows can determine it, so it is noisy on small data.
    """
    scores = RowScores.of(probabilities, labels)
    return float(largest_error(scores.confidence, scores.is_right, num_bins))


def classwise_calibration_error(probabilities: ArrayLike, labels: ArrayLike, num_bins: int = ECE_BINS) -> float:
    """Return the classwise expected calibration error (Kull et al. 2019, section 2), a fraction, 0 to 1.

    It is the mean over classes of Σ_m |B_m| / N · |share of the class in B_m - its mean probability there|. All rows
    are in bins B_m of equal width by the probability of that class, not only rows in which it is the likeliest.
    """
    return float(mean_error_of_classes(*RowScores.of(probabilities, labels).by_class, num_bins=num_bins))


def brier_score(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the Brier score (Brier 1950), mean over rows of Σ_c (p_c - [c is the label])², 0 to 2.

    The sum is over all classes: for two classes it is twice the Brier score of a single probability.
    """
    return float(RowScores.of(probabilities, labels).squared_error.mean())


def negative_log_likelihood(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the mean over rows of -log p_label, in nats, 0 to 87.4.

    It is always finite: a probability of 0 counts as `PROBABILITY_FLOOR`. Rows are scaled to sum to exactly 1.
    """
    return float(RowScores.of(probabilities, labels).log_loss.mean())


def reliability(probabilities: ArrayLike, labels: ArrayLike, num_bins: int = ECE_BINS) -> Reliability:
    """Return the bins of the reliability diagram (Guo et al. 2017, section 2), as for the calibration error."""
    scores = RowScores.of(probabilities, labels)
    bins = _equal_width_bins(scores.confidence, num_bins)
    counts = _sum_by_bin(bins, np.ones(bins.shape), num_bins)
    with np.errstate(invalid="ignore"):
        confidence, accuracy = (
            _sum_by_bin(bins, values, num_bins) / counts for values in (scores.confidence, scores.is_right)
        )
    return Reliability(confidence, accuracy, counts.astype(np.int64))


def calibration_scores(probabilities: ArrayLike, labels: ArrayLike) -> ExampleScores:
    """Return the contribution of each row to the expected calibration error, for comparisons of runs."""
    rows = RowScores.of(probabilities, labels)
    return ExampleScores(np.asarray(labels), equal_width_error, (rows.confidence, rows.is_right), "basic")


def equal_width_error(
    confidence: NDArray[np.float64], is_right: NDArray[np.float64], num_bins: int = ECE_BINS
) -> NDArray[np.float64]:
    """Return the expected calibration error of many samples at once: `[..., N]` and `[..., N]` to `[...]`."""
    gaps = _sum_by_bin(_equal_width_bins(confidence, num_bins), is_right - confidence, num_bins)
    return np.asarray(np.abs(gaps).sum(axis=-1) / confidence.shape[-1])


def mean_error_of_classes(*by_class: NDArray[np.float64], num_bins: int) -> NDArray[np.float64]:
    """Return the classwise error of many samples at once: `[..., N]` each, as in `RowScores.by_class`, to `[...]`."""
    classes = len(by_class) // 2
    pairs = zip(by_class[:classes], by_class[classes:], strict=True)
    return np.asarray(np.mean([equal_width_error(*pair, num_bins) for pair in pairs], axis=0))


def equal_mass_error(
    confidence: NDArray[np.float64], is_right: NDArray[np.float64], num_bins: int
) -> NDArray[np.float64]:
    """Return the adaptive calibration error of many samples at once: `[..., N]` and `[..., N]` to `[...]`."""
    num_rows = confidence.shape[-1]
    order = np.argsort(confidence, axis=-1)
    ordered = np.take_along_axis(confidence, order, axis=-1)
    gaps = np.take_along_axis(is_right, order, axis=-1) - ordered
    is_tied = np.zeros(ordered.shape, dtype=bool)
    is_tied[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    first_of_equals = np.maximum.accumulate(np.where(is_tied, 0, np.arange(num_rows)), axis=-1)
    sums = _sum_by_bin(first_of_equals * num_bins // num_rows, gaps, num_bins)
    return np.asarray(np.abs(sums).sum(axis=-1) / num_rows)


def largest_error(confidence: NDArray[np.float64], is_right: NDArray[np.float64], num_bins: int) -> NDArray[np.float64]:
    """Return the maximum calibration error of many samples at once: `[..., N]` and `[..., N]` to `[...]`."""
    bins = _equal_width_bins(confidence, num_bins)
    counts = _sum_by_bin(bins, np.ones(bins.shape), num_bins)
    gaps = _sum_by_bin(bins, is_right - confidence, num_bins)
    return np.asarray((np.abs(gaps) / np.maximum(counts, 1)).max(axis=-1))


def _equal_width_bins(confidence: NDArray[np.float64], num_bins: int) -> NDArray[np.int64]:
    return np.clip(np.ceil(confidence * num_bins).astype(np.int64) - 1, 0, num_bins - 1)


def _sum_by_bin(bins: NDArray[np.int64], values: NDArray[np.float64], num_bins: int) -> NDArray[np.float64]:
    """Return the sums of `values [..., N]` over the rows of each bin, `[..., num_bins]`."""
    if num_bins < 1:
        raise AlignAttnError(f"num_bins {num_bins} must be at least 1")
    samples = bins.shape[:-1]
    num_samples = int(np.prod(samples))
    offsets = num_bins * np.arange(num_samples).reshape(*samples, 1)
    sums: NDArray[Any] = np.bincount((bins + offsets).ravel(), weights=values.ravel(), minlength=num_samples * num_bins)
    return sums.reshape(*samples, num_bins)
