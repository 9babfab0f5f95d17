"""A run's measure as a statistic of its examples, so that examples can be resampled; vectorised over samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alignattn.evaluation.estimates import Interval
from alignattn.evaluation.statistics.intervals import MIN_ROWS, IntervalMethod, bootstrap_interval, wilson_interval
from alignattn.utils.errors import AlignAttnError

Statistic = Callable[..., NDArray[np.float64]]
"""A statistic of one or many samples: maps arrays `[..., N]` to `[...]`."""

POSITIVE_CLASS = 1
"""The positive class of F1."""


@dataclass(frozen=True)
class ExampleScores:
    """The contributions of the examples to a run's measure, which is `statistic(*arrays)`.

    Attributes:
        examples: `[N]`, identifies the examples, and is equal for runs on the same ones: labels or row numbers.
        statistic: the statistic of the arrays; the same function in all runs that are compared.
        arrays: `[N]` each, finite.
        interval_method: the bootstrap interval that fits the statistic; see `bootstrap_interval`.

    Raises:
        AlignAttnError: if there are no examples, the arrays differ in length, or they contain NaN, infinity or no
            numbers.
    """

    examples: NDArray[Any]
    statistic: Statistic
    arrays: tuple[NDArray[Any], ...]
    interval_method: IntervalMethod = "percentile"

    def __post_init__(self) -> None:
        shapes = [array.shape for array in (self.examples, *self.arrays)]
        if len(shapes) == 1 or shapes[0] in ((), (0,)) or any(shape != (len(self.examples),) for shape in shapes):
            raise AlignAttnError(f"scores of examples must be arrays [N] of one length, at least 1, not {shapes}")
        if any(array.dtype.kind not in "biuf" for array in self.arrays):
            raise AlignAttnError("scores of examples hold something else than numbers: give class numbers or scores")
        if not all(np.isfinite(array).all() for array in self.arrays):
            raise AlignAttnError("scores of examples hold NaN or infinity: evaluate the run again")

    @property
    def value(self) -> float:
        """The measure of the run."""
        return float(self.statistic(*self.arrays))

    def interval(self, **drawn: Any) -> Interval | None:
        """Return the 95 % interval of the measure; None if a statistic other than a share has fewer than two examples.

        A share of examples has Wilson's interval (1927), which is not a single point if all of a few examples are
        right. Other statistics have a bootstrap interval.

        Args:
            **drawn: `resamples` and `seed` of `bootstrap_interval`.
        """
        if self.is_share_of_examples:
            return wilson_interval(round(float(self.arrays[0].sum())), len(self.examples))
        if len(self.examples) < MIN_ROWS:
            return None
        return bootstrap_interval(self.statistic, *self.arrays, method=self.interval_method, **drawn)

    @property
    def is_share_of_examples(self) -> bool:
        """Whether the measure is the share of examples that are right, such as accuracy."""
        return self.statistic is mean and bool(np.isin(self.arrays[0], (0, 1)).all())


def example_scores(metric_name: str, labels: ArrayLike, predictions: ArrayLike) -> ExampleScores:
    """Return the scores of predictions by one of `alignattn.tasks.metrics.METRICS`.

    Args:
        metric_name: name of the metric.
        labels: `[N]` class numbers, from 0; real numbers for a correlation or an error.
        predictions: `[N]`, like the labels.

    Raises:
        AlignAttnError: if the metric is not a statistic of examples, the arrays differ in length, or they contain NaN
            or infinity.
    """
    if metric_name not in _OF_PREDICTIONS:
        raise AlignAttnError(
            f"metric {metric_name!r} is not a statistic of examples: choose one of {', '.join(_OF_PREDICTIONS)}"
        )
    statistic, prepare = _OF_PREDICTIONS[metric_name]
    references, outputs = np.asarray(labels), np.asarray(predictions)
    # Checked before the predictions are converted: ranks and class comparisons would hide a NaN.
    ExampleScores(references, statistic, (references, outputs))
    return ExampleScores(references, statistic, prepare(references, outputs))


def mean_scores(examples: ArrayLike, scores: ArrayLike) -> ExampleScores:
    """Return scores whose mean is the measure, such as the exact matches of answers.

    Args:
        examples: `[N]`, what identifies the examples; see `ExampleScores`.
        scores: `[N]` numbers.

    Raises:
        AlignAttnError: as `ExampleScores` does.
    """
    return ExampleScores(np.asarray(examples), mean, (np.asarray(scores),))


def ratio_scores(examples: ArrayLike, numerators: ArrayLike, denominators: ArrayLike) -> ExampleScores:
    """Return scores whose measure is a ratio of sums, such as the share of attacks that failed.

    Args:
        examples: `[N]`, what identifies the examples; see `ExampleScores`.
        numerators: `[N]` numbers, such as 1 where an attack failed, else 0.
        denominators: `[N]` numbers, not negative, such as 1 where the row was attacked, else 0.

    Raises:
        AlignAttnError: as `ExampleScores` does, and if all denominators are 0.
    """
    scores = ExampleScores(np.asarray(examples), ratio_of_sums, (np.asarray(numerators), np.asarray(denominators)))
    if not scores.arrays[1].any():
        raise AlignAttnError("a ratio whose denominators are all 0 cannot be compared")
    return scores


def mean(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mean."""
    return np.asarray(scores.mean(axis=-1))


def ratio_of_sums(numerators: NDArray[Any], denominators: NDArray[Any]) -> NDArray[np.float64]:
    """Return the ratio of the sums; 0 where the denominators sum to 0."""
    return _ratio(numerators.sum(axis=-1), denominators.sum(axis=-1))


