"""The base of tasks with one label per row; subclasses add the encoding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from alignattn.tasks.labels import (
    INTEGER,
    UNLABELLED,
    class_names,
    form_problem,
    has_decimal_comma,
    named_labels,
    no_labelled_row,
    only_item,
    parse_label,
    twin_hint,
    whole_number,
)
from alignattn.tasks.metrics import METRICS, MetricName, class_scores, metric_of, score
from alignattn.tasks.names import LABEL, MAX_CLASSES, PROBABILITIES
from alignattn.tasks.task import (
    EncodedSplit,
    Evaluation,
    Task,
    best_first,
    check_finite,
    evaluation_table,
    name_classes,
)
from alignattn.utils.errors import AlignAttnError, listing, shown

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from transformers import PreTrainedConfig

PREDICTION = "prediction"
"""The column of predictions."""


@dataclass(frozen=True, kw_only=True)
class LabelledTask(Task):
    """A task with one label per row, a class or a score; a model outputs `[N, C]` logits or `[N, 1]` scores.

    Attributes:
        metrics: Metrics of `alignattn.tasks.metrics`.
        label_column: The column of class numbers 0 to C-1 or of real numbers; -1 marks an unlabelled row.
        labels: The names of the classes in the order of their numbers; empty for a regression.
        label_range: The smallest and the largest score of a regression; None for no limits.
    """

    can_average = True

    metrics: tuple[MetricName, ...]
    label_column: str = LABEL
    labels: tuple[str, ...] = ()
    label_range: tuple[float, float] | None = None

    @property
    def is_regression(self) -> bool:
        """Whether the label is a real number and not a class."""
        return not self.labels

    @property
    def has_classes(self) -> bool:
        """Whether the label is a class."""
        return not self.is_regression

    @property
    def num_labels(self) -> int:
        """The number of outputs per row: the number of classes, 1 for a regression."""
        return len(self.labels) or 1

    @property
    def can_weight_classes(self) -> bool:
        """Whether the label is a class."""
        return not self.is_regression

    @property
    def measured(self) -> tuple[MetricName, ...]:
        """The metrics, and macro-F1 if there are classes: accuracy says little about rare ones."""
        is_missing = self.can_weight_classes and "macro_f1" not in self.metrics
        return (*self.metrics, "macro_f1") if is_missing else self.metrics

    def problem(self) -> str | None:
        """Return the problem of the splits, the labels or their metrics."""
        if len(self.labels) == 1 or len(set(self.labels)) < len(self.labels):
            return f"labels must be two or more different names, or none for scores: {', '.join(self.labels)}"
        if len(self.labels) > MAX_CLASSES:
            return f"there are {len(self.labels):,} labels, and a task has at most {MAX_CLASSES:,}"
        if self.label_range is not None and (self.labels or self.label_range[0] >= self.label_range[1]):
            return "label_range needs a task without labels, and the smallest score before the largest"
        unfit = [name for name in self.metrics if metric_of(name).is_of_scores != self.is_regression]
        if unfit or ("f1" in self.metrics and self.num_labels != 2):
            return (
                f"metrics {', '.join(unfit or ['f1'])} do not fit {len(self.labels)} labels: choose "
                f"{', '.join(sorted(name for name, metric in METRICS.items() if metric.is_of_scores))} for scores, "
                "f1 for two classes, macro_f1 for more"
            )
        return super().problem()

    @property
    def can_smooth_labels(self) -> bool:
        """Whether the labels are classes."""
        return not self.is_regression

    def columns(self) -> list[str]:
        """Return the input columns and the label column."""
        return [*self.input_columns, self.label_column]

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with class names in place of class numbers, if the file or `names_of_integers` names them.

        Names that are integers and not among the task's, such as 1 and 2 for endings A and B, are ignored.
        """
        import datasets

        from alignattn.tasks.reading import dataset_of

        of_file = class_names(dataset, self.label_column)
        if of_file and not (all(map(str.isdecimal, of_file)) and set(of_file).isdisjoint(self.labels)):
            names = dict(enumerate(of_file))
        else:
            names = self.names_of_integers(dataset)
        if not names:
            return dataset
        values = map(only_item, dataset[self.label_column][:])
        labels = dataset_of({self.label_column: named_labels(values, names)})
        return datasets.concatenate_datasets([dataset.remove_columns(self.label_column), labels], axis=1)

    def names_of_integers(self, dataset: datasets.Dataset) -> dict[int, str]:
        """Return the class that each integer among the labels means; empty if it is the number of its class.

        Integers are numbers, unless a class is named by an integer that is not its number and at least as many of the
        rows' integers are names.
        """
        by_name = {int(label): label for label in self.labels if INTEGER.fullmatch(label)}
        by_number = dict(enumerate(self.labels))
        if all(by_number.get(number) == label for number, label in by_name.items()):
            return {}
        values = map(only_item, dataset[self.label_column][:])
        parsed = {value: number for value in values if (number := whole_number(value)) is not None}
        integers = {*parsed.values()} - {UNLABELLED}
        if not integers:
            return {}
        num_names, num_numbers = len(integers & by_name.keys()), len(integers & by_number.keys())
        if num_names == num_numbers and not all(isinstance(value, str) for value in parsed):
            raise AlignAttnError(
                f"column {self.label_column!r} holds {listing([str(number) for number in sorted(integers)])}, "
                f"which can be names or numbers of the classes of task {self.name!r} ({listing(self.labels)}): "
                "write names as text"
            )
        return by_name if num_names >= num_numbers else by_number

    def row_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with a bad input, or whose label is neither one of the task's nor -1."""
        problems = {}
        expected = f"a class number from 0 to {self.num_labels - 1} ({listing(self.labels)})"
        if self.is_regression:
            limits = self.label_range
            expected = "a finite number" if limits is None else f"a score from {limits[0]:g} to {limits[1]:g}"
        values = dataset[self.label_column][:]
        for index, (value, number) in enumerate(zip(map(only_item, values), self._numbers(values), strict=True)):
            if number is None:
                is_comma = self.is_regression and has_decimal_comma(value)
                hint = "; write a decimal point" if is_comma else twin_hint(value, self.labels)
                problems[index] = form_problem(value) or f"label {shown(value)} is not {expected}{hint}"
        return problems | self.input_problems(dataset, may_be_empty=may_be_empty)

    def _numbers(self, values: Iterable[Any]) -> list[float | None]:
        """The labels as numbers, None for one that is neither the task's nor -1.

        HellaSwag on the Hub and CSV files have numbers as text, users may write names.
        """
        by_name = {label: number for number, label in enumerate(self.labels)}
        low, high = self.label_range or (-math.inf, math.inf)
        numbers: list[float | None] = []
        for value in map(only_item, values):
            if isinstance(value, bool | Decimal):
                value = str(value)
            if isinstance(value, str):
                value = by_name[value] if value in by_name else parse_label(value, is_score=self.is_regression)
            number = float(value) if isinstance(value, int | float) else math.nan
            if self.is_regression:
                is_label = math.isfinite(number) and low <= number <= high
            else:
                # Not "in range(...)", which compares a float with one number after another.
                is_label = number.is_integer() and 0 <= number < self.num_labels
            numbers.append(number if is_label or number == UNLABELLED else None)
        return numbers

    def add_dummy_labels(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with the label 0."""
        import numpy as np

        dtype = float if self.is_regression else np.int64
        return dataset.add_column(self.label_column, np.zeros(len(dataset), dtype))

    def drop_unlabelled(self, dataset: datasets.Dataset, origin: str) -> datasets.Dataset:
        """Return the rows that have a label, as float64 or int64."""
        import numpy as np

        numbers = np.array(self._numbers(dataset[self.label_column][:]), dtype=np.float64)
        low, high = self.label_range or (-math.inf, math.inf)
        # -1 marks an unlabelled row unless it is a score.
        is_labelled = (numbers != UNLABELLED) | (self.is_regression and low <= UNLABELLED <= high)
        if not is_labelled.any():
            raise no_labelled_row(origin)
        column = numbers if self.is_regression else numbers.astype(np.int64)
        dataset = dataset.remove_columns(self.label_column).add_column(self.label_column, column)
        return dataset if is_labelled.all() else dataset.select(np.flatnonzero(is_labelled))

    def strata(self, dataset: datasets.Dataset) -> NDArray[Any] | None:
        """Return the classes of the rows."""
        import numpy as np

        return None if self.is_regression else np.asarray(dataset[self.label_column][:])

    def class_counts(self, split: EncodedSplit) -> NDArray[np.int64]:
        """Return the number of rows of each class."""
        import numpy as np

        return np.bincount(split.rows[self.label_column][:], minlength=self.num_labels)

    def configure(self, config: PreTrainedConfig) -> None:
        """Set the number of outputs, the names of the classes, and whether the model predicts classes or a score."""
        if self.is_regression:
            config.num_labels = self.num_labels
            config.problem_type = "regression"
        else:
            name_classes(config, self.labels)
            # The first forward with labels would set it, but a run resumed at its end has none.
            config.problem_type = "single_label_classification"

    def average_outputs(self, outputs: Sequence[Any]) -> Any:
        """Return the mean scores, or the logarithm of the mean probabilities as logits."""
        import numpy as np
        from scipy.special import log_softmax, logsumexp

        logits = np.asarray(outputs, dtype=np.float64)
        if self.is_regression:
            return logits.mean(axis=0)
        return logsumexp(log_softmax(logits, axis=-1), axis=0) - np.log(len(logits))

    def predictions(self, split: EncodedSplit | None, outputs: Any, labels: Any) -> pa.Table:
        """Return the scores of a regression, or the class numbers and the probabilities of all classes.

        Args:
            split: not used.
            outputs: `[N, C]` logits for C classes; `[N, 1]` or `[N]` scores for a regression.
            labels: not used.
        """
        import numpy as np
        import pyarrow as pa
        from scipy.special import softmax

        logits = np.asarray(outputs)
        if self.is_regression and logits.ndim == 1:
            logits = logits[:, np.newaxis]
        if logits.ndim != 2 or logits.shape[1] != self.num_labels:
            raise ValueError(f"logits {logits.shape} must be [N, {self.num_labels}] for task {self.name!r}")
        check_finite(logits)
        if self.is_regression:
            return pa.table({PREDICTION: pa.array(logits[:, 0].astype(np.float64))})
        probabilities = pa.array(list(softmax(logits.astype(np.float64), axis=1)))
        return pa.table({PREDICTION: pa.array(logits.argmax(axis=1)), PROBABILITIES: probabilities})

    def readable_predictions(self, predictions: pa.Table, top_k: int | None) -> pa.Table:
        """Return the most probable class and its probability, and all or the `top_k` best classes, best first."""
        import numpy as np
        import pyarrow as pa

        if self.is_regression:
            return predictions
        predicted = predictions[PREDICTION].to_numpy()
        probabilities = np.stack(predictions[PROBABILITIES].to_numpy())
        names = pa.array(self.labels)
        return pa.table(
            {
                PREDICTION: names.take(pa.array(predicted)),
                "probability": probabilities[np.arange(len(predicted)), predicted],
                PROBABILITIES: best_first(probabilities, names, top_k),
            }
        )

    def empty_predictions(self, top_k: int | None) -> pa.Table:
        """Return an empty table with the columns of `readable_predictions`."""
        import numpy as np

        one = self.predictions(None, np.zeros((1, self.num_labels), dtype=np.float32), None)
        return self.readable_predictions(one, top_k).slice(0, 0)

    def constant_prediction(self, predictions: pa.Table) -> str | None:
        """Return the predicted class or score in words, if all rows have the same one."""
        values = predictions[PREDICTION].unique()
        if len(values) != 1 or predictions.num_rows == 1:
            return None
        (value,) = values.to_pylist()
        return f"the score {value:.4g}" if self.is_regression else f"the class {self.labels[value]!r}"

    def evaluate(self, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score logits by the `measured` metrics that have a function; a regression has no table of probabilities."""
        import numpy as np
        import pyarrow as pa

        references = np.asarray(labels)
        predictions = self.predictions(split, outputs, labels)
        predicted = predictions[PREDICTION].to_numpy()
        if predicted.shape != references.shape:
            raise ValueError(f"predictions {predicted.shape} and labels {references.shape} differ in shape")
        names = [name for name in self.measured if METRICS[name].function is not None]
        metrics = {name: score(name, predicted, references) for name in names}
        classes = class_scores(references, predicted, self.labels) if self.can_weight_classes else {}
        table = evaluation_table(split.rows, {"label": pa.array(references)}, predictions)
        return Evaluation(metrics, table, classes=classes)
