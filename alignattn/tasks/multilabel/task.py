"""The record of a task of texts that may have several labels at once."""

from dataclasses import dataclass

from alignattn.tasks.task import MAX_TEXTS, Task

MULTI_LABEL_METRICS = ("micro_f1", "macro_f1", "accuracy")


@dataclass(frozen=True, kw_only=True)
class MultiLabelClassification(Task):
    """Any number of labels for one text or a pair of texts.

    Attributes:
        text_columns: The one or two columns of text, in the order in which the model reads them.
        label_columns: A column for each label, which says whether a row has it: 0 or 1, false or true.
    """

    kind = "multi-label-classification"
    implementation = "alignattn.tasks.multilabel.processor:MultiLabelProcessor"

    text_columns: tuple[str, ...]
    label_columns: tuple[str, ...]
    metrics: tuple[str, ...] = MULTI_LABEL_METRICS

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The texts."""
        return self.text_columns

    @property
    def num_labels(self) -> int:
        """How many outputs a row has."""
        return len(self.label_columns)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels: those of their columns."""
        return self.label_columns

    def problem(self) -> str | None:
        """Return what is wrong with the columns or the metrics."""
        columns = (*self.text_columns, *self.label_columns)
        if not 1 <= len(self.text_columns) <= MAX_TEXTS:
            return f"text_columns must be one or two, not {len(self.text_columns)}"
        if len(set(columns)) < len(columns):
            return f"a column is named twice among {', '.join(columns)}"
        if len(self.label_columns) <= 1:
            return "label_columns must be two or more: of one, make a text-classification"
        unknown = [name for name in self.metrics if name not in MULTI_LABEL_METRICS]
        if unknown:
            return f"metrics {', '.join(unknown)} are none of {', '.join(MULTI_LABEL_METRICS)}"
        return super().problem()
