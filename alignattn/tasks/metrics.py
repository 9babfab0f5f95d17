"""The metrics of labelled tasks, computed by scikit-learn and SciPy."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    matthews_corrcoef,
    mean_absolute_error,
    mean_squared_error,
)

from alignattn.tasks.processor import check_finite
from alignattn.tasks.task import CORRELATIONS, ERRORS, LabelledTask, MetricName
from alignattn.utils.errors import AlignAttnError

METRICS: Mapping[MetricName, Callable[[NDArray[Any], NDArray[Any]], Any]] = {
    "accuracy": accuracy_score,
    # F1 of class 1 of two; undefined if class 1 does not occur.
    "f1": lambda true, predicted: f1_score(true, predicted, average="binary", zero_division=math.nan),
    # The mean over the classes that are predicted or true; 0 for a class without a correct prediction.
    "macro_f1": lambda true, predicted: f1_score(true, predicted, average="macro", zero_division=0.0),
    "matthews_correlation": matthews_corrcoef,
    "pearson": lambda true, predicted: pearsonr(predicted, true).statistic,
    "spearmanr": lambda true, predicted: spearmanr(predicted, true).statistic,
    "mse": mean_squared_error,
    "mae": mean_absolute_error,
}
"""Functions of references and predictions, `[N]` each; `score` adds the undefined cases."""

NEEDING_VARIATION = CORRELATIONS | {"matthews_correlation"}
"""Metrics that are undefined if all references are equal."""


def score(name: MetricName, predictions: ArrayLike, references: ArrayLike) -> float:
    """Return a metric as a fraction, or an error in the unit of the scores.

    A correlation is NaN if the references are constant, and 0, as by chance, if only the predictions are.

    Args:
        name: the name of the metric.
        predictions: `[N]` class numbers or scores.
        references: `[N]` class numbers or scores.
    """
    # float32 would round scores at the 7th digit.
    dtype = np.float64 if name in CORRELATIONS | ERRORS else np.int64
    predicted, true = np.asarray(predictions, dtype=dtype), np.asarray(references, dtype=dtype)
    fewest = 2 if name in CORRELATIONS else 1
    if len(true) < fewest:
        raise AlignAttnError(f"{name} needs at least {fewest} rows and got {len(true)}: evaluate on more rows")
    if name in NEEDING_VARIATION and np.ptp(true) == 0:
        return math.nan
    if name in NEEDING_VARIATION and np.ptp(predicted) == 0:
        return 0.0
    return float(METRICS[name](true, predicted))


def compute_metrics(task: LabelledTask, logits: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Return the metrics of a model's outputs: the task's `measured` metrics that are in `METRICS`.

    Args:
        task: the task of the outputs.
        logits: `[N, C]` for C classes; `[N, 1]` or `[N]` for a regression.
        labels: `[N]` class numbers or scores.

    Returns:
        The value of each metric, as `score` returns it.
    """
    predictions, references = predict(task, np.asarray(logits)), np.asarray(labels)
    if predictions.shape != references.shape:
        raise ValueError(f"predictions {predictions.shape} and labels {references.shape} differ in shape")
    return measure(task, predictions, references)


def measure(task: LabelledTask, predictions: ArrayLike, references: ArrayLike) -> dict[str, float]:
    """Return the task's `measured` metrics that are in `METRICS`; arguments as for `score`."""
    return {name: score(name, predictions, references) for name in task.measured if name in METRICS}


def predict(task: LabelledTask, logits: NDArray[Any]) -> NDArray[Any]:
    """Return the predictions of a model's outputs, `[N]`: the most probable class, or the score as float64."""
    if task.is_regression and logits.ndim == 1:
        logits = logits[:, np.newaxis]
    if logits.ndim != 2 or logits.shape[1] != task.num_labels:
        raise ValueError(f"logits {logits.shape} must be [N, {task.num_labels}] for task {task.name!r}")
    check_finite(logits)
    return logits[:, 0].astype(np.float64) if task.is_regression else np.asarray(logits.argmax(axis=1))
