"""The record of a task of questions."""

from dataclasses import dataclass
from typing import Literal

from alignattn.tasks.task import Task

AnswerMetric = Literal["f1", "exact", "best_f1", "best_exact"]
"""The scores of `alignattn.tasks.answers.squad_metric.squad_scores` that all rows share."""


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """Extraction of the answer to a question from a context: columns `id`, `question`, `context` and `answers`.

    Attributes:
        metrics: Of `alignattn.tasks.answers.squad_metric.squad_scores`.
        has_unanswerable: Whether some questions have no answer in their context (SQuAD 2.0).
    """

    kind = "question-answering"
    implementation = "alignattn.tasks.answers.processor:QuestionAnsweringProcessor"

    metrics: tuple[AnswerMetric, ...] = ("f1", "exact")
    max_length: int = 384
    has_unanswerable: bool = False

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Question and context."""
        return ("question", "context")

    def problem(self) -> str | None:
        """Return whether a metric needs questions without an answer, or as for every task."""
        if not self.has_unanswerable and any(name.startswith("best_") for name in self.metrics):
            return "metrics best_f1 and best_exact are for tasks that set has_unanswerable: true"
        return super().problem()
