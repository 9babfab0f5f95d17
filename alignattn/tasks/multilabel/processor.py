"""Texts that may have several labels at once: a yes or no for each."""

from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import expit
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from alignattn.tasks.labelled import PREDICTION, best_first
from alignattn.tasks.labels import class_names, named_labels, parse_label
from alignattn.tasks.multilabel.task import MultiLabelClassification
from alignattn.tasks.outputs import check_finite
from alignattn.tasks.processor import (
    EncodedSplit,
    Evaluation,
    TaskProcessor,
    check_max_length,
    encode_rows,
    name_classes,
    row_numbers,
)
from alignattn.tasks.task import TaskOptions
from alignattn.tasks.texts.processor import text_problems
from alignattn.utils.errors import shown
from alignattn.utils.option import BOOLEANS

LABEL_PROBABILITIES = "label_probabilities"
"""A column of answers; not that of classes, whose probabilities sum to 1 and are calibrated together."""


class MultiLabelProcessor(TaskProcessor[MultiLabelClassification]):
    """One sequence a row, as for classes; a logistic loss for each label."""

    auto_class = AutoModelForSequenceClassification

    def columns(self, task: MultiLabelClassification) -> list[str]:
        """Return the text columns and the label columns."""
        return [*task.text_columns, *task.label_columns]

    def normalise(self, task: MultiLabelClassification, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with the words for yes and no where the file has its own names for 0 and 1."""
        for column in task.label_columns:
            if names := class_names(dataset, column):
                words = named_labels(dataset[column][:], dict(enumerate(names)))
                dataset = dataset.remove_columns(column).add_column(column, words)
        return dataset

    def problems(
        self, task: MultiLabelClassification, dataset: datasets.Dataset, *, may_be_empty: bool
    ) -> dict[int, str]:
        """Return the rows whose text is missing, or one of whose labels says neither yes nor no."""
        problems = {
            index: f"label {shown(value)} in column {column!r} is not 0 or 1, false or true"
            for column in reversed(task.label_columns)
            for index, value in enumerate(dataset[column][:])
            if _truth(value) is None
        }
        return problems | self.input_problems(task, dataset, may_be_empty=may_be_empty)

    def input_problems(
        self, task: MultiLabelClassification, dataset: datasets.Dataset, *, may_be_empty: bool
    ) -> dict[int, str]:
        """Return the rows whose text is missing."""
        return text_problems(dataset, task.text_columns, may_be_empty=may_be_empty)

    def unlabelled(self, task: MultiLabelClassification, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with no label at all."""
        for column in task.label_columns:
            dataset = dataset.add_column(column, np.zeros(len(dataset), np.int64))
        return dataset

    def labelled(self, task: MultiLabelClassification, dataset: datasets.Dataset, origin: str) -> datasets.Dataset:
        """Return the rows, their labels as 0 and 1."""
        columns = {column: np.array([_truth(value) for value in dataset[column][:]]) for column in task.label_columns}
        dataset = dataset.remove_columns(list(columns))
        for column, values in columns.items():
            dataset = dataset.add_column(column, values.astype(np.int64))
        return dataset

    def strata(self, task: MultiLabelClassification, dataset: datasets.Dataset) -> NDArray[Any]:
        """Return which labels each row has, `[N, C]`."""
        return np.stack([dataset[column][:] for column in task.label_columns], axis=1)

    def smooths_labels(self, task: MultiLabelClassification) -> bool:
        """Return False: the Trainer smooths one class a row."""
        return False

    def configure(self, task: MultiLabelClassification, config: PreTrainedConfig) -> None:
        """Set the names of the labels, and what makes transformers take the logistic loss of each."""
        name_classes(config, task.labels)
        config.problem_type = "multi_label_classification"

    def encode(
        self,
        task: MultiLabelClassification,
        dataset: datasets.Dataset,
        tokenizer: PreTrainedTokenizerBase,
        options: TaskOptions,
    ) -> datasets.Dataset:
        """Return the model's inputs, and `label`, a list of 0.0 and 1.0. Of a pair the longer text is cut first."""
        check_max_length(task, tokenizer, options.max_length, len(task.text_columns))
        return encode_rows(_encode_batch, task, dataset, tokenizer, options)

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> DataCollatorWithPadding:
        """Return what pads to the longest row of a batch."""
        return DataCollatorWithPadding(tokenizer)

    def constant_prediction(self, task: MultiLabelClassification, predictions: pa.Table) -> str | None:
        """Return the labels that every row is given, if they are the same."""
        rows = {tuple(row) for row in predictions["prediction"].to_pylist()}
        if len(rows) != 1 or predictions.num_rows == 1:
            return None
        names = [name for name, has in zip(task.labels, rows.pop(), strict=True) if has]
        return f"{' and '.join(names)} alone" if names else "no label"

    def answers(self, task: MultiLabelClassification, split: EncodedSplit, outputs: Any, labels: Any) -> pa.Table:
        """Return the labels whose logits are above 0, as 0 and 1, and the probability of each: they sum to nothing."""
        logits = np.asarray(outputs, dtype=np.float64)
        check_finite(logits)
        answers = {PREDICTION: list((logits > 0).astype(np.int64)), LABEL_PROBABILITIES: list(expit(logits))}
        return pa.table({name: pa.array(values) for name, values in answers.items()})

    def readable(self, task: MultiLabelClassification, answers: pa.Table, most: int | None) -> pa.Table:
        """Return the labels of each row by name, and the probabilities of all labels or `most`, best first."""
        names = np.array(task.labels)
        has = np.stack(answers[PREDICTION].to_numpy()).astype(bool)
        probabilities = np.stack(answers[LABEL_PROBABILITIES].to_numpy())
        return pa.table(
            {
                PREDICTION: pa.array([names[row].tolist() for row in has], pa.list_(pa.string())),
                LABEL_PROBABILITIES: best_first(probabilities, pa.array(task.labels), most),
            }
        )

    def evaluate(self, task: MultiLabelClassification, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score the labels that are predicted against those that rows have."""
        references, answers = np.asarray(labels).astype(np.int64), self.answers(task, split, outputs, labels)
        scores = multi_label_scores(references, np.stack(answers[PREDICTION].to_numpy()))
        columns = {"row": pa.array(row_numbers(split.rows)), "label": pa.array(list(references))}
        columns |= {name: answers[name] for name in answers.column_names}
        return Evaluation({name: scores[name] for name in task.metrics}, pa.table(columns))


def multi_label_scores(labels: NDArray[np.int64], predictions: NDArray[np.int64]) -> dict[str, float]:
    """Return F1 over all labels together, its mean over the labels, and the share of rows that are wholly right.

    Args:
        labels: `[N, C]` of 0 and 1.
        predictions: `[N, C]` of 0 and 1.

    Returns:
        `micro_f1`, `macro_f1` (a label that no row has or is given counts 0), `accuracy`.
    """
    right = np.sum(labels * predictions, axis=0)
    counted = labels.sum(axis=0) + predictions.sum(axis=0)
    of_each = np.divide(2 * right, counted, out=np.zeros(len(right)), where=counted > 0)
    return {
        "micro_f1": float(2 * right.sum() / counted.sum()) if counted.any() else 0.0,
        "macro_f1": float(of_each.mean()),
        "accuracy": float((labels == predictions).all(axis=1).mean()),
    }


def _truth(value: Any) -> bool | None:
    """Whether a row has a label; None where it does not say."""
    if isinstance(value, str):
        value = BOOLEANS.get(value.strip().lower(), parse_label(value))
    return bool(value) if isinstance(value, bool | int | float) and value in (0, 1) else None


def _encode_batch(
    batch: dict[str, list[Any]], task: MultiLabelClassification, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, list[Any]]:
    encoding = dict(tokenizer(*(batch[column] for column in task.text_columns), truncation=True, max_length=max_length))
    rows = zip(*(batch[column] for column in task.label_columns), strict=True)
    return encoding | {"label": [list(map(float, row)) for row in rows]}
