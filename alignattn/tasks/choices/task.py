"""The record of a task of multiple choice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.tasks.task import LabelledTask, MetricName


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(LabelledTask):
    """The choice of the right ending of a context; the label is its number.

    Attributes:
        context_column: The column of what comes before.
        start_column: The column of words that every ending begins with; empty where there is none.
        ending_columns: One column an ending, or the one column of lists of them.
    """

    kind = "multiple-choice"
    implementation = "alignattn.tasks.choices.processor:MultipleChoiceProcessor"

    context_column: str
    ending_columns: tuple[str, ...]
    start_column: str = ""
    metrics: tuple[MetricName, ...] = ("accuracy",)

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Context, what every ending begins with, and endings."""
        return (self.context_column, *((self.start_column,) if self.start_column else ()), *self.ending_columns)

    @property
    def texts_of_a_row(self) -> int:
        """Context, what every ending begins with, and as many endings as there are labels."""
        return len(self.input_columns) - len(self.ending_columns) + self.num_labels

    def row_of(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the row that texts make; endings may be a column of lists."""
        if len(self.ending_columns) > 1:
            return super().row_of(texts)
        first = self.texts_of_a_row - self.num_labels
        return dict(zip(self.input_columns, [*texts[:first], list(texts[first:])], strict=True))

    def problem(self) -> str | None:
        """Return what is wrong with the endings, or as for every labelled task."""
        if not self.labels or len(self.ending_columns) not in (1, len(self.labels)):
            return (
                f"ending_columns must be one column of lists or one a label, and there are {len(self.ending_columns)} "
                f"for {len(self.labels)} labels"
            )
        return super().problem()
