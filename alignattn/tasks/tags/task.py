"""The record of a task of tags."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from alignattn.tasks.task import Task

TagMetric = Literal["f1", "precision", "recall", "token_accuracy"]
"""The scores of `alignattn.tasks.tags.entities.entity_scores`."""


@dataclass(frozen=True, kw_only=True)
class TokenClassification(Task):
    """Tags of words, such as those of named entities.

    Attributes:
        metrics: Of `alignattn.tasks.tags.entities.entity_scores`.
        tokens_column: The column of lists of words.
        tags_column: The column of lists of as many tags, strings or class numbers.
        labels: The tags in the order of their numbers; empty until the training rows tell.
    """

    kind = "token-classification"
    implementation = "alignattn.tasks.tags.processor:TokenClassificationProcessor"

    metrics: tuple[TagMetric, ...] = ("f1", "precision", "recall", "token_accuracy")
    tokens_column: str = "tokens"
    tags_column: str = "ner_tags"
    labels: tuple[str, ...] = ()

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The words."""
        return (self.tokens_column,)

    def row_of(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the words of a text, which blanks set apart."""
        return {self.tokens_column: texts[0].split()}

    def problem(self) -> str | None:
        """Return what is wrong with the columns or the tags, or as for every task."""
        if self.tokens_column == self.tags_column or len({*self.labels, ""}) <= len(self.labels):
            return "tokens_column and tags_column must be two columns, and each of its labels a tag that stands once"
        return super().problem()
