"""Temperature scaling (Guo et al. 2017, section 4.2): one number that makes a classifier more or less confident."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from alignattn.evaluation.calibration.rows import find_bad_rows, log_probabilities
from alignattn.utils.errors import AlignAttnError

TEMPERATURE_RANGE = (0.01, 100.0)
"""Where a temperature is looked for: it would run away on rows that are all right, or no better than chance."""

LOG_TEMPERATURE_TOLERANCE = 1e-6
AT_BOUND = 1.01
"""A temperature within this factor of an end of the range is at it."""


def is_at_bound(temperature: float) -> bool:
    """Tell whether the search stopped at an end of `TEMPERATURE_RANGE`: the rows then tell no temperature."""
    low, high = TEMPERATURE_RANGE
    return temperature < low * AT_BOUND or temperature > high / AT_BOUND


def fit_temperature(log_probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the temperature T that minimises the negative log-likelihood of softmax(z / T) (Guo et al. 2017).

    The likelihood has a single optimum in T, which a bounded scalar search over log T finds. It is never below that of
    T = 1, which is returned where no temperature is better.

    Args:
        log_probabilities: `[N, C]`, z; logits serve as well, being the same up to a constant a row.
        labels: `[N]`, class numbers.
    """
    logits, classes = np.asarray(log_probabilities, dtype=np.float64), np.asarray(labels)
    if logits.ndim != 2 or logits.size == 0 or classes.shape != logits.shape[:1]:
        raise AlignAttnError(
            f"a temperature needs logits [N, C] and labels [N] of at least one row, not {logits.shape} "
            f"and {classes.shape}"
        )
    if not np.isfinite(logits).all():
        row = int(np.argmin(np.isfinite(logits).all(axis=1)))
        raise AlignAttnError(f"row {row + 1}: its logits must be finite; log_probabilities makes such of probabilities")
    for row, problem in find_bad_rows(softmax(logits, axis=1), classes).items():
        raise AlignAttnError(f"row {row + 1}: {problem}")
    index, targets = np.arange(len(logits)), classes.astype(np.int64)

    def loss(log_temperature: float) -> float:
        scaled = log_softmax(logits / math.exp(log_temperature), axis=1)
        return -float(scaled[index, targets].mean())

    low, high = map(math.log, TEMPERATURE_RANGE)
    found = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": LOG_TEMPERATURE_TOLERANCE})
    return math.exp(found.x) if found.fun < loss(0.0) else 1.0


def apply_temperature(probabilities: ArrayLike, temperature: float) -> NDArray[np.float64]:
    """Return softmax(log p / T) of distributions `[N, C]`; the likeliest class stays the likeliest."""
    if not 0 < temperature < math.inf:
        raise AlignAttnError(f"temperature {temperature} must be positive and finite")
    return np.asarray(softmax(log_probabilities(probabilities) / temperature, axis=1))
