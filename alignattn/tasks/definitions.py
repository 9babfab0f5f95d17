"""Reading and writing of task files, with messages for invalid ones, and the catalogue of the shipped tasks."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from alignattn.tasks.image_classification import ImageClassification
from alignattn.tasks.image_to_text import ImageToText
from alignattn.tasks.multiple_choice import MultipleChoice
from alignattn.tasks.names import NPZ, TRAIN
from alignattn.tasks.node_classification import NodeClassification
from alignattn.tasks.question_answering import QuestionAnswering
from alignattn.tasks.sequence_to_sequence import SequenceToSequence
from alignattn.tasks.task import Sources, Task
from alignattn.tasks.text_classification import MultiLabelClassification, TextClassification
from alignattn.tasks.token_classification import TokenClassification
from alignattn.tasks.visual_question_answering import VisualQuestionAnswering
from alignattn.utils.errors import AlignAttnError, did_you_mean, unknown
from alignattn.utils.files import read_yaml, write_json

TASK_TYPES: Mapping[str, type[Task]] = {
    task_type.kind: task_type
    for task_type in (
        TextClassification,
        MultiLabelClassification,
        MultipleChoice,
        TokenClassification,
        QuestionAnswering,
        VisualQuestionAnswering,
        ImageClassification,
        SequenceToSequence,
        ImageToText,
        NodeClassification,
    )
}
"""The task types by the Hub's names. A new one is a file like these, and a line here."""

SUFFIXES = (".yaml", ".yml")

CATALOG = Path(__file__).parent / "catalog"
"""Folder with the files of the shipped tasks."""


def is_definition(name: str) -> bool:
    """Return whether `name` is a task file (YAML or a graph) and not the name of a shipped task."""
    return Path(name).suffix.lower() in (*SUFFIXES, NPZ)


def read_definition(path: Path) -> Task:
    """Return the task that a YAML or graph file defines, named after the file."""
    if path.suffix.lower() == NPZ:
        # Imported here because it imports PyTorch.
        from alignattn.tasks.nodes.graph import read_graph

        graph = read_graph(path)
        if problem := graph.problem:
            raise AlignAttnError(f"{path}: {problem}; correct the file")
        return NodeClassification(
            name=path.stem,
            labels=graph.class_names,
            metrics=("accuracy",),
            evaluation_splits=tuple(split for split in graph.splits if split != TRAIN),
            sources=Sources(files=dict.fromkeys(graph.splits, str(path.resolve()))),
        )
    # Imported here because listing task names does not need it.
    from pydantic import TypeAdapter, ValidationError

    content = read_yaml(path)
    kind = str(content.pop("kind", ""))
    if kind not in TASK_TYPES:
        raise AlignAttnError(f"{path}: {unknown('task type', kind, TASK_TYPES)}")
    try:
        task: Task = TypeAdapter(TASK_TYPES[kind]).validate_python({"name": path.stem, **content})
    except ValidationError as error:
        fields = [entry.name for entry in dataclasses.fields(TASK_TYPES[kind])]
        problems = (_described(problem, fields) for problem in error.errors())
        raise AlignAttnError(f"{path}: {'; '.join(problems)}") from error
    if problem := task.problem():
        raise AlignAttnError(f"{path}: {problem}")
    files = {split: str(path.resolve().parent / file) for split, file in task.sources.files.items()}
    return replace(task, sources=replace(task.sources, files=files))


def write_definition(path: Path, task: Task) -> None:
    """Write a task file that stays valid if it is moved."""
    write_json(path, {"kind": task.kind, **asdict(task)})


def _described(error: Any, fields: Sequence[str]) -> str:
    phrases = {"missing": "is missing", "unexpected_keyword_argument": "is not a field of this task type"}
    phrase = phrases.get(error["type"], error["msg"].removeprefix("Input ").replace("tuple", "list"))
    advice = ", in quotes where YAML would read another type, such as no or 1" if error["type"] == "string_type" else ""
    if error["type"] == "tuple_type" and isinstance(error["input"], dict):
        # YAML parses these names of labels as Booleans.
        names = (("yes" if name else "no") if isinstance(name, bool) else name for name in error["input"])
        quoted = ", ".join(f'"{name}"' for name in names)
        advice = f", as a list in the order of their numbers: [{quoted}]"
    if error["type"] == "unexpected_keyword_argument" and len(error["loc"]) == 1:
        advice = did_you_mean(error["loc"][-1], fields, aside=True)
    return f"{'.'.join(map(str, error['loc']))} {phrase}{advice}"


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
        raise unknown("task", name, TASKS, f", or give a YAML file that defines one{or_file}")
    return TASKS[plain]


def plain_name(name: str) -> str:
    """Return a task name in lower case without hyphens and underscores; the name of a file is unchanged."""
    return name if is_definition(name) else name.lower().replace("-", "").replace("_", "")
