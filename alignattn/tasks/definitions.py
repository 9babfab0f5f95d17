"""Tasks as data: the YAML file of a task, shipped or a user's own, and what can be wrong with one."""

import dataclasses
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from alignattn.tasks.nodes.task import NodeClassification
from alignattn.tasks.processors import TASK_PROCESSORS
from alignattn.tasks.task import NPZ, TRAIN, Sources, Task
from alignattn.utils.errors import AlignAttnError, did_you_mean, unknown
from alignattn.utils.files import read_yaml, write_json

SUFFIXES = (".yaml", ".yml")

TRUTH_VALUES = {False: "no", True: "yes"}
"""What YAML takes for them, as the names of labels mostly are written."""

_PHRASES = {"missing": "is missing", "unexpected_keyword_argument": "is no field of this kind"}
"""Of pydantic's errors, which otherwise speak of arguments."""


def is_definition(name: str) -> bool:
    """Return whether `name` is that of a user's own file and not of a shipped task."""
    return Path(name).suffix.lower() in (*SUFFIXES, NPZ)


def read_definition(path: Path) -> Task:
    """Return the task that a file defines, or that a graph's file poses; it has the file's name."""
    if path.suffix.lower() == NPZ:
        return _task_of_graph(path)
    # Not at the top: who asks for the names of the tasks does not pay for what checks their files.
    from pydantic import TypeAdapter, ValidationError

    content = read_yaml(path)
    kind = str(content.pop("kind", ""))
    if kind not in TASK_PROCESSORS:
        raise AlignAttnError(f"{path}: {unknown(TASK_PROCESSORS.kind, kind, TASK_PROCESSORS)}")
    try:
        task: Task = TypeAdapter(TASK_PROCESSORS.load(kind)).validate_python({"name": path.stem, **content})
    except ValidationError as error:
        fields = [entry.name for entry in dataclasses.fields(TASK_PROCESSORS.load(kind))]
        problems = (_described(problem, fields) for problem in error.errors())
        raise AlignAttnError(f"{path}: {'; '.join(problems)}") from error
    problem = task.problem()
    if problem is not None:
        raise AlignAttnError(f"{path}: {problem}")
    files = {split: str(path.resolve().parent / file) for split, file in task.sources.files.items()}
    return replace(task, sources=replace(task.sources, files=files))


def _task_of_graph(path: Path) -> Task:
    # It needs NumPy and PyTorch, which the names of tasks do not.
    from alignattn.tasks.nodes.graph import read_graph

    graph = read_graph(path)
    problem = graph.problem
    if problem is not None:
        raise AlignAttnError(f"{path}: {problem}; correct the file")
    file = str(path.resolve())
    return NodeClassification(
        name=path.stem,
        labels=graph.class_names,
        metrics=("accuracy",),
        evaluation_splits=tuple(split for split in graph.splits if split != TRAIN),
        sources=Sources(files=dict.fromkeys(graph.splits, file)),
    )


def write_definition(path: Path, task: Task) -> None:
    """Write a file that defines the task wherever it lies."""
    write_json(path, {"kind": task.kind, **asdict(task)})


def _described(error: Any, fields: Sequence[str]) -> str:
    phrase = _PHRASES.get(error["type"], error["msg"].removeprefix("Input ").replace("tuple", "list"))
    advice = ", in quotes where YAML reads another type, as of no and 1" if error["type"] == "string_type" else ""
    if error["type"] == "tuple_type" and isinstance(error["input"], dict):
        advice = f", in the order of their numbers and without them: [{', '.join(map(_quoted, error['input']))}]"
    if error["type"] == "unexpected_keyword_argument" and len(error["loc"]) == 1:
        advice = did_you_mean(error["loc"][-1], fields, aside=True)
    return f"{'.'.join(map(str, error['loc']))} {phrase}{advice}"


def _quoted(name: Any) -> str:
    """A name in quotes, as YAML needs those that it takes for truth values."""
    return f'"{TRUTH_VALUES.get(name, name) if isinstance(name, bool) else name}"'
