"""Scores of slices of the evaluation rows: the rows with the same value in a column."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from alignattn.evaluation.statistics.example_scores import POSITIVE_CLASS, ExampleScores
from alignattn.finetuning.examples import metric_examples
from alignattn.tasks.labels import parse_label
from alignattn.tasks.metrics import METRICS

MAX_NUMBERS = 10
"""A column with more distinct numbers is split at its quartiles."""
MIN_DIGITS, MAX_DIGITS = 6, 17
"""Significant digits of a quarter's ends in its name; 17 distinguish any two numbers of 64 bits."""
MAX_SLICES = 50
"""If a column has more values, the slices are those with the most rows."""
MISSING = "(missing)"

SliceScores = Mapping[str, Mapping[str, ExampleScores]]
"""The row scores by slice and metric."""


def slices_of(values: Sequence[Any]) -> dict[str, NDArray[np.int64]]:
    """Return the row indices of each slice by name; slices are in the order of their values, missing values last.

    Args:
        values: the values of the column, one per row; a number may be written as text, as in a CSV file.
    """
    parsed = [None if _is_missing(value) else parse_label(value) for value in values]
    numbers = {value for value in parsed if value is not None and not isinstance(value, str)}
    names = {value: str(value) for value in parsed if value is not None}
    if len(numbers) == len(names) > MAX_NUMBERS:
        # As the quarters' ends: not every integer of 64 bits is a float.
        parsed = [None if value is None else float(value) for value in parsed]
        names = _quarters(np.array([value for value in parsed if value is not None]))
    ordered = sorted(names, key=lambda value: (isinstance(value, str), value))
    rows: dict[str, list[int]] = {name: [] for name in (*(names[value] for value in ordered), MISSING)}
    for row, value in enumerate(parsed):
        rows[MISSING if value is None else names[value]].append(row)
    largest = sorted(rows, key=lambda name: -len(rows[name]))[:MAX_SLICES]
    return {name: np.array(rows[name]) for name in rows if name in largest and rows[name]}


def _is_missing(value: Any) -> bool:
    return value is None or value != value or str(value).strip() == ""


def _quarters(values: NDArray[np.float64]) -> dict[Any, str]:
    """Return for each value the range of its quarter, as text."""
    distinct = np.unique(values)
    quarter = np.searchsorted(np.quantile(values, (0.25, 0.5, 0.75)), distinct)
    parts = [distinct[quarter == number] for number in np.unique(quarter)]
    is_whole = bool((distinct == np.trunc(distinct)).all())
    for digits in range(MIN_DIGITS, MAX_DIGITS + 1):  # close numbers differ in late digits only
        form = ".0f" if is_whole else f".{digits}g"
        names = [f"{part[0]:{form}} to {part[-1]:{form}}" for part in parts]
        if len(set(names)) == len(parts):
            break
    return {value: name for part, name in zip(parts, names, strict=True) for value in part.tolist()}


def slice_examples(
    predictions: pa.Table, slices: Mapping[str, NDArray[np.int64]], metrics: Sequence[str]
) -> SliceScores:
    """Return the row scores of each metric that is a statistic of rows, by slice.

    A metric that is undefined for the rows of a slice is left out: a correlation, also Matthews', if all have one
    label, and F1 without a row of class 1, true or predicted.

    Args:
        predictions: the predictions of all rows, in their order.
        slices: the slices, as from `slices_of`.
        metrics: the names of the metrics.
    """
    scores: dict[str, dict[str, ExampleScores]] = {}
    for name, rows in slices.items():
        part = predictions.take(pa.array(rows))
        undefined = _undefined(part)
        found = {metric: metric_examples(metric, part) for metric in metrics if metric not in undefined}
        scores[name] = {metric: examples for metric, examples in found.items() if examples is not None}
    return scores


def _undefined(part: pa.Table) -> set[str]:
    """Return the metrics that are undefined for rows with one class or score each."""
    if part["label"].type.num_fields > 0:
        return set()
    labels = part["label"].unique().to_pylist()
    undefined = {name for name, metric in METRICS.items() if metric.needs_variation and len(labels) == 1}
    return undefined if POSITIVE_CLASS in {*labels, *part["prediction"].unique().to_pylist()} else undefined | {"f1"}


def measured_slices(scores: SliceScores) -> dict[str, dict[str, float]]:
    """Return the number of rows and the metrics of each slice."""
    return {
        name: {"rows": len(next(iter(of_slice.values())).examples)}
        | {metric: one.value for metric, one in of_slice.items()}
        for name, of_slice in scores.items()
        if of_slice
    }
