"""The kinds of tasks: how their rows are checked and encoded, which head reads them, how its outputs are scored.

A new kind is a record class in `alignattn.tasks.task`, a `TaskKind` here, and its line in `KINDS`. Importing this
package takes seconds (transformers, evaluate): import it where a run begins.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from alignattn.tasks.kinds.kind import EncodedSplit, Evaluation, TaskKind
from alignattn.tasks.kinds.multiple_choice import MultipleChoiceKind
from alignattn.tasks.kinds.question_answering import QuestionAnsweringKind
from alignattn.tasks.kinds.text_classification import TextClassificationKind
from alignattn.tasks.kinds.token_classification import TokenClassificationKind
from alignattn.tasks.task import (
    MultipleChoice,
    QuestionAnswering,
    Task,
    TaskOptions,
    TextClassification,
    TokenClassification,
)

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
