"""Temperatures of saved predictions, each fitted on one half of a split, so that the other half can judge it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alignattn.evaluation.calibration.measures import negative_log_likelihood
from alignattn.evaluation.calibration.predictions import Predictions, all_splits
from alignattn.evaluation.calibration.rows import log_probabilities
from alignattn.evaluation.calibration.scaling import SCALINGS, Scaling
from alignattn.evaluation.calibration.temperature import apply_temperature, fit_temperature, is_at_bound
from alignattn.utils.errors import AlignAttnError

MIN_TO_HALVE = 2
BOUND_NOTE = " (the end of the search: these rows tell no temperature)"


@dataclass(frozen=True)
class Temperature:
    """A fitted temperature.

    Attributes:
        value: T.
        file: the file that it was fitted on.
        split: of the file.
        rows: those that it was fitted on, as indices into the file's good rows.
        split_rows: how many good rows the split has in all.
        nll: mean negative log-likelihood of `rows`, in nats, before and after.
        others: what else was fitted on the same rows, by name in `SCALINGS`.
    """

    value: float
    file: Path
    split: str
    rows: NDArray[np.int64]
    split_rows: int
    nll: tuple[float, float]
    others: Mapping[str, Scaling] = field(default_factory=dict)

    def to_dict(self, file_name: str) -> dict[str, Any]:
        """Return it as plain JSON types, with the number of rows in place of the rows, its file by a name."""
        before, after = self.nll
        return {
            "value": self.value,
            "fitted_on": {"file": file_name, "split": self.split, "rows": len(self.rows)},
            "negative_log_likelihood": {"before": before, "after": after},
            **({"others": sorted(self.others)} if self.others else {}),
        }

    def describe(self) -> str:
        """Return a line that tells what it was fitted on."""
        before, after = self.nll
        note = BOUND_NOTE if is_at_bound(self.value) else ""
        return (
            f"temperature {self.value:.3f}{note}: fitted on {len(self.rows)} of the {self.split_rows} rows of split "
            f"{self.split!r} of {self.file} (NLL there {before:.3f} before, {after:.3f} after); the figures of that "
            f"split are those of the other {self.split_rows - len(self.rows)} rows."
            + (f" On the same rows: {', '.join(self.others)}." if self.others else "")
        )


def fit_temperatures(
    files: Sequence[Predictions], split: str | None, seed: int, also: Sequence[str] = ()
) -> list[Temperature | None]:
    """Return the temperature of each file, or None where none is asked for.

    A file that holds the split has its own, fitted on a half drawn by the seed. Where a single file holds it,
    the others, such as the same model's predictions on other data, share that one. With it are fitted those of
    `SCALINGS` that `also` names.
    """
    if split is None:
        return [None] * len(files)
    fitted = [_fit(file, split, seed, also) if split in file.split_names() else None for file in files]
    found = [temperature for temperature in fitted if temperature is not None]
    if not found:
        raise AlignAttnError(f"--fit_on: there is no split {split!r}: choose one of {', '.join(all_splits(files))}")
    if 1 < len(found) < len(files):
        path = files[fitted.index(None)].path
        raise AlignAttnError(f"--fit_on: {path} has no split {split!r}, and several others have: give it by itself")
    return [temperature or found[0] for temperature in fitted]


def _fit(file: Predictions, split: str, seed: int, also: Sequence[str]) -> Temperature:
    rows = np.flatnonzero(file.splits == split)
    if len(rows) < MIN_TO_HALVE:
        raise AlignAttnError(f"--fit_on: split {split!r} of {file.path} has one row, and one half of it is fitted on")
    half = np.sort(np.random.default_rng(seed).permutation(rows)[: len(rows) // 2])
    probabilities, labels = file.probabilities[half], file.labels[half]
    value = fit_temperature(log_probabilities(probabilities), labels)
    after = apply_temperature(probabilities, value)
    nll = negative_log_likelihood(probabilities, labels), negative_log_likelihood(after, labels)
    others = {name: SCALINGS[name](probabilities, labels) for name in also}
    return Temperature(value, file.path, split, half, len(rows), nll, others)
