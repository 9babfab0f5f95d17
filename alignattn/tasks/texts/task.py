"""The record of a task of texts."""

from dataclasses import dataclass
from typing import Literal

from alignattn.tasks.task import MAX_TEXTS, LabelledTask


@dataclass(frozen=True, kw_only=True)
class TextClassification(LabelledTask):
    """Classification or regression of one text or a pair of texts.

    Attributes:
        text_columns: The one or two columns of text, in the order in which the model reads them.
        length_third: Of each split the third of the rows that is taken, by the words of its texts; empty for all.
        supporting_facts: The sentences that an answer takes of stories that are made up where no other rows are given;
            0 where nothing is made up.
    """

    kind = "text-classification"
    implementation = "alignattn.tasks.texts.processor:TextClassificationProcessor"

    text_columns: tuple[str, ...]
    length_third: Literal["", "shortest", "longest"] = ""
    supporting_facts: Literal[0, 1, 2] = 0

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The texts."""
        return self.text_columns

    def problem(self) -> str | None:
        """Return what is wrong with the columns, or as for every labelled task."""
        if not 1 <= len(self.text_columns) <= MAX_TEXTS:
            return f"text_columns must be one or two, not {len(self.text_columns)}"
        if len({*self.text_columns, self.label_column}) <= len(self.text_columns):
            return f"a column is named twice among {', '.join((*self.text_columns, self.label_column))}"
        return super().problem()
