"""Classes, a score or any number of labels for one text or a pair of texts, which the tokenizer joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from alignattn.tasks.labelled import PREDICTION, LabelledTask
from alignattn.tasks.labels import class_names, named_labels, parse_label
from alignattn.tasks.metrics import class_scores
from alignattn.tasks.names import MAX_TEXTS, TEST, TRAIN, VALIDATION
from alignattn.tasks.task import (
    EncodedSplit,
    Evaluation,
    Task,
    TaskOptions,
    best_first,
    check_finite,
    check_present,
    evaluation_table,
    name_classes,
    text_problems,
)
from alignattn.utils.errors import AlignAttnError, shown
from alignattn.utils.options import BOOLEANS

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from transformers import PreTrainedConfig

LABEL_PROBABILITIES = "label_probabilities"
"""Column of predictions of several labels; class probabilities, which sum to 1, have another name."""
MULTI_LABEL_METRICS = ("micro_f1", "macro_f1", "accuracy")


def _text_columns_problem(text_columns: Sequence[str], label_columns: Sequence[str]) -> str | None:
    columns = (*text_columns, *label_columns)
    if not 1 <= len(text_columns) <= MAX_TEXTS:
        return f"text_columns needs one or two columns, not {len(text_columns)}"
    if len(set(columns)) < len(columns):
        return f"duplicate column among {', '.join(columns)}"
    return None


@dataclass(frozen=True, kw_only=True)
class TextClassification(LabelledTask):
    """Classification or regression of one text or a pair of texts.

    Attributes:
        text_columns: One or two columns of text, in the order in which the model reads them.
        length_third: Use only the third of each split with the shortest or the longest texts, counted in words.
        supporting_facts: The number of sentences of a generated story that an answer needs. Stories are generated if no
            rows are given; 0 generates none.
    """

    kind = "text-classification"
    auto_class = "AutoModelForSequenceClassification"
    can_pool_windows = True

    text_columns: tuple[str, ...]
    length_third: Literal["", "shortest", "longest"] = ""
    supporting_facts: Literal[0, 1, 2] = 0

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The text columns."""
        return self.text_columns

    def problem(self) -> str | None:
        """Return the problem of the columns, or that of `LabelledTask.problem`."""
        return _text_columns_problem(self.text_columns, (self.label_column,)) or super().problem()

    def read_split(
        self, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return generated stories, the same in every run; None for other tasks, or if rows are given."""
        import datasets

        from alignattn.tasks.formats.babi import made_stories

        if not self.supporting_facts or data_dir is not None or self.sources.files:
            return None
        # Each split has its seed, whichever splits a run evaluates, and as many questions as in bAbI.
        seeds = {TRAIN: 0, VALIDATION: 1, TEST: 2}
        if name not in seeds:
            raise AlignAttnError(f"{self.name} has no split {name!r} (there: {', '.join(seeds)})")
        rows = made_stories(self.supporting_facts, 1000, seeds[name])
        return datasets.Dataset.from_dict(rows), f"split {name!r} of alignattn's generated stories"

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with a bad text."""
        return text_problems(dataset, self.text_columns, may_be_empty=may_be_empty)

    def third(self, dataset: datasets.Dataset) -> tuple[NDArray[np.int64], str]:
        """Return the indices of the rows of `length_third`, and a description; in a tie, earlier rows are shorter."""
        import numpy as np

        texts = (dataset[column][:] for column in self.text_columns)
        words = np.sum([[len(text.split()) for text in column] for column in texts], axis=0)
        count = max(1, len(dataset) // 3)
        order = np.argsort(words, kind="stable")
        chosen = order[:count] if self.length_third == "shortest" else order[-count:]
        return np.sort(chosen), f"the {count} rows of {len(dataset)} with the {self.length_third} texts"

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return the model's inputs, and `label`: an integer for a class, a float for a score."""
        from alignattn.tasks.long_texts import encode_texts

        label_type = float if self.is_regression else int
        return encode_texts(self, [self.label_column], label_type, dataset, tokenizer, options)


@dataclass(frozen=True, kw_only=True)
class MultiLabelClassification(Task):
    """Any number of labels for one text or a pair of texts.

    Attributes:
        text_columns: One or two columns of text, in the order in which the model reads them.
        label_columns: One column per label: 0 or 1, false or true.
    """

    kind = "multi-label-classification"
    can_smooth_labels = False  # the Trainer smooths one class per row
    can_weight_classes = True
    auto_class = "AutoModelForSequenceClassification"
    can_pool_windows = True

    text_columns: tuple[str, ...]
    label_columns: tuple[str, ...]
    metrics: tuple[str, ...] = MULTI_LABEL_METRICS

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The text columns."""
        return self.text_columns

    @property
    def num_labels(self) -> int:
        """The number of outputs per row."""
        return len(self.label_columns)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, which are the column names."""
        return self.label_columns

    def problem(self) -> str | None:
        """Return the problem of the columns or the metrics, or that of `Task.problem`."""
        if problem := _text_columns_problem(self.text_columns, self.label_columns):
            return problem
        if len(self.label_columns) <= 1:
            return "label_columns needs two or more columns: for one, use text-classification"
        if unknown := [name for name in self.metrics if name not in MULTI_LABEL_METRICS]:
            return f"metrics {', '.join(unknown)} are not among {', '.join(MULTI_LABEL_METRICS)}"
        return super().problem()

    def columns(self) -> list[str]:
        """Return the text columns and the label columns."""
        return [*self.text_columns, *self.label_columns]

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with the file's own names for 0 and 1, if it has any."""
        for column in self.label_columns:
            if names := class_names(dataset, column):
                words = named_labels(dataset[column][:], dict(enumerate(names)))
                dataset = dataset.remove_columns(column).add_column(column, words)
        return dataset

    def row_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with a bad text, or with a label that is neither yes nor no."""
        problems = {
            index: f"label {shown(value)} in column {column!r} is not 0 or 1, false or true"
            for column in reversed(self.label_columns)
            for index, value in enumerate(dataset[column][:])
            if _truth(value) is None
        }
        return problems | self.input_problems(dataset, may_be_empty=may_be_empty)

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with a bad text."""
        return text_problems(dataset, self.text_columns, may_be_empty=may_be_empty)

    def add_dummy_labels(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with 0 for every label."""
        import numpy as np

        for column in self.label_columns:
            dataset = dataset.add_column(column, np.zeros(len(dataset), np.int64))
        return dataset

    def drop_unlabelled(self, dataset: datasets.Dataset, origin: str) -> datasets.Dataset:
        """Return all rows, with labels as 0 and 1."""
        import numpy as np

        for column in self.label_columns:
            values = np.array([_truth(value) for value in dataset[column][:]]).astype(np.int64)
            dataset = dataset.remove_columns(column).add_column(column, values)
        return dataset

    def strata(self, dataset: datasets.Dataset) -> NDArray[Any]:
        """Return the labels of each row, `[N, C]`."""
        import numpy as np

        return np.stack([dataset[column][:] for column in self.label_columns], axis=1)

    def class_counts(self, split: EncodedSplit) -> NDArray[np.int64]:
        """Return the number of rows with each label."""
        import numpy as np

        return np.asarray(self.strata(split.rows).sum(axis=0))

    def class_weights(self, split: EncodedSplit, named: Mapping[str, float]) -> NDArray[np.float64]:
        """Return the weight of the rows with each label in its loss, `[C]`; rows without the label have weight 1.

        These are `pos_weight` of PyTorch's `BCEWithLogitsLoss`. Without `named` weights they are balanced: the rows
        with a label count as much as those without.
        """
        import numpy as np

        if named:
            return np.array([named.get(name, 1.0) for name in self.labels])
        counts = self.class_counts(split)
        rest = len(split.rows) - counts
        check_present(self.labels, counts)
        check_present([f"not {name}" for name in self.labels], rest)
        return np.asarray(rest / counts)

    def configure(self, config: PreTrainedConfig) -> None:
        """Set the names of the labels, and the problem type, for which transformers uses the logistic loss."""
        name_classes(config, self.labels)
        config.problem_type = "multi_label_classification"

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return the model's inputs, and `label`, a list of 0.0 and 1.0."""
        from alignattn.tasks.long_texts import encode_texts

        return encode_texts(self, self.label_columns, float, dataset, tokenizer, options)

    def constant_prediction(self, predictions: pa.Table) -> str | None:
        """Return the predicted labels in words, if all rows have the same ones."""
        rows = {tuple(row) for row in predictions[PREDICTION].to_pylist()}
        if len(rows) != 1 or predictions.num_rows == 1:
            return None
        names = [name for name, has in zip(self.labels, rows.pop(), strict=True) if has]
        return f"{' and '.join(names)} alone" if names else "no label"

    def predictions(self, split: EncodedSplit, outputs: Any, labels: Any) -> pa.Table:
        """Return the labels with logits above 0, as 0 and 1, and the probability of each label."""
        import numpy as np
        import pyarrow as pa
        from scipy.special import expit

        logits = np.asarray(outputs, dtype=np.float64)
        check_finite(logits)
        columns = {PREDICTION: list((logits > 0).astype(np.int64)), LABEL_PROBABILITIES: list(expit(logits))}
        return pa.table({name: pa.array(values) for name, values in columns.items()})

    def readable_predictions(self, predictions: pa.Table, top_k: int | None) -> pa.Table:
        """Return the names of each row's labels, and all or the `top_k` best labels with probabilities, best first."""
        import numpy as np
        import pyarrow as pa

        names = np.array(self.labels)
        has = np.stack(predictions[PREDICTION].to_numpy()).astype(bool)
        probabilities = np.stack(predictions[LABEL_PROBABILITIES].to_numpy())
        return pa.table(
            {
                PREDICTION: pa.array([names[row].tolist() for row in has], pa.list_(pa.string())),
                LABEL_PROBABILITIES: best_first(probabilities, pa.array(self.labels), top_k),
            }
        )

    def evaluate(self, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score the predicted labels."""
        import numpy as np
        import pyarrow as pa

        references, predictions = np.asarray(labels).astype(np.int64), self.predictions(split, outputs, labels)
        scores = multi_label_scores(references, np.stack(predictions[PREDICTION].to_numpy()))
        table = evaluation_table(split.rows, {"label": pa.array(list(references))}, predictions)
        classes = class_scores(references, np.stack(predictions[PREDICTION].to_numpy()), self.labels)
        return Evaluation({name: scores[name] for name in self.metrics}, table, classes=classes)


def multi_label_scores(labels: NDArray[np.int64], predictions: NDArray[np.int64]) -> dict[str, float]:
    """Return micro F1, macro F1 and the share of rows whose labels are all right.

    Args:
        labels: `[N, C]` of 0 and 1.
        predictions: `[N, C]` of 0 and 1.

    Returns:
        `micro_f1`, `macro_f1` (0 for a label that is neither true nor predicted anywhere), `accuracy`.
    """
    import numpy as np

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
