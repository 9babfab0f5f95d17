"""Tasks: what they are, where their rows come from, how rows become tensors, how predictions are scored.

This package imports nothing heavy; `rows`, `metrics` and the kinds do, and are imported where they are used.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from alignattn.tasks.answers.task import QuestionAnswering
from alignattn.tasks.captions.task import ImageToText
from alignattn.tasks.choices.task import MultipleChoice
from alignattn.tasks.definitions import is_definition, read_definition
from alignattn.tasks.multilabel.task import MultiLabelClassification
from alignattn.tasks.nodes.task import NodeClassification
from alignattn.tasks.sequences.task import SequenceToSequence, WrittenTask
from alignattn.tasks.tags.task import TokenClassification
from alignattn.tasks.task import LabelledTask, Sources, Task
from alignattn.tasks.texts.task import TextClassification
from alignattn.tasks.vqa.task import VisualQuestionAnswering
from alignattn.utils.errors import AlignAttnError, did_you_mean

__all__ = [
    "TASKS",
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
    "WrittenTask",
    "get_task",
    "is_definition",
    "plain_name",
]

CATALOG = Path(__file__).parent / "catalog"
"""The folder of the shipped tasks, one file each."""


class _Catalog(Mapping[str, Task]):
    """The shipped tasks by name; the names are those of their files, which are read when they are asked for."""

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


def get_task(name: str) -> Task:
    """The task of that name, or the one that a user's own YAML file defines.

    Case, hyphens and underscores of a name do not count ("SST-2" is "sst2").
    """
    if is_definition(name):
        return read_definition(Path(name))
    plain = plain_name(name)
    if plain not in TASKS:
        raise AlignAttnError(
            f"unknown task {name!r}: choose one of {', '.join(TASKS)}, or give a YAML file that defines one, or "
            f"--train_file{did_you_mean(plain, TASKS, aside=True)}"
        )
    return TASKS[plain]


def plain_name(name: str) -> str:
    """Return a name without what does not count in it: case, hyphens and underscores; a file's is left as it is."""
    return name if is_definition(name) else name.lower().replace("-", "").replace("_", "")
