"""The metrics: what other code needs to know about each, and their values. This module has no heavy imports."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from alignattn.utils.errors import AlignAttnError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        function: the name of its function in `sklearn.metrics`, or of a correlation in `scipy.stats`; `score` adds the
            undefined cases. None if a task type computes it.
        options: further arguments of the function.
        is_of_scores: whether it is for scores, not classes.
        is_error: whether it has a unit, such as that of the scores; all others are fractions.
        lower_is_better: whether a lower value is better.
        needs_variation: whether it is undefined if all references are equal.
        min_rows: the minimum number of rows.
        hub_name: the Hub's name, if it is another.
    """

    function: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    is_of_scores: bool = False
    is_error: bool = False
    lower_is_better: bool = False
    needs_variation: bool = False
    min_rows: int = 1
    hub_name: str = ""


_CORRELATION: dict[str, Any] = {"is_of_scores": True, "needs_variation": True, "min_rows": 2}
_ERROR: dict[str, Any] = {"is_of_scores": True, "is_error": True, "lower_is_better": True}

METRICS: Mapping[str, Metric] = {
    "accuracy": Metric("accuracy_score"),
    # F1 of class 1 of two; undefined if class 1 does not occur.
    "f1": Metric("f1_score", {"average": "binary", "zero_division": math.nan}),
    # The mean over the classes that are predicted or true; 0 for a class without a correct prediction.
    "macro_f1": Metric("f1_score", {"average": "macro", "zero_division": 0.0}, hub_name="f1"),
    "matthews_correlation": Metric("matthews_corrcoef", needs_variation=True),
    "pearson": Metric("pearsonr", **_CORRELATION, hub_name="pearsonr"),
    "spearmanr": Metric("spearmanr", **_CORRELATION),
    "mse": Metric("mean_squared_error", **_ERROR),
    "mae": Metric("mean_absolute_error", **_ERROR),
    "micro_f1": Metric(hub_name="f1"),
    "token_accuracy": Metric(hub_name="accuracy"),
    "vqa_accuracy": Metric(),
    "error_rate": Metric(lower_is_better=True),
    **{f"{group}exact": Metric(hub_name="exact_match") for group in ("", "has_answer_", "no_answer_", "best_")},
    **{f"{group}f1": Metric(hub_name="f1") for group in ("has_answer_", "no_answer_", "best_")},
    "loss": Metric(is_error=True, lower_is_better=True),
}
"""The metrics by name. Those that are not here are fractions and have the Hub's name."""

# pydantic checks the metrics of a task's file against the table.
if TYPE_CHECKING:
    MetricName = str
else:
    MetricName = Literal[tuple(name for name, metric in METRICS.items() if metric.function is not None)]


def metric_of(name: str) -> Metric:
    """Return the metric of a name, which a split's name may precede."""
    endings = [ending for ending in METRICS if f"_{name}".endswith(f"_{ending}")]
    return METRICS[max(endings, key=len)] if endings else Metric()


def score(name: MetricName, predictions: "ArrayLike", references: "ArrayLike") -> float:
    """Return a metric as a fraction, or an error in the unit of the scores.

    A correlation is NaN if the references are constant, and 0, as by chance, if only the predictions are.

    Args:
        name: the name of the metric, which has a function.
        predictions: `[N]` class numbers or scores.
        references: `[N]` class numbers or scores.
    """
    import numpy as np

    metric = METRICS[name]
    assert metric.function is not None
    # float32 would round scores at the 7th digit.
    dtype = np.float64 if metric.is_of_scores else np.int64
    predicted, true = np.asarray(predictions, dtype=dtype), np.asarray(references, dtype=dtype)
    if len(true) < metric.min_rows:
        raise AlignAttnError(f"{name} needs at least {metric.min_rows} rows and got {len(true)}: evaluate on more rows")
    if metric.needs_variation and np.ptp(true) == 0:
        return math.nan
    if metric.needs_variation and np.ptp(predicted) == 0:
        return 0.0
    if metric.is_of_scores and not metric.is_error:
        from scipy import stats

        return float(getattr(stats, metric.function)(predicted, true).statistic)
    from sklearn import metrics

    return float(getattr(metrics, metric.function)(true, predicted, **metric.options))


def class_scores(
    labels: "NDArray[Any]", predictions: "NDArray[Any]", names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return `precision`, `recall`, `f1` and `support` of each class; undefined scores are 0.

    Args:
        labels: `[N]` class numbers, or `[N, C]` of 0 and 1.
        predictions: in the same form.
        names: the class names, `[C]`.
    """
    import numpy as np
    from sklearn.metrics import precision_recall_fscore_support

    numbers = np.arange(len(names))
    found = precision_recall_fscore_support(labels, predictions, labels=numbers, average=None, zero_division=0)
    return named_scores(names, found)


def named_scores(names: Sequence[str], found: Sequence[Sequence[float]]) -> dict[str, dict[str, float]]:
    """Return the scores of each class by name.

    Args:
        names: the class names, `[C]`.
        found: precision, recall, F1 and support, `[C]` each, as scikit-learn and seqeval return them.
    """
    return {
        name: {"precision": float(precision), "recall": float(recall), "f1": float(f1), "support": int(support)}
        for name, precision, recall, f1, support in zip(names, *found, strict=True)
    }
