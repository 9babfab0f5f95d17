"""What tasks of one label a row have in common, however their rows are encoded."""

from typing import Any, TypeVar

import datasets
import numpy as np
import pyarrow as pa
from scipy.special import softmax

from alignattn.tasks.kind import EncodedSplit, Evaluation, TaskKind, row_numbers
from alignattn.tasks.labels import has_label, label_numbers
from alignattn.tasks.metrics import compute_metrics, predict
from alignattn.tasks.task import LabelledTask

L = TypeVar("L", bound=LabelledTask)


class LabelledKind(TaskKind[L]):
    """A kind whose outputs are `[N, C]` logits or `[N, 1]` scores and whose labels are `[N]`."""

    def labelled(self, task: L, dataset: datasets.Dataset, origin: str) -> datasets.Dataset:
        """Return the rows that have a label, which becomes float64 or int64."""
        numbers = label_numbers(task, dataset[task.label_column][:])
        is_labelled = has_label(task, numbers, origin)
        column = numbers if task.is_regression else numbers.astype(np.int64)
        dataset = dataset.remove_columns(task.label_column).add_column(task.label_column, column)
        return dataset if is_labelled.all() else dataset.select(np.flatnonzero(is_labelled))

    def smooths_labels(self, task: L) -> bool:
        """Return whether the labels are classes."""
        return not task.is_regression

    def evaluate(self, task: L, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score logits by the metrics of the task; a regression's table has no column of probabilities."""
        logits, references = np.asarray(outputs), np.asarray(labels)
        columns = {
            "row": pa.array(row_numbers(split.rows)),
            "label": pa.array(references),
            "prediction": pa.array(predict(task, logits)),
        }
        if not task.is_regression:
            columns["probabilities"] = pa.array(list(softmax(logits.astype(np.float64), axis=1)))
        return Evaluation(compute_metrics(task, logits, references), pa.table(columns))
