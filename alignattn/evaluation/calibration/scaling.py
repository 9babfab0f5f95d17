"""Calibration of probabilities by temperature, vector scaling or isotonic regression, fitted on half of a split.

Temperature scaling (Guo et al. 2017, section 4.2) fits one number that makes a classifier more or less confident. The
others have more parameters, so they need more rows, and they may change which class is the likeliest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax, softmax

from alignattn.evaluation.calibration.measures import (
    as_array,
    checked_rows,
    find_bad_rows,
    log_probabilities,
    negative_log_likelihood,
)
from alignattn.evaluation.calibration.predictions import Predictions, all_splits
from alignattn.utils.errors import AlignAttnError

TEMPERATURE_RANGE = (0.01, 100.0)
"""Range of the search: on rows that are all correct, or at chance, the temperature would diverge."""

LOG_TEMPERATURE_TOLERANCE = 1e-6
AT_BOUND = 1.01
"""A temperature within this factor of an end of the range counts as that end."""


def is_at_bound(temperature: float) -> bool:
    """Return whether the search stopped at an end of `TEMPERATURE_RANGE`; the rows then determine no temperature."""
    low, high = TEMPERATURE_RANGE
    return temperature < low * AT_BOUND or temperature > high / AT_BOUND


def fit_temperature(log_probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the temperature T that minimises the negative log-likelihood of softmax(z / T) (Guo et al. 2017).

    The likelihood has a single optimum in T, which a bounded scalar search over log T finds. If no temperature is
    better than T = 1, the result is 1.

    Args:
        log_probabilities: `[N, C]`, z; logits serve as well: they differ by a constant per row.
        labels: `[N]`, class numbers.

    Raises:
        AlignAttnError: if there are no rows, a logit is not finite, or a label is not one of the classes.
    """
    logits, classes = as_array(log_probabilities, "logits", np.float64), as_array(labels, "labels")
    if logits.ndim != 2 or logits.size == 0 or classes.shape != logits.shape[:1]:
        raise AlignAttnError(
            f"a temperature needs logits [N, C] and labels [N] of at least one row, not {logits.shape} "
            f"and {classes.shape}"
        )
    if not np.isfinite(logits).all():
        row = int(np.argmin(np.isfinite(logits).all(axis=1)))
        raise AlignAttnError(f"row {row + 1}: its logits must be finite; log_probabilities converts probabilities")
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


MAX_PARAMETER = 100.0
"""Bound of the parameters of vector scaling, which would diverge on separable rows."""


class Scaling(Protocol):
    """A fitted scaling."""

    def apply(self, probabilities: ArrayLike) -> NDArray[np.float64]:
        """Return distributions `[N, C]`, calibrated."""


@dataclass(frozen=True)
class VectorScaling:
    """softmax(w ∘ log p + b) (Guo et al. 2017, section 4.2).

    Attributes:
        weights: w, `[C]`.
        biases: b, `[C]`, centred: softmax ignores a constant.
    """

    weights: NDArray[np.float64]
    biases: NDArray[np.float64]

    def apply(self, probabilities: ArrayLike) -> NDArray[np.float64]:
        """Return calibrated distributions `[N, C]` of distributions `[N, C]`."""
        return np.asarray(softmax(log_probabilities(probabilities) * self.weights + self.biases, axis=1))


@dataclass(frozen=True)
class IsotonicScaling:
    """A monotone function of each class's own probability; the results are divided by their sum.

    After Zadrozny & Elkan 2002, "Transforming Classifier Scores into Accurate Multiclass Probability Estimates",
    sections 3 and 4, with scikit-learn's `IsotonicRegression`. A probability may become 0; its log-likelihood is then
    that of `PROBABILITY_FLOOR`.

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
    """Return the vector scaling with the largest likelihood and parameters within ± `MAX_PARAMETER`.

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
    """Return the isotonic regression of each class against the rest; arguments and errors as for `fit_vector`."""
    from sklearn.isotonic import IsotonicRegression

    rows, classes = checked_rows(probabilities, labels)
    by_class = [
        IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(rows[:, index], classes == index)
        for index in range(rows.shape[1])
    ]
    return IsotonicScaling(by_class)


