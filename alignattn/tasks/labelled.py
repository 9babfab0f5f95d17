"""What tasks of one label a row have in common, however their rows are encoded."""

from collections.abc import Sequence
from typing import Any, TypeVar

import datasets
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp, softmax

from alignattn.tasks.labels import (
    class_names,
    has_label,
    label_numbers,
    label_problems,
    named_labels,
    number_names,
    only_item,
)
from alignattn.tasks.metrics import compute_metrics, predict
from alignattn.tasks.processor import EncodedSplit, Evaluation, TaskProcessor, row_numbers
from alignattn.tasks.task import LabelledTask

PREDICTION, PROBABILITIES = "prediction", "probabilities"
"""Columns of answers."""

L = TypeVar("L", bound=LabelledTask)


class LabelledProcessor(TaskProcessor[L]):
    """A kind whose outputs are `[N, C]` logits or `[N, 1]` scores and whose labels are `[N]`."""

    def columns(self, task: L) -> list[str]:
        """Return the columns that a model reads, and that of the label."""
        return [*task.input_columns, task.label_column]

    def normalise(self, task: L, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with the names of classes where the file has its own names for class numbers.

        Names that are integers and none of the task's, such as 1 and 2 of endings A and B, tell nothing.
        """
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

    def problems(self, task: L, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows of which a model cannot read something, or whose label is none of the task's."""
        labels = label_problems(task, dataset[task.label_column][:])
        return labels | self.input_problems(task, dataset, may_be_empty=may_be_empty)

    def unlabelled(self, task: L, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with the label 0."""
        return dataset.add_column(task.label_column, np.zeros(len(dataset), float if task.is_regression else np.int64))

    def labelled(self, task: L, dataset: datasets.Dataset, origin: str) -> datasets.Dataset:
        """Return the rows that have a label, which becomes float64 or int64."""
        numbers = label_numbers(task, dataset[task.label_column][:])
        is_labelled = has_label(task, numbers, origin)
        column = numbers if task.is_regression else numbers.astype(np.int64)
        dataset = dataset.remove_columns(task.label_column).add_column(task.label_column, column)
        return dataset if is_labelled.all() else dataset.select(np.flatnonzero(is_labelled))

    def strata(self, task: L, dataset: datasets.Dataset) -> NDArray[Any] | None:
        """Return the classes of the rows."""
        return None if task.is_regression else np.asarray(dataset[task.label_column][:])

    def smooths_labels(self, task: L) -> bool:
        """Return whether the labels are classes."""
        return not task.is_regression

    def averages(self, task: L) -> bool:
        """Return that scores and probabilities have a mean."""
        return True

    def mean_outputs(self, task: L, outputs: Sequence[Any]) -> Any:
        """Return the mean scores, or the logarithms of the mean probabilities, which are logits."""
        logits = np.asarray(outputs, dtype=np.float64)
        if task.is_regression:
            return logits.mean(axis=0)
        return logsumexp(log_softmax(logits, axis=-1), axis=0) - np.log(len(logits))

    def answers(self, task: L, split: EncodedSplit, outputs: Any, labels: Any) -> pa.Table:
        """Return the scores of a regression, or the numbers of the classes and the probabilities of all."""
        return self._answers_of(task, np.asarray(outputs))

    def _answers_of(self, task: L, logits: NDArray[Any]) -> pa.Table:
        columns = {PREDICTION: pa.array(predict(task, logits))}
        if not task.is_regression:
            columns[PROBABILITIES] = pa.array(list(softmax(logits.astype(np.float64), axis=1)))
        return pa.table(columns)

    def readable(self, task: L, answers: pa.Table, most: int | None) -> pa.Table:
        """Return the classes by name: the most probable, its probability, and those of all or `most`, best first."""
        if task.is_regression:
            return answers
        predicted = answers[PREDICTION].to_numpy()
        probabilities = np.stack(answers[PROBABILITIES].to_numpy())
        names = pa.array(task.labels)
        return pa.table(
            {
                PREDICTION: names.take(pa.array(predicted)),
                "probability": probabilities[np.arange(len(predicted)), predicted],
                PROBABILITIES: best_first(probabilities, names, most),
            }
        )

    def nothing(self, task: L, most: int | None) -> pa.Table:
        """Return the columns of what is predicted, without a row."""
        one = self._answers_of(task, np.zeros((1, task.num_labels)))
        return self.readable(task, one, most).slice(0, 0)

    def constant_prediction(self, task: L, predictions: pa.Table) -> str | None:
        """Return the one class that is predicted, or the one score."""
        values = predictions["prediction"].unique()
        if len(values) != 1 or predictions.num_rows == 1:
            return None
        (value,) = values.to_pylist()
        return f"the score {value:.4g}" if task.is_regression else f"the class {task.labels[value]!r}"

    def evaluate(self, task: L, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score logits by the metrics of the task; a regression's table has no column of probabilities."""
        logits, references = np.asarray(outputs), np.asarray(labels)
        answers = self.answers(task, split, outputs, labels)
        columns = {"row": pa.array(row_numbers(split.rows)), "label": pa.array(references)}
        columns |= {name: answers[name] for name in answers.column_names}
        return Evaluation(compute_metrics(task, logits, references), pa.table(columns))


def best_first(probabilities: NDArray[np.float64], names: pa.Array, most: int | None) -> pa.Array:
    """Return lists of `{label, probability}`, a list a row of `[N, C]`.

    Args:
        probabilities: `[N, C]`.
        names: of the labels, `[C]`.
        most: how many of a row are told; all if None.
    """
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :most]
    values = np.take_along_axis(probabilities, order, axis=1)
    pairs = pa.StructArray.from_arrays(
        [names.take(pa.array(order.ravel())), pa.array(values.ravel())], ["label", "probability"]
    )
    return pa.ListArray.from_arrays(np.arange(len(order) + 1, dtype=np.int32) * order.shape[1], pairs)
