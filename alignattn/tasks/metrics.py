"""The metrics of the tasks: `evaluate.Metric` classes on scikit-learn and SciPy; none comes from the Hub.

Importing this module takes seconds (`evaluate`): import it where scores are computed.
"""

import math
from typing import Any

import datasets
import evaluate
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, mean_absolute_error, mean_squared_error

from alignattn.tasks.outputs import check_finite
from alignattn.tasks.task import LabelledTask, MetricName
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.in_memory_metric import InMemoryMetric


class _OneNumber(InMemoryMetric):
    """A metric of predictions [N] and references [N] whose result is `{its name: one number}`; NaN if undefined."""

    dtype: str
    smallest_count = 1

    def _score(self, predictions: NDArray[Any], references: NDArray[Any]) -> float:
        """The number; both arrays are [N] with N at least `smallest_count`."""
        raise NotImplementedError

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.__doc__ or "",
            citation="",
            inputs_description="",
            # `evaluate` stores what it scores in these types: float32 would round scores at the 7th digit.
            features=datasets.Features(
                {"predictions": datasets.Value(self.dtype), "references": datasets.Value(self.dtype)}
            ),
        )

    def score(self, predictions: ArrayLike, references: ArrayLike) -> dict[str, float]:
        """Return what `compute` does, of the arrays as they are.

        `compute` writes them to a table first, which takes ten times as long and counts where an epoch is one step.
        """
        predicted, true = np.asarray(predictions, dtype=self.dtype), np.asarray(references, dtype=self.dtype)
        if len(true) < self.smallest_count:
            raise AlignAttnError(
                f"{self.name} needs at least {self.smallest_count} rows and got {len(true)}: evaluate on more rows"
            )
        return {self.name: float(self._score(predicted, true))}

    def _compute(self, predictions: list[Any], references: list[Any]) -> dict[str, float]:
        return self.score(predictions, references)


class _OfClasses(_OneNumber):
    dtype = "int64"


class _Correlation(_OneNumber):
    """A correlation of scores: undefined where the references are constant, 0 where the predictions alone are."""

    dtype = "float64"
    smallest_count = 2

    def _correlation(self, predictions: NDArray[Any], references: NDArray[Any]) -> float:
        """The coefficient; neither array is constant."""
        raise NotImplementedError

    def _score(self, predictions: NDArray[Any], references: NDArray[Any]) -> float:
        if np.ptp(references) == 0:
            return math.nan
        # A model that tells nothing apart counts as one that is right by chance, as in Matthews' correlation.
        return 0.0 if np.ptp(predictions) == 0 else self._correlation(predictions, references)


class Accuracy(_OfClasses):
    """The share of predictions that are right."""

    def _score(self, predictions: NDArray[Any], references: NDArray[Any]) -> float:
        return float(accuracy_score(references, predictions))


class F1(_OfClasses):
    """The harmonic mean of precision and recall for class 1 of two; undefined where class 1 is nowhere."""

    def _score(self, predictions: NDArray[Any], references: NDArray[Any]) -> float:
        return float(f1_score(references, predictions, pos_label=1, average="binary", zero_division=math.nan))


class MacroF1(_OfClasses):
    """The mean over the classes, predicted or true, of the F1 of each; 0 for a class never found."""

    def _score(self, predictions: NDArray[Any], references: NDArray[Any]) -> float:
        return float(f1_score(references, predictions, average="macro", zero_division=0.0))


class MatthewsCorrelation(_OfClasses):
    """Matthews' correlation coefficient (Matthews 1975): undefined where the references are constant.

    It is 0 where the predictions alone are.
    """

    def _score(self, predictions: NDArray[Any], references: NDArray[Any]) -> float:
        return math.nan if np.ptp(references) == 0 else float(matthews_corrcoef(references, predictions))


class Pearson(_Correlation):
    """Pearson's linear correlation."""

    def _correlation(self, predictions: NDArray[Any], references: NDArray[Any]) -> float:
        return float(pearsonr(predictions, references).statistic)


class Spearmanr(_Correlation):
    """Spearman's rank correlation, ties sharing their mean rank."""

    def _correlation(self, predictions: NDArray[Any], references: NDArray[Any]) -> float:
        return float(spearmanr(predictions, references).statistic)


class _OfScores(_OneNumber):
    dtype = "float64"


class Mse(_OfScores):
    """The mean square of the errors, in the unit of the scores squared."""

    def _score(self, predictions: NDArray[Any], references: NDArray[Any]) -> float:
        return float(mean_squared_error(references, predictions))


class Mae(_OfScores):
    """The mean size of the errors, in the unit of the scores."""

    def _score(self, predictions: NDArray[Any], references: NDArray[Any]) -> float:
        return float(mean_absolute_error(references, predictions))


METRICS: dict[MetricName, type[_OneNumber]] = {
    "accuracy": Accuracy,
    "f1": F1,
    "macro_f1": MacroF1,
    "matthews_correlation": MatthewsCorrelation,
    "pearson": Pearson,
    "spearmanr": Spearmanr,
    "mse": Mse,
    "mae": Mae,
}


def compute_metrics(task: LabelledTask, logits: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Scores a model's outputs by every metric of a task.

    Args:
        task: The task that the outputs are for.
        logits: [N, C] for C classes; [N, 1] or [N] for a regression.
        labels: [N] class numbers or scores.

    Returns:
        Each of `task.metrics` with its value, a fraction and not a percentage, or an error; NaN if it is undefined.
    """
    outputs, references = np.asarray(logits), np.asarray(labels)
    predictions = predict(task, outputs)
    if predictions.shape != references.shape:
        raise ValueError(f"predictions {predictions.shape} and labels {references.shape} differ in shape")
    scores: dict[str, float] = {}
    for name in task.metrics:
        scores |= METRICS[name]().score(predictions, references)
    return scores


def predict(task: LabelledTask, logits: NDArray[Any]) -> NDArray[Any]:
    """The predictions of a task from a model's outputs, [N]: the likeliest class, or the score as float64."""
    if task.is_regression and logits.ndim == 1:
        logits = logits[:, np.newaxis]
    if logits.ndim != 2 or logits.shape[1] != task.num_labels:
        raise ValueError(f"logits {logits.shape} are not [N, {task.num_labels}] of task {task.name!r}")
    check_finite(logits)
    if task.is_regression:
        return logits[:, 0].astype(np.float64)
    return np.asarray(logits.argmax(axis=1))
