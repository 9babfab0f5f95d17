"""Multi-label classification of texts: a yes or no for each label."""

from collections.abc import Mapping
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import expit
from transformers import (
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from alignattn.tasks.labelled import PREDICTION, best_first
from alignattn.tasks.labels import class_names, named_labels, parse_label
from alignattn.tasks.long_texts import encode_texts
from alignattn.tasks.metrics import class_scores
from alignattn.tasks.processor import (
    EncodedSplit,
    Evaluation,
    TaskProcessor,
    check_finite,
    check_present,
    evaluation_table,
    name_classes,
    text_problems,
)
from alignattn.tasks.task import TaskOptions
from alignattn.tasks.task_types import MultiLabelClassification
from alignattn.utils.errors import shown
from alignattn.utils.options import BOOLEANS

LABEL_PROBABILITIES = "label_probabilities"
"""Column of predictions; class probabilities, which sum to 1, have another name."""


class MultiLabelProcessor(TaskProcessor[MultiLabelClassification]):
    """One sequence per row; each label has a logistic loss."""

    auto_class = AutoModelForSequenceClassification
    can_pool_windows = True

    @property
    def can_smooth_labels(self) -> bool:
        """False: the Trainer smooths one class per row."""
        return False

    def columns(self) -> list[str]:
        """Return the text columns and the label columns."""
        return [*self.task.text_columns, *self.task.label_columns]

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with the file's own names for 0 and 1, if it has any."""
        for column in self.task.label_columns:
            if names := class_names(dataset, column):
                words = named_labels(dataset[column][:], dict(enumerate(names)))
                dataset = dataset.remove_columns(column).add_column(column, words)
        return dataset

    def problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with a bad text, or with a label that is neither yes nor no."""
        problems = {
            index: f"label {shown(value)} in column {column!r} is not 0 or 1, false or true"
            for column in reversed(self.task.label_columns)
            for index, value in enumerate(dataset[column][:])
            if _truth(value) is None
        }
        return problems | self.input_problems(dataset, may_be_empty=may_be_empty)

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with a bad text."""
        return text_problems(dataset, self.task.text_columns, may_be_empty=may_be_empty)

    def add_dummy_labels(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with 0 for every label."""
        for column in self.task.label_columns:
            dataset = dataset.add_column(column, np.zeros(len(dataset), np.int64))
        return dataset

    def drop_unlabelled(self, dataset: datasets.Dataset, origin: str) -> datasets.Dataset:
        """Return all rows, with labels as 0 and 1."""
        for column in self.task.label_columns:
            values = np.array([_truth(value) for value in dataset[column][:]]).astype(np.int64)
            dataset = dataset.remove_columns(column).add_column(column, values)
        return dataset

    def strata(self, dataset: datasets.Dataset) -> NDArray[Any]:
        """Return the labels of each row, `[N, C]`."""
        return np.stack([dataset[column][:] for column in self.task.label_columns], axis=1)

    def class_counts(self, split: EncodedSplit) -> NDArray[np.int64]:
        """Return the number of rows with each label."""
        return np.asarray(self.strata(split.rows).sum(axis=0))

    def class_weights(self, split: EncodedSplit, named: Mapping[str, float]) -> NDArray[np.float64]:
        """Return the weight of the rows with each label in its loss, `[C]`; rows without the label have weight 1.

        These are `pos_weight` of PyTorch's `BCEWithLogitsLoss`. Without `named` weights they are balanced: the rows
        with a label count as much as those without.
        """
        if named:
            return np.array([named.get(name, 1.0) for name in self.task.labels])
        counts = self.class_counts(split)
        rest = len(split.rows) - counts
        check_present(self.task.labels, counts)
        check_present([f"not {name}" for name in self.task.labels], rest)
        return np.asarray(rest / counts)

    def configure(self, config: PreTrainedConfig) -> None:
        """Set the names of the labels, and the problem type, for which transformers uses the logistic loss."""
        name_classes(config, self.task.labels)
        config.problem_type = "multi_label_classification"

    def encode(
        self, dataset: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, options: TaskOptions
    ) -> datasets.Dataset:
        """Return the model's inputs, and `label`, a list of 0.0 and 1.0."""
        return encode_texts(_labels_of, self.task, dataset, tokenizer, options)

    def constant_prediction(self, predictions: pa.Table) -> str | None:
        """Return the predicted labels in words, if all rows have the same ones."""
        rows = {tuple(row) for row in predictions[PREDICTION].to_pylist()}
        if len(rows) != 1 or predictions.num_rows == 1:
            return None
        names = [name for name, has in zip(self.task.labels, rows.pop(), strict=True) if has]
        return f"{' and '.join(names)} alone" if names else "no label"

    def predictions(self, split: EncodedSplit, outputs: Any, labels: Any) -> pa.Table:
        """Return the labels with logits above 0, as 0 and 1, and the probability of each label."""
        logits = np.asarray(outputs, dtype=np.float64)
        check_finite(logits)
        columns = {PREDICTION: list((logits > 0).astype(np.int64)), LABEL_PROBABILITIES: list(expit(logits))}
        return pa.table({name: pa.array(values) for name, values in columns.items()})

    def readable_predictions(self, predictions: pa.Table, top_k: int | None) -> pa.Table:
        """Return the names of each row's labels, and all or the `top_k` best labels with probabilities, best first."""
        names = np.array(self.task.labels)
        has = np.stack(predictions[PREDICTION].to_numpy()).astype(bool)
        probabilities = np.stack(predictions[LABEL_PROBABILITIES].to_numpy())
        return pa.table(
            {
                PREDICTION: pa.array([names[row].tolist() for row in has], pa.list_(pa.string())),
                LABEL_PROBABILITIES: best_first(probabilities, pa.array(self.task.labels), top_k),
            }
        )

    def evaluate(self, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score the predicted labels."""
        references, predictions = np.asarray(labels).astype(np.int64), self.predictions(split, outputs, labels)
        scores = multi_label_scores(references, np.stack(predictions[PREDICTION].to_numpy()))
        table = evaluation_table(split.rows, {"label": pa.array(list(references))}, predictions)
        classes = class_scores(references, np.stack(predictions[PREDICTION].to_numpy()), self.task.labels)
        return Evaluation({name: scores[name] for name in self.task.metrics}, table, classes=classes)


def multi_label_scores(labels: NDArray[np.int64], predictions: NDArray[np.int64]) -> dict[str, float]:
    """Return micro F1, macro F1 and the share of rows whose labels are all right.

    Args:
        labels: `[N, C]` of 0 and 1.
        predictions: `[N, C]` of 0 and 1.

    Returns:
        `micro_f1`, `macro_f1` (0 for a label that is neither true nor predicted anywhere), `accuracy`.
    """
    right = np.sum(labels * predictions, axis=0)
    counted = labels.sum(axis=0) + predictions.sum(axis=0)
    f1_per_label = np.divide(2 * right, counted, out=np.zeros(len(right)), where=counted > 0)
    return {
        "micro_f1": float(2 * right.sum() / counted.sum()) if counted.any() else 0.0,
        "macro_f1": float(f1_per_label.mean()),
        "accuracy": float((labels == predictions).all(axis=1).mean()),
    }


def _truth(value: Any) -> bool | None:
    """Whether a row has a label; None if the value is neither yes nor no."""
    if isinstance(value, str):
        value = BOOLEANS.get(value.strip().lower(), parse_label(value))
    return bool(value) if isinstance(value, bool | int | float) and value in (0, 1) else None


def _labels_of(batch: Mapping[str, Any], task: MultiLabelClassification) -> list[Any]:
    rows = zip(*(batch[column] for column in task.label_columns), strict=True)
    return [list(map(float, row)) for row in rows]
