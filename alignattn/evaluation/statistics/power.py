"""The power of paired comparisons, and the detectable difference (Cohen 1988, chapter 2)."""

import math

from scipy.optimize import brentq
from scipy.stats import nct, norm, t

from alignattn.evaluation.statistics.intervals import CONFIDENCE_LEVEL, Interval

POWER = 0.8
"""Power from which a difference counts as detectable."""

FARTHEST = 1e3
"""Bound of the search, in standard errors (with two seeds, 38 are detectable)."""


def power_of(difference: float, deviation: float, seeds: int, level: float = 1 - CONFIDENCE_LEVEL) -> float:
    """Return the power of a two-sided paired t-test.

    Args:
        difference: that there is, in any unit.
        deviation: standard deviation of the paired differences, in the same, above 0.
        seeds: how many pairs, at least 2.
        level: of significance; of one of m comparisons that are corrected together at least the m-th part.
    """
    return _power(abs(difference) * math.sqrt(seeds) / deviation, seeds - 1, level)


def detectable_difference(interval: Interval, degrees: int | None = None, level: float = 1 - CONFIDENCE_LEVEL) -> float:
    """Return the difference that a test detects with a power of 80 %, given an interval as the noise.

    It tells what could have been seen, and not whether what was seen is true.

    Args:
        interval: of 95 %: Student's of a mean, or a bootstrap's, which is taken for a normal one.
        degrees: of freedom of Student's; None for a bootstrap's.
        level: of significance; of m comparisons that are corrected together 0.05 / m.
    """
    half = (interval.high - interval.low) / 2
    if degrees is None:
        error = half / float(norm.ppf((1 + CONFIDENCE_LEVEL) / 2))
        return error * float(norm.ppf(1 - level / 2) + norm.ppf(POWER))
    error = half / float(t.ppf((1 + CONFIDENCE_LEVEL) / 2, degrees))
    farthest = FARTHEST
    while _power(farthest, degrees, level) < POWER:
        farthest *= 2
    return error * float(brentq(lambda errors: _power(errors, degrees, level) - POWER, 0, farthest))


def _power(distance: float, degrees: int, level: float) -> float:
    """The power for a true mean at this distance from 0, in standard errors."""
    limit = t.ppf(1 - level / 2, degrees)
    # SciPy's noncentral distribution gives NaN in the far tail, whose probability is 0.
    upper, lower = nct.sf(limit, degrees, distance), nct.cdf(-limit, degrees, distance)
    return float(upper + (0 if math.isnan(lower) else lower))
