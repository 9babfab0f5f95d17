"""Tasks: their definitions, the loading and encoding of their rows, and the scores of predictions.

`reading` reads a file by its format (`formats`). `rows` checks the rows and reads their labels (`labels`,
`user_labels`). `sampling` draws samples. The task encodes and batches its rows and scores their predictions.

This module has no heavy imports; the methods of tasks import what they need.
"""

from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path

from alignattn.tasks.definitions import is_definition, read_definition
from alignattn.tasks.image_classification import ImageClassification
from alignattn.tasks.image_to_text import ImageToText
from alignattn.tasks.labelled import LabelledTask
from alignattn.tasks.multiple_choice import MultipleChoice
from alignattn.tasks.node_classification import NodeClassification
from alignattn.tasks.question_answering import QuestionAnswering
from alignattn.tasks.sequence_to_sequence import GenerationTask, SequenceToSequence
from alignattn.tasks.task import Sources, Task
from alignattn.tasks.text_classification import MultiLabelClassification, TextClassification
from alignattn.tasks.token_classification import TokenClassification
from alignattn.tasks.visual_question_answering import VisualQuestionAnswering
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

    @cached_property
    def _files(self) -> dict[str, Path]:
        return {path.stem: path for path in sorted(CATALOG.glob("*.yaml"))}

    def __getitem__(self, name: str) -> Task:
        return _read(self._files[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


_read = cache(read_definition)
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
