"""The base of the processors of tasks with one label per row; subclasses add the encoding."""

from collections.abc import Sequence
from typing import Any, TypeVar

import datasets
import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax, logsumexp, softmax
from transformers import PreTrainedConfig

from alignattn.tasks.labels import (
    class_names,
    label_numbers,
    label_problems,
    named_labels,
    number_names,
    only_item,
)
from alignattn.tasks.metrics import METRICS, class_scores, score
from alignattn.tasks.processor import (
    EncodedSplit,
    Evaluation,
    TaskProcessor,
    check_finite,
    evaluation_table,
    name_classes,
)
from alignattn.tasks.task import PROBABILITIES, LabelledTask

PREDICTION = "prediction"
"""The column of predictions."""

L = TypeVar("L", bound=LabelledTask)


class LabelledProcessor(TaskProcessor[L]):
    """The processor of tasks whose outputs are `[N, C]` logits or `[N, 1]` scores and whose labels are `[N]`."""

    @property
    def can_smooth_labels(self) -> bool:
        """Whether the labels are classes."""
        return not self.task.is_regression

    @property
    def can_average(self) -> bool:
        """True: scores and probabilities can be averaged."""
        return True

    def columns(self) -> list[str]:
        """Return the input columns and the label column."""
        return [*self.task.input_columns, self.task.label_column]

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with class names in place of class numbers, if the file names its numbers.

        Names that are integers and not among the task's, such as 1 and 2 for endings A and B, are ignored. Without
        names, `number_names` decides whether integers are names or numbers.
        """
        task = self.task
        values = [only_item(value) for value in dataset[task.label_column][:]]
        of_file = class_names(dataset, task.label_column)
        if of_file and not (all(map(str.isdecimal, of_file)) and set(of_file).isdisjoint(task.labels)):
            names = dict(enumerate(of_file))
        else:
            names = number_names(task, values)
        if not names:
            return dataset
        named = {task.label_column: named_labels(values, names)}
        labels = datasets.Dataset.from_dict(named, on_mixed_types="use_json")
        return datasets.concatenate_datasets([dataset.remove_columns(task.label_column), labels], axis=1)

    def problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with a bad input or with a label that the task does not have."""
        labels = label_problems(self.task, dataset[self.task.label_column][:])
        return labels | self.input_problems(dataset, may_be_empty=may_be_empty)

    def add_dummy_labels(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with the label 0."""
        dtype = float if self.task.is_regression else np.int64
        return dataset.add_column(self.task.label_column, np.zeros(len(dataset), dtype))

    def drop_unlabelled(self, dataset: datasets.Dataset, origin: str) -> datasets.Dataset:
        """Return the rows that have a label, as float64 or int64."""
        name = self.task.label_column
        numbers, is_labelled = label_numbers(self.task, dataset[name][:], origin)
        column = numbers if self.task.is_regression else numbers.astype(np.int64)
        dataset = dataset.remove_columns(name).add_column(name, column)
        return dataset if is_labelled.all() else dataset.select(np.flatnonzero(is_labelled))

    def strata(self, dataset: datasets.Dataset) -> NDArray[Any] | None:
        """Return the classes of the rows."""
        return None if self.task.is_regression else np.asarray(dataset[self.task.label_column][:])

    def class_counts(self, split: EncodedSplit) -> NDArray[np.int64]:
        """Return the number of rows of each class."""
        return np.bincount(split.rows[self.task.label_column][:], minlength=self.task.num_labels)

    def configure(self, config: PreTrainedConfig) -> None:
        """Set the number of outputs, the names of the classes, and whether the model predicts classes or a score."""
        if self.task.is_regression:
            config.num_labels = self.task.num_labels
            config.problem_type = "regression"
        else:
            name_classes(config, self.task.labels)
            # The first forward with labels would set it, but a run resumed at its end has none.
            config.problem_type = "single_label_classification"

    def average_outputs(self, outputs: Sequence[Any]) -> Any:
        """Return the mean scores, or the logarithm of the mean probabilities as logits."""
        logits = np.asarray(outputs, dtype=np.float64)
        if self.task.is_regression:
            return logits.mean(axis=0)
        return logsumexp(log_softmax(logits, axis=-1), axis=0) - np.log(len(logits))

    def predictions(self, split: EncodedSplit, outputs: Any, labels: Any) -> pa.Table:
        """Return the scores of a regression, or the class numbers and the probabilities of all classes."""
        return self._table(np.asarray(outputs))

    def _table(self, logits: NDArray[Any]) -> pa.Table:
        columns = {PREDICTION: pa.array(predict(self.task, logits))}
        if not self.task.is_regression:
            columns[PROBABILITIES] = pa.array(list(softmax(logits.astype(np.float64), axis=1)))
        return pa.table(columns)

    def readable_predictions(self, predictions: pa.Table, top_k: int | None) -> pa.Table:
        """Return the most probable class and its probability, and all or the `top_k` best classes, best first."""
        if self.task.is_regression:
            return predictions
        predicted = predictions[PREDICTION].to_numpy()
        probabilities = np.stack(predictions[PROBABILITIES].to_numpy())
        names = pa.array(self.task.labels)
        return pa.table(
            {
                PREDICTION: names.take(pa.array(predicted)),
                "probability": probabilities[np.arange(len(predicted)), predicted],
                PROBABILITIES: best_first(probabilities, names, top_k),
            }
        )

    def empty_predictions(self, top_k: int | None) -> pa.Table:
        """Return an empty table with the columns of `readable_predictions`."""
        one = self._table(np.zeros((1, self.task.num_labels)))
        return self.readable_predictions(one, top_k).slice(0, 0)

    def constant_prediction(self, predictions: pa.Table) -> str | None:
        """Return the predicted class or score in words, if all rows have the same one."""
        values = predictions[PREDICTION].unique()
        if len(values) != 1 or predictions.num_rows == 1:
            return None
        (value,) = values.to_pylist()
        return f"the score {value:.4g}" if self.task.is_regression else f"the class {self.task.labels[value]!r}"

    def evaluate(self, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score logits by the task's metrics; a regression's table has no column of probabilities."""
        references = np.asarray(labels)
        predictions = self.predictions(split, outputs, labels)
        table = evaluation_table(split.rows, {"label": pa.array(references)}, predictions)
        classes = {}
        if self.task.can_weight_classes:
            classes = class_scores(references, predictions[PREDICTION].to_numpy(), self.task.labels)
        return Evaluation(compute_metrics(self.task, np.asarray(outputs), references), table, classes=classes)


def compute_metrics(task: LabelledTask, logits: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Return the metrics of a model's outputs: the task's `measured` metrics that have a function.

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
    """Return the task's `measured` metrics that have a function; arguments as for `score`."""
    return {name: score(name, predictions, references) for name in task.measured if METRICS[name].function is not None}


def predict(task: LabelledTask, logits: NDArray[Any]) -> NDArray[Any]:
    """Return the predictions of a model's outputs, `[N]`: the most probable class, or the score as float64."""
    if task.is_regression and logits.ndim == 1:
        logits = logits[:, np.newaxis]
    if logits.ndim != 2 or logits.shape[1] != task.num_labels:
        raise ValueError(f"logits {logits.shape} must be [N, {task.num_labels}] for task {task.name!r}")
    check_finite(logits)
    return logits[:, 0].astype(np.float64) if task.is_regression else np.asarray(logits.argmax(axis=1))


def best_first(probabilities: NDArray[np.float64], names: pa.Array, top_k: int | None) -> pa.Array:
    """Return one list of `{label, probability}` per row, best first.

    Args:
        probabilities: `[N, C]`.
        names: the label names, `[C]`.
        top_k: the number of labels to list; all if None.
    """
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
    values = np.take_along_axis(probabilities, order, axis=1)
    pairs = pa.StructArray.from_arrays(
        [names.take(pa.array(order.ravel())), pa.array(values.ravel())], ["label", "probability"]
    )
    return pa.ListArray.from_arrays(np.arange(len(order) + 1, dtype=np.int32) * order.shape[1], pairs)
