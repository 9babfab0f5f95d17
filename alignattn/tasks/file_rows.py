"""Rows as a file holds them, and what is wrong with those that cannot be read."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from alignattn.utils.errors import AlignAttnError

if TYPE_CHECKING:
    import datasets

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a character, which no encoding can write."""
_BYTE = range(0xDC80, 0xDD00)
"""The surrogates that stand for bytes which an encoding does not know, by `errors="surrogateescape"`."""


@dataclass(frozen=True)
class TextRows:
    """What a reader of text finds in a file.

    Attributes:
        columns: the values of every row; those of a bad row are None.
        problems: what is wrong with a bad row, by its index from 0.
    """

    columns: dict[str, list[Any]]
    problems: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FileRows:
    """The rows of a file.

    Attributes:
        dataset: all rows; what cannot be read is None.
        problems: what is wrong with a row that cannot be read, by its index from 0.
        value_problems: what is wrong with a value that cannot be read, by its column and its row's index.
    """

    dataset: "datasets.Dataset"
    problems: Mapping[int, str] = field(default_factory=dict)
    value_problems: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def problems_in(self, columns: Iterable[str]) -> dict[int, str]:
        """Return what is wrong with each row of which these columns are read; values of others do not matter."""
        found = {index: text for name in columns for index, text in self.value_problems.get(name, {}).items()}
        return found | dict(self.problems)


def file_rows(rows: TextRows, *, path: Any, is_decoded: bool) -> FileRows:
    """Return the rows as a data set, which holds valid Unicode alone.

    Args:
        rows: of a file.
        path: of the file, for messages.
        is_decoded: whether the encoding knows all bytes of the file; else surrogates stand for those it does not.
    """
    # The options know the columns of a folder without waiting for this import.
    import datasets

    value_problems: dict[str, dict[int, str]] = {}
    for name, values in rows.columns.items():
        if _LONE_SURROGATE.search(name):
            advice = "correct the file" if is_decoded else "give its --encoding, such as cp1252"
            raise AlignAttnError(f"{path} has a column {name!r}, whose name is no valid text: {advice}")
        for index, value in enumerate(values):
            found = _surrogate(value)
            if found is not None:
                value_problems.setdefault(name, {})[index] = f"column {name!r} {_of_surrogate(found, is_decoded)}"
                values[index] = None
    dataset = datasets.Dataset.from_dict(rows.columns, on_mixed_types="use_json")
    return FileRows(dataset, rows.problems, value_problems)


def _surrogate(value: Any) -> str | None:
    """The first lone surrogate in a value of JSON."""
    if isinstance(value, str):
        match = None if value.isascii() else _LONE_SURROGATE.search(value)
        return None if match is None else match[0]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return next((found for item in value if (found := _surrogate(item)) is not None), None)
    return None


def _of_surrogate(surrogate: str, is_decoded: bool) -> str:
    code = ord(surrogate)
    if not is_decoded and code in _BYTE:
        byte = code - _BYTE.start + 0x80
        return f"holds the byte 0x{byte:02x}, which the file's encoding does not know (--encoding, such as cp1252)"
    return f"holds \\u{code:04x}, which is half of a character and no valid text"
