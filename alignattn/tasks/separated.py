"""Rows of text between separators: CSV, TSV and their kin, as spreadsheets and scripts write them."""

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from alignattn.support.errors import AlignAttnError

NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
"""Of the separators."""

SEPARATORS = {".csv": ",", ".tsv": "\t"}
"""That the ending of a name promises."""

SNIFFED_ROWS = 200
"""From which the separator is told."""

# The standard library parses. The builders of `datasets` guess: a text "NA" becomes None, "007" becomes 7,
# "2020-01-01" a date, an unquoted comma shifts the columns.


def read_separated(path: Path, text: str, suffix: str) -> dict[str, list[str]]:
    """Return the columns of a table by the names in its first line, every field as the text that it is.

    Where the separator that the ending of the name promises does not fit and another does, that one is taken, and said.
    Of a table between tabs, quotes are letters where they do not fit otherwise.

    Args:
        path: of the file, for messages.
        text: what it holds.
        suffix: `.csv` or `.tsv`.
    """
    separator = _separator(text, SEPARATORS[suffix])
    if separator != SEPARATORS[suffix]:
        print(f"{path}: its columns seem to be separated by {NAMES[separator]}", file=sys.stderr)
    with _any_length():
        rows = _parsed(text, separator, path)
    header, rows = (rows[0], [row for row in rows[1:] if row]) if rows else ([], [])
    if not rows:
        raise AlignAttnError(f"{path} is empty: give a file that holds rows")
    if len(set(header)) < len(header):
        raise AlignAttnError(f"the header of {path} names a column twice: {', '.join(header)}; rename one")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise AlignAttnError(
                f"row {number} of {path} has {len(row)} values, its header has {len(header)}: "
                f"put texts that hold a {NAMES[separator].removesuffix('s')} in double quotes"
            )
    return {name: [row[index] for row in rows] for index, name in enumerate(header)}


def _parsed(text: str, separator: str, path: Path) -> list[list[str]]:
    """The rows, the header first."""
    if separator != "\t":
        return list(_rows(text, separator))
    # Tables between tabs are often written without any quoting: GLUE's own are.
    bare = [row for row in _rows(text, separator, csv.QUOTE_NONE) if row]
    try:
        quoted = [row for row in _rows(text, separator) if row]
    except csv.Error:
        quoted = []
    if _fits(quoted) and (len(quoted) == len(bare) or not _fits(bare)):
        return quoted
    if any(field.startswith('"') for row in bare for field in row):
        print(f"{path}: its double quotes are taken as letters: they enclose no whole fields", file=sys.stderr)
    return bare


def _separator(text: str, promised: str) -> str:
    """The first separator, that promised before all others, which fits the first rows; that promised if none does."""
    for separator in sorted(NAMES, key=lambda separator: separator != promised):
        styles = (csv.QUOTE_MINIMAL, csv.QUOTE_NONE) if separator == "\t" else (csv.QUOTE_MINIMAL,)
        for quoting in styles:
            try:
                with _any_length():
                    sample = list(islice((row for row in _rows(text, separator, quoting) if row), SNIFFED_ROWS))
            except csv.Error:
                continue
            if _fits(sample):
                return separator
    return promised


def _fits(rows: Sequence[Sequence[Any]]) -> bool:
    """Whether each row has as many fields as the header, and more than one."""
    return bool(rows) and len(rows[0]) > 1 and all(len(row) == len(rows[0]) for row in rows)


def _rows(text: str, separator: str, quoting: int = csv.QUOTE_MINIMAL) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=quoting, strict=True)  # type: ignore[arg-type]


@contextmanager
def _any_length() -> Iterator[None]:
    """Let a field be of any length, where Python would take 131,072 characters."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)
