"""The record of a task of multiple choice."""

from dataclasses import dataclass

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
    implementation = "alignattn.tasks.choices.kind:MultipleChoiceKind"

    context_column: str
    ending_columns: tuple[str, ...]
    start_column: str = ""
    metrics: tuple[MetricName, ...] = ("accuracy",)

    def problem(self) -> str | None:
        """Return what is wrong with the endings, or as for every labelled task."""
        if not self.labels or len(self.ending_columns) not in (1, len(self.labels)):
            return (
                f"ending_columns must be one column of lists or one a label, and there are {len(self.ending_columns)} "
                f"for {len(self.labels)} labels"
            )
        return super().problem()
