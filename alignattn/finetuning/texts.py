"""Texts without labels, of a file of lines or of columns of a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets

from alignattn.tasks import Task, TextClassification
from alignattn.tasks.sources import read_file
from alignattn.tasks.task import MAX_TEXTS, TEXT_FILE
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import read_text

UNREAD_LABEL = "_label"
"""Label column of texts without labels: a task has labels, and nothing here reads them."""


def file_texts(path: Path, columns: Sequence[str]) -> tuple[Task, datasets.Dataset]:
    """Return the texts of a file as rows, and a task that names their columns.

    Args:
        path: of a file of a text a line, or of a table.
        columns: of the table that hold the texts, one or two.
    """
    rows: dict[str, list[Any]]
    if path.suffix.lower() == TEXT_FILE:
        rows = {"text": _lines(path)}
    else:
        dataset = read_file(path)
        chosen = _checked_columns(columns, dataset.column_names, path)
        rows = {column: _checked_texts(dataset[column][:], column, path) for column in chosen}
    task = TextClassification(
        name=path.name, text_columns=tuple(rows), label_column=UNREAD_LABEL, labels=("",), metrics=("accuracy",)
    )
    num_rows = len(rows[task.text_columns[0]])
    return task, datasets.Dataset.from_dict({**rows, UNREAD_LABEL: [0] * num_rows})


def _lines(path: Path) -> list[str]:
    texts = [line.strip() for line in read_text(path).split("\n") if line.strip()]
    if not texts:
        raise AlignAttnError(f"{path} is empty: give a file that holds texts, one a line")
    return texts


def _checked_columns(columns: Sequence[str], present: Sequence[str], path: Path) -> Sequence[str]:
    if not 1 <= len(columns) <= MAX_TEXTS or len(set(columns)) < len(columns):
        raise AlignAttnError(f"--text_columns: name one or two different columns of {path}: {', '.join(present)}")
    for column in columns:
        if column not in present:
            raise AlignAttnError(f"{path} has no column {column!r}: choose among {', '.join(present)}")
    return columns


def _checked_texts(values: Sequence[Any], column: str, path: Path) -> list[str]:
    for row, value in enumerate(values, start=1):
        if not isinstance(value, str) or not value.strip():
            raise AlignAttnError(f"column {column!r} of {path} holds no text in row {row} ({value!r}): correct the row")
    return list(values)
