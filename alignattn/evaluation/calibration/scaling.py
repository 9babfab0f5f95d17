"""Temperature scaling (Guo et al. 2017, section 4.2), fitted on half of a split.

One number makes a classifier more or less confident; the likeliest class stays the likeliest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from alignattn.evaluation.calibration.measures import (
    as_array,
    find_bad_rows,
    log_probabilities,
    negative_log_likelihood,
)
from alignattn.evaluation.calibration.predictions import Predictions
from alignattn.utils.errors import AlignAttnError

TEMPERATURE_RANGE = (0.01, 100.0)
"""Range of the search: on rows at chance, the temperature would diverge."""


def temperature_note(temperature: float) -> str:
    """Return what to know of a fitted temperature, in brackets, if its rows determine none; empty if they do."""
    low, high = TEMPERATURE_RANGE
    if temperature == 1:
        return " (none is better; rows that are all right determine none)"
    # The search ends near an end of the range, within its tolerance.
    is_at_bound = temperature < low * 1.01 or temperature > high / 1.01
    return " (the end of the search: these rows determine no temperature)" if is_at_bound else ""


def fit_temperature(log_probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the temperature T that minimises the negative log-likelihood of softmax(z / T) (Guo et al. 2017).

    The likelihood has a single optimum in T, which a bounded scalar search over log T finds. If no temperature is
    better than T = 1, the result is 1; also if all rows are right, because the likelihood then grows down to T = 0.

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

    if (logits[index, targets] == logits.max(axis=1)).all():
        return 1.0

    def loss(log_temperature: float) -> float:
        scaled = log_softmax(logits / math.exp(log_temperature), axis=1)
        return -float(scaled[index, targets].mean())

    low, high = map(math.log, TEMPERATURE_RANGE)
    found = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-6})
    return math.exp(found.x) if found.fun < loss(0.0) else 1.0


def apply_temperature(probabilities: ArrayLike, temperature: float) -> NDArray[np.float64]:
    """Return softmax(log p / T) of distributions `[N, C]`; the likeliest class stays the likeliest."""
    if not 0 < temperature < math.inf:
        raise AlignAttnError(f"temperature {temperature} must be positive and finite")
    return np.asarray(softmax(log_probabilities(probabilities) / temperature, axis=1))


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
    """

    value: float
    file: Path
    split: str
    rows: NDArray[np.int64]
    split_rows: int
    nll: tuple[float, float]

    def to_dict(self, file_name: str) -> dict[str, Any]:
        """Return it as plain JSON types, with the number of rows instead of the rows, and `file_name` as the file."""
        before, after = self.nll
        return {
            "value": self.value,
            "fitted_on": {"file": file_name, "split": self.split, "rows": len(self.rows)},
            "negative_log_likelihood": {"before": before, "after": after},
        }

    def describe(self) -> str:
        """Return one line on the temperature and the rows that it was fitted on."""
        before, after = self.nll
        return (
            f"temperature {self.value:.3f}{temperature_note(self.value)}: fitted on {len(self.rows)} of the "
            f"{self.split_rows} rows of split {self.split!r} of {self.file} (NLL "
            f"there {before:.3f} before, {after:.3f} after); the measures "
            f"of that split use the other {self.split_rows - len(self.rows)} rows."
        )


def fit_temperatures(files: Sequence[Predictions], split: str | None, seed: int) -> list[Temperature | None]:
    """Return the temperature of each file; None for each if `split` is None.

    A file with the split has its own temperature, fitted on a half drawn by the seed. If only one file has the split,
    the others, such as the same model's predictions on other data, use that file's temperature.
    """
    if split is None:
        return [None] * len(files)
    with_split = [file for file in files if split in file.split_names()]
    if not with_split:
        names = dict.fromkeys(name for file in files for name in file.split_names())
        raise AlignAttnError(f"--fit_on: there is no split {split!r}: choose one of {', '.join(names)}")
    if 1 < len(with_split) < len(files):
        path = next(file.path for file in files if split not in file.split_names())
        raise AlignAttnError(f"--fit_on: {path} has no split {split!r}, but several others do: give this file alone")
    temperatures = {}
    for file in with_split:
        rows = np.flatnonzero(file.splits == split)
        if len(rows) < 2:
            raise AlignAttnError(f"--fit_on: split {split!r} of {file.path} has one row, which cannot be split in half")
        half = np.sort(np.random.default_rng(seed).permutation(rows)[: len(rows) // 2])
        probabilities, labels = file.probabilities[half], file.labels[half]
        value = fit_temperature(log_probabilities(probabilities), labels)
        after = apply_temperature(probabilities, value)
        nll = negative_log_likelihood(probabilities, labels), negative_log_likelihood(after, labels)
        temperatures[file.path] = Temperature(value, file.path, split, half, len(rows), nll)
    only = temperatures[with_split[0].path]
    return [temperatures.get(file.path, only) for file in files]
