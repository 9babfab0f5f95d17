"""Tasks: what they are, where their rows come from, how rows become tensors, how predictions are scored.

This package imports nothing heavy; `rows`, `metrics` and `kinds` do, and are imported where they are used.
"""

from alignattn.support.errors import AlignAttnError
from alignattn.tasks.answers.tasks import QUESTION_ANSWERING_TASKS
from alignattn.tasks.choices.tasks import MULTIPLE_CHOICE_TASKS
from alignattn.tasks.demo import DEMO_TASK
from alignattn.tasks.tags.tasks import TOKEN_CLASSIFICATION_TASKS
from alignattn.tasks.task import (
    LabelledTask,
    MultipleChoice,
    QuestionAnswering,
    Task,
    TextClassification,
    TokenClassification,
)
from alignattn.tasks.texts.glue import GLUE_TASKS
from alignattn.tasks.texts.tasks import TEXT_CLASSIFICATION_TASKS

__all__ = [
    "TASKS",
    "LabelledTask",
    "MultipleChoice",
    "QuestionAnswering",
    "Task",
    "TextClassification",
    "TokenClassification",
    "get_task",
    "plain_name",
]

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        *GLUE_TASKS,
        *TEXT_CLASSIFICATION_TASKS,
        *QUESTION_ANSWERING_TASKS,
        *MULTIPLE_CHOICE_TASKS,
        *TOKEN_CLASSIFICATION_TASKS,
        DEMO_TASK,
    )
}


def get_task(name: str) -> Task:
    """The task of that name; case, hyphens and underscores do not count ("SST-2" is "sst2").

    Raises:
        AlignAttnError: There is no such task; the message lists those there are.
    """
    plain = plain_name(name)
    if plain not in TASKS:
        raise AlignAttnError(f"unknown task {name!r}: choose one of {', '.join(TASKS)}, or give --train_file")
    return TASKS[plain]


def plain_name(name: str) -> str:
    """Return a name without what does not count in it: case, hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")
