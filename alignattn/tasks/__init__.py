"""Tasks: their definitions, the loading and encoding of their rows, and the scores of predictions.

`reading` reads a file by its format (`formats`). `rows` checks the rows and reads their labels (`labels`,
`user_labels`). `sampling` draws samples. The `TaskProcessor` of the task type encodes and batches the rows and scores
their predictions.

This module has no heavy imports; the processors are imported on demand.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from alignattn.tasks.definitions import is_definition, read_definition
from alignattn.tasks.task import LabelledTask, Sources, Task
from alignattn.tasks.task_types import (
    GenerationTask,
    ImageClassification,
    ImageToText,
    MultiLabelClassification,
    MultipleChoice,
    NodeClassification,
    QuestionAnswering,
    SequenceToSequence,
    TextClassification,
    TokenClassification,
    VisualQuestionAnswering,
)
from alignattn.utils.errors import AlignAttnError, did_you_mean

__all__ = [
    "TASKS",
    "GenerationTask",
    "ImageClassification",
    "ImageToText",
    "LabelledTask",
    "MultiLabelClassification",
    "MultipleChoice",
    "NodeClassification",
    "QuestionAnswering",
    "SequenceToSequence",
    "Sources",
    "Task",
    "TextClassification",
    "TokenClassification",
    "VisualQuestionAnswering",
    "get_task",
    "is_definition",
    "plain_name",
]

CATALOG = Path(__file__).parent / "catalog"
"""Folder with the files of the shipped tasks."""


class _Catalog(Mapping[str, Task]):
    """The shipped tasks by name, the stem of their file. A file is read on demand."""

    def __getitem__(self, name: str) -> Task:
        if name not in _names():
            raise KeyError(name)
        return _read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_names())

    def __len__(self) -> int:
        return len(_names())


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in CATALOG.glob("*.yaml")))


@cache
def _read(name: str) -> Task:
    return read_definition(CATALOG / f"{name}.yaml")


TASKS: Mapping[str, Task] = _Catalog()


def get_task(name: str, file_option: str | None = "train_file") -> Task:
    """Return the shipped task of that name, or the task that a YAML or graph file defines.

    Case, hyphens and underscores in names are ignored ("SST-2" is "sst2"). A refusal names the command's option for a
    file of rows, `file_option`, if it has one.
    """
    if is_definition(name):
        return read_definition(Path(name))
    plain = plain_name(name)
    if plain not in TASKS:
        or_file = "" if file_option is None else f", or --{file_option}"
        raise AlignAttnError(
            f"unknown task {name!r}: choose one of {', '.join(TASKS)}, or give a YAML file that defines one{or_file}"
            f"{did_you_mean(plain, TASKS, aside=True)}"
        )
    return TASKS[plain]


def plain_name(name: str) -> str:
    """Return a task name in lower case without hyphens and underscores; the name of a file is unchanged."""
    return name if is_definition(name) else name.lower().replace("-", "").replace("_", "")