SCALINGS: Mapping[str, Callable[[ArrayLike, ArrayLike], Scaling]] = {"vector": fit_vector, "isotonic": fit_isotonic}
"""Functions that fit a scaling to probabilities `[N, C]` and labels `[N]`, by name."""


MIN_TO_HALVE = 2
BOUND_NOTE = " (the end of the search: these rows determine no temperature)"


@dataclass(frozen=True)
class Temperature:
    """A fitted temperature.

    Attributes:
        value: T.
        file: the file that it was fitted on.
        split: the split of the file.
        rows: the rows that it was fitted on, as indices into the file's good rows.
        split_rows: the number of good rows of the split.
        nll: mean negative log-likelihood of `rows`, in nats, before and after.
        others: other scalings fitted on the same rows, by name in `SCALINGS`.
    """

    value: float
    file: Path
    split: str
    rows: NDArray[np.int64]
    split_rows: int
    nll: tuple[float, float]
    others: Mapping[str, Scaling] = field(default_factory=dict)

    def to_dict(self, file_name: str) -> dict[str, Any]:
        """Return it as plain JSON types, with the number of rows instead of the rows, and `file_name` as the file."""
        before, after = self.nll
        return {
            "value": self.value,
            "fitted_on": {"file": file_name, "split": self.split, "rows": len(self.rows)},
            "negative_log_likelihood": {"before": before, "after": after},
            **({"others": sorted(self.others)} if self.others else {}),
        }

    def describe(self) -> str:
        """Return one line on the temperature and the rows that it was fitted on."""
        before, after = self.nll
        note = BOUND_NOTE if is_at_bound(self.value) else ""
        return (
            f"temperature {self.value:.3f}{note}: fitted on {len(self.rows)} of the {self.split_rows} rows of "
            f"split {self.split!r} of {self.file} (NLL there {before:.3f} before, {after:.3f} after); the measures "
            f"of that split use the other {self.split_rows - len(self.rows)} rows."
            + (f" On the same rows: {', '.join(self.others)}." if self.others else "")
        )


def fit_temperatures(
    files: Sequence[Predictions], split: str | None, seed: int, also: Sequence[str] = ()
) -> list[Temperature | None]:
    """Return the temperature of each file; None for each if `split` is None.

    A file with the split has its own temperature, fitted on a half drawn by the seed. If only one file has the split,
    the others, such as the same model's predictions on other data, use that file's temperature. The `SCALINGS` in
    `also` are fitted on the same rows.
    """
    if split is None:
        return [None] * len(files)
    fitted = [_fit(file, split, seed, also) if split in file.split_names() else None for file in files]
    found = [temperature for temperature in fitted if temperature is not None]
    if not found:
        raise AlignAttnError(f"--fit_on: there is no split {split!r}: choose one of {', '.join(all_splits(files))}")
    if 1 < len(found) < len(files):
        path = files[fitted.index(None)].path
        raise AlignAttnError(f"--fit_on: {path} has no split {split!r}, but several others do: give this file alone")
    return [temperature or found[0] for temperature in fitted]


def _fit(file: Predictions, split: str, seed: int, also: Sequence[str]) -> Temperature:
    rows = np.flatnonzero(file.splits == split)
    if len(rows) < MIN_TO_HALVE:
        raise AlignAttnError(f"--fit_on: split {split!r} of {file.path} has one row, which cannot be split in half")
    half = np.sort(np.random.default_rng(seed).permutation(rows)[: len(rows) // 2])
    probabilities, labels = file.probabilities[half], file.labels[half]
    value = fit_temperature(log_probabilities(probabilities), labels)
    after = apply_temperature(probabilities, value)
    nll = negative_log_likelihood(probabilities, labels), negative_log_likelihood(after, labels)
    others = {name: SCALINGS[name](probabilities, labels) for name in also}
    return Temperature(value, file.path, split, half, len(rows), nll, others)
