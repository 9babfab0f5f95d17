"""Tests and intervals of paired differences: over seeds, and over the examples of runs."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from alignattn.evaluation.estimates import Interval
from alignattn.evaluation.statistics.example_scores import ExampleScores
from alignattn.evaluation.statistics.intervals import BATCH_NUMBERS, CONFIDENCE_LEVEL
from alignattn.utils.errors import AlignAttnError

ROUNDING = 1e-12
"""Differences below this count as 0: they come from adding the same numbers in another order."""

DIGITS_OF_MEANS = 9
"""Digits to which the means of sign patterns are compared, as a share of the largest difference."""

MAX_SIGN_FLIPS = 2**16
"""Maximum number of sign patterns, those of 16 differences."""

MAX_COUNT = 2**16
"""Maximum sum of whole numbers whose sign patterns are counted by their sum."""

COUNT_TOLERANCE = 1e-6
"""Distance to a whole number, in steps, that counts as rounding."""

PairedScores = Sequence[tuple[ExampleScores, ExampleScores]]
"""The scores of the measured run and of the baseline, per seed."""


def sign_flip_p_value(differences: NDArray[np.float64], seed: int) -> float:
    """Return the two-sided p-value of the mean of differences `[n]` under random signs.

    The permutation test of Fisher (1935, section 21). It is exact for differences that are whole multiples of a step,
    as those of accuracies on the same rows are, and for up to 16 others; of more it draws `MAX_SIGN_FLIPS` sign
    patterns.
    """
    differences = _without_rounding(differences)
    counts = whole_counts(differences)
    if counts is not None:
        return _exact_p_value(counts)
    tested = stats.permutation_test(
        (differences / (np.abs(differences).max() or 1),),
        # Rounded: patterns with the same mean add it in different orders.
        lambda signed, axis: np.round(signed.mean(axis=axis), DIGITS_OF_MEANS),
        permutation_type="samples",
        vectorized=True,
        n_resamples=MAX_SIGN_FLIPS,
        rng=np.random.default_rng(seed),
    )
    return float(tested.pvalue)


def whole_counts(numbers: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """Return numbers `[n]` as multiples of their largest common step; None if they have none of a useful size."""
    sizes = np.abs(numbers)
    smallest = sizes.sum() / MAX_COUNT
    step = 0.0
    for size in sizes.tolist():
        # Euclid's algorithm; remainders to the nearest multiple, so that a rounded multiple leaves one near 0.
        while size > smallest:
            step, size = size, abs(math.remainder(step, size))
    counts = np.rint(numbers / (step or 1))
    is_whole = np.abs(numbers - step * counts).max() <= COUNT_TOLERANCE * step
    return counts.astype(np.int64) if is_whole else None


def _exact_p_value(counts: NDArray[np.int64]) -> float:
    """Return the share of sign patterns of whole numbers `[n]` whose sum is at least as far from 0 as their own.

    A sum of signed numbers is their total minus twice the sum of those with a minus. The distribution of the latter is
    built number by number (Pagano & Tritchler 1983).
    """
    sizes = np.abs(counts)
    total = int(sizes.sum())
    shares = np.zeros(total + 1)
    shares[0] = 1
    for size in sizes[sizes > 0].tolist():
        shares[size:] = shares[size:] + shares[:-size]
        shares /= 2
    sums = total - 2 * np.arange(total + 1)
    return float(shares[np.abs(sums) >= abs(int(counts.sum()))].sum())


def t_interval(differences: NDArray[np.float64]) -> Interval:
    """Return Student's 95 % interval of the mean of differences `[n]`, n at least 2."""
    margin = stats.t.ppf((1 + CONFIDENCE_LEVEL) / 2, len(differences) - 1) * stats.sem(differences)
    return Interval(float(differences.mean() - margin), float(differences.mean() + margin))


def mcnemar(measured: ExampleScores, baseline: ExampleScores) -> float:
    """Return the two-sided p-value of McNemar's exact test (1947) on the examples that only one run gets right.

    Both scores are shares of examples. The p-value is 1 if the runs agree on all examples.
    """
    won, lost = (
        int(np.count_nonzero(one.arrays[0] > other.arrays[0]))
        for one, other in ((measured, baseline), (baseline, measured))
    )
    return float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0


def bootstrap_difference(
    measured: Sequence[ExampleScores], baseline: Sequence[ExampleScores], resamples: int, seed: int
) -> tuple[Interval, float]:
    """Return the 95 % interval of the difference of the means over runs, and its two-sided p-value.

    Examples are drawn with replacement, the same examples for all runs (Efron & Tibshirani 1993, chapter 13). The
    p-value is 1 minus the confidence of the interval that ends at 0. The measured difference counts as one of the
    resampled ones, so that the p-value is never 0 (Davison & Hinkley 1997, section 4.2.5).

    Args:
        measured: the scores of each run; all on the same examples, at least 2, and of the same statistic.
        baseline: the scores of each run of the baseline, on the same examples.
        resamples: number of resamples; the p-value is at least 2 / (resamples + 1).
        seed: random seed.

    Raises:
        AlignAttnError: if `resamples` is below 1.
    """
    if resamples < 1:
        raise AlignAttnError(f"resamples {resamples} must be at least 1")
    first = measured[0]
    num_examples = len(first.examples)
    # For each array of the statistic, [run, N]; the runs of the baseline are last.
    arrays = [np.array([run.arrays[index] for run in (*measured, *baseline)]) for index in range(len(first.arrays))]

    def difference(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the difference, `[...]`, for samples of example numbers `[..., N]`."""
        by_run = first.statistic(*(array[:, rows] for array in arrays))
        return _without_rounding(by_run[: len(measured)].mean(axis=0) - by_run[len(measured) :].mean(axis=0))

    rng = np.random.default_rng(seed)
    batch = max(1, BATCH_NUMBERS // arrays[0].size)
    sizes = [min(batch, resamples - done) for done in range(0, resamples, batch)]
    resampled = np.concatenate([difference(rng.integers(num_examples, size=(size, num_examples))) for size in sizes])
    if first.interval_method == "basic":
        resampled = 2 * difference(np.arange(num_examples)) - resampled
    low, high = np.quantile(resampled, ((1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2))
    smaller_tail = min(np.count_nonzero(resampled <= 0), np.count_nonzero(resampled >= 0))
    return Interval(float(low), float(high)), float(min(1, 2 * (smaller_tail + 1) / (resamples + 1)))


def _without_rounding(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.abs(differences) < ROUNDING, 0, differences)
