"""Rows as read from a file, and the problems of those that cannot be read."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets

from alignattn.utils.errors import AlignAttnError

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which no encoding can write."""
_BYTE = range(0xDC80, 0xDD00)
"""The surrogates that stand for undecodable bytes under `errors="surrogateescape"`."""


@dataclass(frozen=True)
class TableForm:
    """How a file holds a separated table.

    Attributes:
        separator: the character between the fields of a row; None = that of the file's ending.
        before_header: what comes before the header: a byte order mark, and a line that names the separator.
        encoding: the encoding of the file.
    """

    separator: str | None = None
    before_header: str = ""
    encoding: str = "utf-8"


@dataclass(frozen=True)
class TextRows:
    """The rows of a text file.

    Attributes:
        columns: the values of every row; None for those of a bad row.
        problems: what is wrong with a bad row, by its index from 0.
        form: how the file holds them, if it is a separated table; without its encoding and byte order mark.
        lines: the line where each row begins, from 1; empty if the reader does not know it.
    """

    columns: dict[str, list[Any]]
    problems: Mapping[int, str] = field(default_factory=dict)
    form: TableForm = field(default_factory=TableForm)
    lines: Sequence[int] = ()


@dataclass(frozen=True)
class FileRows:
    """The rows of a file.

    Attributes:
        dataset: all rows; None for what cannot be read.
        problems: what is wrong with an unreadable row, by its index from 0.
        value_problems: what is wrong with an unreadable value, by column and index.
        form: how the file holds them, if it is a separated table.
        lines: the line where each row begins, from 1; empty if the reader does not know it.
    """

    dataset: datasets.Dataset
    problems: Mapping[int, str] = field(default_factory=dict)
    value_problems: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    form: TableForm = field(default_factory=TableForm)
    lines: Sequence[int] = ()

    def problems_in(self, columns: Iterable[str]) -> dict[int, str]:
        """Return the problem of each row if only these columns are read."""
        found = {index: text for name in columns for index, text in self.value_problems.get(name, {}).items()}
        return found | dict(self.problems)


def file_rows(rows: TextRows, *, path: Path | str, is_decoded: bool) -> FileRows:
    """Return rows as a dataset, in which all text is valid Unicode.

    Args:
        rows: the rows of a file.
        path: the path of the file, for messages.
        is_decoded: whether the whole file could be decoded; otherwise surrogates stand for undecodable bytes.
    """
    value_problems: dict[str, dict[int, str]] = {}
    for name, values in rows.columns.items():
        if _LONE_SURROGATE.search(name):
            advice = "correct the file" if is_decoded else "give its --encoding, such as cp1252"
            raise AlignAttnError(f"{path} has a column {name!r}, whose name is not valid text: {advice}")
        for index, value in enumerate(values):
            surrogate = _first_surrogate(value)
            if surrogate is None:
                continue
            values[index] = None
            problem = f"holds \\u{surrogate:04x}, half of a character, which is not valid text"
            if not is_decoded and surrogate in _BYTE:
                byte = surrogate - _BYTE.start + 0x80
                problem = f"holds the byte 0x{byte:02x}, which the encoding cannot decode (--encoding, such as cp1252)"
            value_problems.setdefault(name, {})[index] = f"column {name!r} {problem}"
    dataset = datasets.Dataset.from_dict(rows.columns, on_mixed_types="use_json")
    return FileRows(dataset, rows.problems, value_problems, rows.form, rows.lines)


def _first_surrogate(value: Any) -> int | None:
    """The code of the first lone surrogate in a JSON value."""
    if isinstance(value, str):
        match = None if value.isascii() else _LONE_SURROGATE.search(value)
        return None if match is None else ord(match[0])
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return next((found for item in value if (found := _first_surrogate(item)) is not None), None)
    return None
