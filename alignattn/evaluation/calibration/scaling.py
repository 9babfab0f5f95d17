"""What else than a temperature makes probabilities calibrated: vector scaling and isotonic regression.

Both have more to fit than one number, so more rows to be fitted on, and both may change which class is the likeliest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from alignattn.evaluation.calibration.rows import checked_rows, log_probabilities

MAX_PARAMETER = 100.0
"""Of vector scaling: on rows that a line separates the likelihood has no optimum, and would run away."""


class Scaling(Protocol):
    """What was fitted."""

    def apply(self, probabilities: ArrayLike) -> NDArray[np.float64]:
        """Return calibrated distributions `[N, C]` of distributions `[N, C]`."""


@dataclass(frozen=True)
class VectorScaling:
    """softmax(w ∘ log p + b) (Guo et al. 2017, section 4.2).

    Attributes:
        weights: w, `[C]`.
        biases: b, `[C]`, with mean 0: softmax does not see it.
    """

    weights: NDArray[np.float64]
    biases: NDArray[np.float64]

    def apply(self, probabilities: ArrayLike) -> NDArray[np.float64]:
        """Return calibrated distributions `[N, C]` of distributions `[N, C]`."""
        return np.asarray(softmax(log_probabilities(probabilities) * self.weights + self.biases, axis=1))


@dataclass(frozen=True)
class IsotonicScaling:
    """A monotone step function of each class's own probability, the results divided by their sum.

    After Zadrozny & Elkan 2002, "Transforming Classifier Scores into Accurate Multiclass Probability Estimates",
    sections 3 and 4; by scikit-learn's `IsotonicRegression`. It may say 0, of which the log-likelihood is the floor's.

    Attributes:
        by_class: the fitted function of each class.
    """

    by_class: Sequence[Any]

    def apply(self, probabilities: ArrayLike) -> NDArray[np.float64]:
        """Return calibrated distributions `[N, C]` of distributions `[N, C]`."""
        rows = np.asarray(probabilities, dtype=np.float64)
        shares = np.stack([one.predict(rows[:, index]) for index, one in enumerate(self.by_class)], axis=1)
        total = shares.sum(axis=1, keepdims=True)
        uniform = np.full_like(shares, 1 / shares.shape[1])
        return np.divide(shares, total, out=uniform, where=total > 0)


def fit_vector(probabilities: ArrayLike, labels: ArrayLike) -> VectorScaling:
    """Return the vector scaling with the largest likelihood, its parameters within `MAX_PARAMETER` of 0.

    Args:
        probabilities: `[N, C]`.
        labels: `[N]`, class numbers.

    Raises:
        AlignAttnError: as the measures of calibration do.
    """
    rows, classes = checked_rows(probabilities, labels)
    logits, size = log_probabilities(rows), rows.shape[1]
    targets = np.eye(size)[classes]

    def loss(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        scaled = log_softmax(logits * parameters[:size] + parameters[size:], axis=1)
        slopes = (np.exp(scaled) - targets) / len(rows)
        return -float((scaled * targets).sum() / len(rows)), np.concatenate([(slopes * logits).sum(0), slopes.sum(0)])

    start = np.concatenate([np.ones(size), np.zeros(size)])
    bounds = [(-MAX_PARAMETER, MAX_PARAMETER)] * len(start)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-14, "gtol": 1e-9})
    weights, biases = np.split(found.x, 2)
    return VectorScaling(weights, biases - biases.mean())


def fit_isotonic(probabilities: ArrayLike, labels: ArrayLike) -> IsotonicScaling:
    """Return the isotonic regression of each class against the rest; arguments and errors as of `fit_vector`."""
    from sklearn.isotonic import IsotonicRegression

    rows, classes = checked_rows(probabilities, labels)
    by_class = [
        IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(rows[:, index], classes == index)
        for index in range(rows.shape[1])
    ]
    return IsotonicScaling(by_class)


SCALINGS: Mapping[str, Callable[[ArrayLike, ArrayLike], Scaling]] = {"vector": fit_vector, "isotonic": fit_isotonic}
"""By name; each takes probabilities `[N, C]` and labels `[N]`."""
