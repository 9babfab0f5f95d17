"""The power of paired comparisons, and the detectable difference (Cohen 1988, chapter 2)."""

import math

from scipy.optimize import brentq
from scipy.stats import nct, norm, t

from alignattn.evaluation.statistics.intervals import CONFIDENCE_LEVEL, Interval

POWER = 0.8
"""Power from which a difference counts as detectable."""

FARTHEST = 1e3
"""First upper bound of the search, in standard errors (with two seeds, 38 are detectable)."""


def power_of(difference: float, deviation: float, seeds: int, level: float = 1 - CONFIDENCE_LEVEL) -> float:
    """Return the power of a two-sided paired t-test.

    Args:
        difference: the true difference, in any unit.
        deviation: standard deviation of the paired differences, in the same unit, above 0.
        seeds: number of pairs, at least 2.
        level: significance level; for one of m comparisons that are corrected together, at least 0.05 / m.
    """
    return _power(abs(difference) * math.sqrt(seeds) / deviation, seeds - 1, level)


def detectable_difference(interval: Interval, degrees: int | None = None, level: float = 1 - CONFIDENCE_LEVEL) -> float:
    """Return the difference that a test detects with a power of 80 %, with the noise given by an interval.

    It says which difference could have been detected, not whether the measured difference is real.

    Args:
        interval: a 95 % interval: Student's of a mean, or a bootstrap interval, which is treated as normal.
        degrees: degrees of freedom of Student's interval; None for a bootstrap interval.
        level: significance level; for m comparisons that are corrected together, 0.05 / m.
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
    """Return the power for a true mean at this distance from 0, in standard errors."""
    limit = t.ppf(1 - level / 2, degrees)
    # SciPy's noncentral distribution returns NaN in the far tail, whose probability is 0.
    upper, lower = nct.sf(limit, degrees, distance), nct.cdf(-limit, degrees, distance)
    return float(upper + (0 if math.isnan(lower) else lower))
