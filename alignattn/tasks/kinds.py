"""The kinds of tasks: how their rows are checked and encoded, which head reads them, how its outputs are scored.

A new kind is a record class in `alignattn.tasks.task`, a `TaskKind` here, and its line in `KINDS`. Importing this
package takes seconds (transformers, evaluate): import it where a run begins.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from alignattn.tasks.answers.kind import QuestionAnsweringKind
from alignattn.tasks.choices.kind import MultipleChoiceKind
from alignattn.tasks.kind import EncodedSplit, Evaluation, TaskKind
from alignattn.tasks.tags.kind import TokenClassificationKind
from alignattn.tasks.task import (
    MultipleChoice,
    QuestionAnswering,
    Task,
    TaskOptions,
    TextClassification,
    TokenClassification,
)
from alignattn.tasks.texts.kind import TextClassificationKind

__all__ = ["KINDS", "EncodedSplit", "Evaluation", "TaskKind", "TaskOptions", "kind_of"]

KINDS: Mapping[type[Task], TaskKind[Any]] = {
    TextClassification: TextClassificationKind(),
    MultipleChoice: MultipleChoiceKind(),
    TokenClassification: TokenClassificationKind(),
    QuestionAnswering: QuestionAnsweringKind(),
}

T = TypeVar("T", bound=Task)


def kind_of(task: T) -> TaskKind[T]:
    """Return the kind of a task."""
    return KINDS[type(task)]
