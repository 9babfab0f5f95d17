"""What a task is: one small record, from which everything else about it follows."""

from dataclasses import dataclass
from typing import Literal

MetricName = Literal["accuracy", "f1", "macro_f1", "matthews_correlation", "pearson", "spearmanr"]
"""The metrics of `alignattn.tasks.metrics.METRICS`; named here so that a record needs no heavy import."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Classification or regression of one text or a pair of texts.

    Attributes:
        name: What a user calls the task.
        text_columns: The one or two columns of text, in the order in which the model reads them.
        label_column: The column of class numbers 0 to C-1 or of real numbers; -1 marks an unlabelled row.
        labels: The names of the classes in the order of their numbers; empty for a regression.
        label_range: The smallest and the largest score of a regression; None where there is no limit.
        metrics: The task's official metrics. The first selects checkpoints and ranks runs.
        evaluation_splits: The names of the labelled splits that are not trained on.
        derives_validation: Whether the split `validation` is a tenth of the training rows, drawn once and for all,
            because the data set has none (as in Wu et al. 2020).
        hub_id: The data set's id on the Hub; empty where it is not there.
        hub_config: The configuration of that data set.
        folder: Where `<split>.parquet` lies below a `--data_dir`.
    """

    name: str
    text_columns: tuple[str, ...]
    metrics: tuple[MetricName, ...]
    label_column: str = "label"
    labels: tuple[str, ...] = ()
    label_range: tuple[float, float] | None = None
    evaluation_splits: tuple[str, ...] = ("validation",)
    derives_validation: bool = False
    hub_id: str = ""
    hub_config: str = ""
    folder: str = ""

    @property
    def is_regression(self) -> bool:
        """True where the label is a real number and not a class."""
        return not self.labels

    @property
    def num_labels(self) -> int:
        """The width of the model's output: the number of classes, 1 for a regression."""
        return len(self.labels) or 1

    @property
    def main_metric(self) -> MetricName:
        """The metric that selects checkpoints and ranks runs; larger is better for every metric here."""
        return self.metrics[0]
