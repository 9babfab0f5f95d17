"""The power of paired comparisons, and the detectable difference (Cohen 1988, chapter 2)."""

import math
from functools import lru_cache
from itertools import count

import numpy as np
from scipy.optimize import brentq
from scipy.stats import nct, norm, qmc, t

from alignattn.evaluation.estimates import Interval
from alignattn.evaluation.statistics.intervals import CONFIDENCE_LEVEL, SEED
from alignattn.evaluation.statistics.paired_tests import MAX_SIGN_FLIPS

POWER = 0.8
"""Power from which a difference counts as detectable."""

FARTHEST = 1e3
"""First upper bound of the search, in standard errors (with two seeds, 38 are detectable)."""

MAX_STUDIES = 2**12
"""Maximum number of simulated studies of the sign-flip test."""

MAX_MEANS = 2**26
"""Maximum number of subset means of all simulated studies together; a study of n seeds has 2^n."""

MEANS_AT_ONCE = 2**22
"""Subset means that are in memory at once."""


def detectable_difference(
    interval: Interval, degrees: int | None = None, level: float = 1 - CONFIDENCE_LEVEL, step: float = 0
) -> float:
    """Return the difference that a test detects with a power of 80 %, with the noise given by an interval.

    It says which difference could have been detected, not whether the measured difference is real. The test is
    Student's for an interval of Student, and the normal one for a bootstrap interval.

    Args:
        interval: a 95 % interval: Student's of a mean, or a bootstrap interval, which is treated as normal.
        degrees: degrees of freedom of Student's interval; None for a bootstrap interval.
        level: significance level; for m comparisons that are corrected together, 0.05 / m.
        step: 1 / m for McNemar's test on m examples; 0 = another test. If k examples differ, the p-value is at least
            2 / 2^k, as in `detectable_by_sign_flips`: the result is never less than that k / m.

    Returns:
        The difference; infinity if the interval has no width, which says nothing about the noise.
    """
    error = _standard_error(interval, degrees)
    if error == 0 and step == 0:
        return math.inf
    if degrees is None:
        return max(_fewest_nonzero(level) * step, error * float(norm.ppf(1 - level / 2) + norm.ppf(POWER)))
    farthest = FARTHEST
    while _power(farthest, degrees, level) < POWER:
        farthest *= 2
    return error * float(brentq(lambda errors: _power(errors, degrees, level) - POWER, 0, farthest))


def detectable_by_sign_flips(
    interval: Interval, seeds: int, level: float = 1 - CONFIDENCE_LEVEL, step: float = 0
) -> float:
    """Return the difference that a sign-flip test detects with a power of 80 %, with the noise given by an interval.

    The p-values of few seeds are coarse, so the test detects less than Student's: at level 0.05 / 9, 10 seeds detect
    1.66 instead of 1.46 standard deviations. Beyond 16 seeds, the tests hardly differ.

    That treats the differences as normal. Accuracies on m rows move in steps of 1 / m, and most differences may be 0.
    As k differences are not 0, the p-value is at least 2 / 2^k, so no mean below k / (n m) can be significant, k the
    smallest number with 2 / 2^k below the level: the result is never less.

    Args:
        interval: Student's 95 % interval of the mean of the paired differences.
        seeds: number of pairs.
        level: significance level; for m comparisons that are corrected together, 0.05 / m.
        step: smallest difference of two values that is not 0, such as 1 / m; 0 = none.

    Returns:
        The difference; infinity if the smallest p-value is not below the level, or if the interval has no width and
        there is no step.
    """
    smallest, error = _fewest_nonzero(level) * step / seeds, _standard_error(interval, seeds - 1)
    if error == 0:
        return smallest or math.inf
    if 2**seeds > MAX_SIGN_FLIPS:
        return max(smallest, detectable_difference(interval, seeds - 1, level))
    return max(smallest, error * math.sqrt(seeds) * _sign_flip_distance(seeds, level))


def _fewest_nonzero(level: float) -> int:
    """Return how many differences must not be 0, all of one sign, for an exact p-value, 2 / 2^k, below the level."""
    return next(nonzero for nonzero in count(1) if 2 / 2**nonzero < level)


@lru_cache
def _sign_flip_distance(seeds: int, level: float) -> float:
    """Return the true mean, in standard deviations, that a sign-flip test detects with a power of 80 %.

    For differences x with a positive sum, the p-value is c / 2^(n - 1), c the number of subsets whose sum is at most 0,
    the empty one included. With x = δ + z, the sum of a subset is at most 0 where δ is at most the mean of -z over it.
    So the p-value is at most k / 2^(n - 1) where δ exceeds the k-th largest of these means, and the result is its 80 %
    quantile over simulated standard normal z.
    """
    patterns = 2 ** (seeds - 1)
    largest = math.ceil(level * patterns) - 1
    if largest < 1:
        return math.inf
    members = (np.arange(1, 2 * patterns)[:, None] >> np.arange(seeds)) & 1
    studies = min(MAX_STUDIES, MAX_MEANS // (2 * patterns))
    # Sobol points instead of random ones: the quantile has a smaller error.
    noise = norm.ppf(qmc.Sobol(seeds, rng=SEED).random(studies))
    weights = (members / members.sum(1, keepdims=True)).T
    parts = np.array_split(noise, math.ceil(studies * 2 * patterns / MEANS_AT_ONCE))
    critical = [np.partition(part @ weights, -largest, axis=1)[:, -largest] for part in parts]
    return float(np.quantile(np.concatenate(critical), POWER))


def _standard_error(interval: Interval, degrees: int | None) -> float:
    share = (1 + CONFIDENCE_LEVEL) / 2
    return (interval.high - interval.low) / 2 / float(norm.ppf(share) if degrees is None else t.ppf(share, degrees))


def _power(distance: float, degrees: int, level: float) -> float:
    """Return the power for a true mean at this distance from 0, in standard errors."""
    limit = t.ppf(1 - level / 2, degrees)
    # SciPy's noncentral distribution returns NaN in the far tail, whose probability is 0.
    upper, lower = nct.sf(limit, degrees, distance), nct.cdf(-limit, degrees, distance)
    return float(upper + (0 if math.isnan(lower) else lower))