def binary_f1(labels: NDArray[Any], predictions: NDArray[Any]) -> NDArray[np.float64]:
    """Return the harmonic mean of precision and recall for class 1; 0 if neither side contains that class."""
    is_positive, is_found = labels == POSITIVE_CLASS, predictions == POSITIVE_CLASS
    right, true, predicted = (
        np.count_nonzero(is_so, axis=-1) for is_so in (is_positive & is_found, is_positive, is_found)
    )
    return _ratio(2 * right, true + predicted)


def macro_f1(labels: NDArray[Any], predictions: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mean F1 over the classes that occur in the sample, predicted or true."""
    right, true, predicted = _class_counts(labels, predictions)
    num_present = np.count_nonzero(true + predicted, axis=-1)
    return np.asarray(_ratio(2 * right, true + predicted).sum(axis=-1) / num_present)


def matthews_correlation(labels: NDArray[Any], predictions: NDArray[Any]) -> NDArray[np.float64]:
    """Return Matthews' correlation of two or more classes (Gorodkin 2004, eq. 8); 0 where one side is constant."""
    right, true, predicted = _class_counts(labels, predictions)
    num_rows = labels.shape[-1]
    covariance = num_rows * right.sum(axis=-1) - (true * predicted).sum(axis=-1)
    variances = [num_rows**2 - (counts**2).sum(axis=-1) for counts in (true, predicted)]
    return _ratio(covariance, np.sqrt(variances[0]) * np.sqrt(variances[1]))


def pearson(labels: NDArray[Any], predictions: NDArray[Any]) -> NDArray[np.float64]:
    """Return Pearson's correlation; 0 where one side is constant."""
    # Shifted by a number of the sample, not by its mean, so that a constant sample is exactly 0.
    first, second = (side - side[..., :1] for side in (labels, predictions))
    covariance = _covariance(first, second)
    return _ratio(covariance, np.sqrt(np.maximum(0, _covariance(first, first) * _covariance(second, second))))


def spearman(label_ranks: NDArray[np.int64], prediction_ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return Spearman's correlation; ties share their mean rank; 0 where one side is constant.

    The arrays are dense ranks in the whole set, from 0. Ranks within a sample follow by counting, without sorting.
    """
    return pearson(_mean_ranks(label_ranks), _mean_ranks(prediction_ranks))


def mean_of_ratios(*by_class: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mean over classes of the ratio of sums; numerators `[..., N]` of each class, then denominators."""
    classes = len(by_class) // 2
    pairs = zip(by_class[:classes], by_class[classes:], strict=True)
    return np.asarray(np.mean([ratio_of_sums(*pair) for pair in pairs], axis=0))


def _covariance(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return N² times the covariance."""
    products = np.einsum("...n,...n->...", first, second)
    return np.asarray(first.shape[-1] * products - first.sum(axis=-1) * second.sum(axis=-1))


def _mean_ranks(dense_ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return ranks within each sample, `[..., N]`; ties share their mean rank."""
    samples, num_ranks = dense_ranks.shape[:-1], 1 + int(dense_ranks.max())
    num_samples = int(np.prod(samples))
    # Each sample counts its ranks in places of its own.
    offsets = num_ranks * np.arange(num_samples).reshape(*samples, 1)
    counts = np.bincount((dense_ranks + offsets).ravel(), minlength=num_samples * num_ranks)
    counts = counts.reshape(*samples, num_ranks)
    ranks = counts.cumsum(axis=-1) - (counts - 1) / 2
    return np.take_along_axis(ranks, dense_ranks, axis=-1)


def _class_counts(labels: NDArray[Any], predictions: NDArray[Any]) -> tuple[NDArray[np.int64], ...]:
    """Return per class the number of correct predictions, of labels and of predictions: `[..., C]` each."""
    classes = range(1 + int(max(labels.max(), predictions.max())))
    is_right = labels == predictions
    counts = (
        [
            np.count_nonzero(is_so, axis=-1)
            for is_so in (is_right & (labels == number), labels == number, predictions == number)
        ]
        for number in classes
    )
    return tuple(np.stack(by_class, axis=-1) for by_class in zip(*counts, strict=True))


def _ratio(numerators: NDArray[Any], denominators: NDArray[Any]) -> NDArray[np.float64]:
    """Return the ratio; 0 where the denominator is 0."""
    is_nothing = denominators == 0
    return np.asarray(np.where(is_nothing, 0, numerators / np.where(is_nothing, 1, denominators)))


_OF_PREDICTIONS: Mapping[str, tuple[Statistic, Callable[[NDArray[Any], NDArray[Any]], tuple[NDArray[Any], ...]]]] = {
    "accuracy": (mean, lambda labels, found: ((labels == found).astype(np.float64),)),
    "f1": (binary_f1, lambda labels, found: (labels, found)),
    "macro_f1": (macro_f1, lambda labels, found: (labels, found)),
    "matthews_correlation": (matthews_correlation, lambda labels, found: (labels, found)),
    "pearson": (pearson, lambda labels, found: (labels, found)),
    "spearmanr": (spearman, lambda *sides: tuple(np.unique(side, return_inverse=True)[1] for side in sides)),
    "mse": (mean, lambda labels, found: ((labels - found) ** 2,)),
    "mae": (mean, lambda labels, found: (np.abs(labels - found),)),
}
"""Each metric's statistic, and the function that computes its arrays from labels and predictions."""
