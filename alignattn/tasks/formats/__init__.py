"""Readers of files of rows, one per format; each returns `TextRows`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


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
