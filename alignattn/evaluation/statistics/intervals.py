"""Confidence intervals over the rows of an evaluation set: the bootstrap, and Wilson's interval of a share."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binomtest, bootstrap

from alignattn.evaluation.estimates import Interval
from alignattn.utils.errors import AlignAttnError

CONFIDENCE_LEVEL = 0.95
RESAMPLES = 1000
SEED = 42
MIN_ROWS = 2
"""Minimum number of rows: resampling one row always returns that row."""

BATCH_NUMBERS = 2**20
"""How many numbers of each array are resampled at once: these fit a processor's cache."""

IntervalMethod = Literal["percentile", "basic"]


def wilson_interval(count: int, total: int) -> Interval | None:
    """Return the 95 % score interval of `count / total` (Wilson 1927, eq. 7), within 0 and 1; None if `total` is 0."""
    if total == 0:
        return None
    ends = binomtest(count, total).proportion_ci(CONFIDENCE_LEVEL, method="wilson")
    return Interval(float(ends.low), float(ends.high))


def bootstrap_interval(
    statistic: Callable[..., NDArray[np.float64]],
    *arrays: ArrayLike,
    confidence: float = CONFIDENCE_LEVEL,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    method: IntervalMethod = "percentile",
) -> Interval:
    """Return a bootstrap confidence interval of a statistic of rows (Efron & Tibshirani 1993; `scipy.stats.bootstrap`).

    Rows are drawn with replacement, the same rows from all arrays. `percentile` uses the quantiles of the resampled
    statistic and suits means. Noise increases some statistics, such as a calibration error, and resampling adds noise,
    so that these quantiles are too high: for a calibrated model they never contain the true value 0. `basic` mirrors
    the quantiles at the statistic itself, which removes that bias (Davison & Hinkley 1997, section 5.2).

    Args:
        statistic: the statistic of one or many samples: maps arrays `[..., N]` to `[...]`.
        *arrays: `[N]` each, paired row by row.
        confidence: nominal probability that the interval contains the true value, between 0 and 1.
        resamples: number of resamples.
        seed: random seed; equal seeds return equal intervals.
        method: `percentile` or `basic`.

    Raises:
        AlignAttnError: if there are fewer than 2 rows, the arrays differ in length, or an option is out of range.
    """
    samples = [np.asarray(array) for array in arrays]
    if not samples or any(sample.ndim != 1 or len(sample) != len(samples[0]) for sample in samples):
        raise AlignAttnError(f"a bootstrap needs arrays [N] of one length, not {[sample.shape for sample in samples]}")
    num_rows = len(samples[0])
    if num_rows < MIN_ROWS:
        raise AlignAttnError(f"a bootstrap needs at least {MIN_ROWS} rows, not {num_rows}")
    if resamples < 1 or not 0 < confidence < 1:
        raise AlignAttnError(f"resamples {resamples} must be at least 1, and confidence {confidence} between 0 and 1")
    result = bootstrap(
        samples,
        # SciPy resamples along the last axis of arrays of one.
        lambda *resampled, axis: statistic(*resampled),
        n_resamples=resamples,
        batch=max(1, BATCH_NUMBERS // num_rows),
        vectorized=True,
        paired=True,
        confidence_level=confidence,
        method=method,
        rng=np.random.default_rng(seed),
    )
    return Interval(float(result.confidence_interval.low), float(result.confidence_interval.high))
