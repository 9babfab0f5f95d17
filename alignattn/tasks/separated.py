"""Rows of text between separators: CSV, TSV and their kin, as spreadsheets and scripts write them."""

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from alignattn.tasks.file_rows import TextRows
from alignattn.utils.errors import AlignAttnError, listing, shown

NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
"""Of the separators."""

SEPARATORS = {".csv": ",", ".tsv": "\t"}
"""That the ending of a name promises."""

SEPARATOR_LINES = frozenset(f"sep={separator}".strip() for separator in NAMES)
"""That spreadsheets write before the header."""

SNIFFED_ROWS = 200
"""From which the separator is told."""

SEVERAL = 2
QUOTE = '"'

# The standard library parses. The builders of `datasets` guess: a text "NA" becomes None, "007" becomes 7,
# "2020-01-01" a date, an unquoted comma shifts the columns.


UNNAMED = "Unnamed: {}"
"""What pandas calls a column without a name, by its number from 0."""

Record = list[str] | str
"""The fields of a row, or what is wrong with lines that are none."""


def read_separated(path: Path, text: str, suffix: str) -> TextRows:
    """Return the columns of a table by the names in its first line, every field as the text that it is.

    Where the separator that the ending of the name promises does not fit and another does, that one is taken, and said.
    Of a table between tabs, quotes are letters where they do not fit otherwise. Empty columns without a name are left
    out, as spreadsheets write them; others have the names that pandas gives them, and that is said.

    Args:
        path: of the file, for messages.
        text: what it holds.
        suffix: `.csv` or `.tsv`.
    """
    lines = list(io.StringIO(text, newline=""))
    if lines and lines[0].strip() in SEPARATOR_LINES:
        lines[0] = ""
    separator = _separator(lines, SEPARATORS[suffix])
    if separator != SEPARATORS[suffix]:
        print(f"{path}: its columns seem to be separated by {NAMES[separator]}", file=sys.stderr)
    with _any_length():
        header, *rows = _without_ends(_parsed(lines, separator, path)) or [[]]
    if isinstance(header, str):
        raise AlignAttnError(f"cannot read the header of {path}: {header}; correct it")
    if not rows:
        alone = f" but for its header ({listing([shown(name) for name in header])})" if header else ""
        raise AlignAttnError(f"{path} is empty{alone}: give a file that holds rows")
    problems: dict[int, str] = {}
    for number, row in enumerate(rows):
        if isinstance(row, str):
            problems[number] = row
        elif not _is_full(row, header):
            problems[number] = (
                f"it has {len(row)} values, and the header has {len(header)}: put texts that hold a "
                f"{NAMES[separator].removesuffix('s')} in double quotes"
            )
    values: list[list[str | None]] = [
        [None for _ in header] if number in problems else [*row, *[""] * (len(header) - len(row))]
        for number, row in enumerate(rows)
    ]
    named = _named(path, header, values)
    names_read = [name for _, name in named]
    if len(set(names_read)) < len(names_read):
        raise AlignAttnError(f"the header of {path} names a column twice: {', '.join(names_read)}; rename one")
    return TextRows({name: [value[index] for value in values] for index, name in named}, problems)


def _named(path: Path, header: Sequence[str], rows: Sequence[Sequence[str | None]]) -> list[tuple[int, str]]:
    """The columns that are read, each with its place and its name."""
    filled = {
        place: [number for number, row in enumerate(rows, start=1) if (row[place] or "").strip()]
        for place, name in enumerate(header)
        if not name.strip()
    }
    unnamed = {place: UNNAMED.format(place) for place, numbers in filled.items() if numbers}
    # pandas writes its index so: nobody means it for a text or a label.
    told = [place for place in unnamed if place > 0 or not all((row[0] or "0").isdecimal() for row in rows)]
    if told:
        first = min(filled[place][0] for place in told)
        count = len({number for place in told for number in filled[place]})
        print(
            f"{path}: {count} row(s), the first of them row {first}, hold values in columns without a name, which are "
            f"called {', '.join(repr(unnamed[place]) for place in told)}: are texts in double quotes?",
            file=sys.stderr,
        )
    return [(place, unnamed.get(place, name)) for place, name in enumerate(header) if name.strip() or place in unnamed]


def _parsed(lines: Sequence[str], separator: str, path: Path) -> list[Record]:
    """The rows, the header first."""
    quoted = list(_records(lines, separator))
    if separator != "\t":
        return quoted
    # Tables between tabs are often written without any quoting: GLUE's own are.
    bare = list(_records(lines, separator, csv.QUOTE_NONE))
    fits = {"quoted": _count_full(quoted), "bare": _count_full(bare)}
    is_whole = fits["quoted"] == len(quoted) and fits["bare"] < len(bare)
    if is_whole or fits["quoted"] >= fits["bare"]:
        return quoted
    if any(field.startswith('"') for row in bare for field in row):
        print(f"{path}: its double quotes are taken as letters: they enclose no whole fields", file=sys.stderr)
    return bare


def _separator(lines: Sequence[str], promised: str) -> str:
    """The separator that fits most of the first rows; that promised if no other fits more."""
    shares = {}
    for separator in sorted(NAMES, key=lambda separator: separator != promised):
        styles = (csv.QUOTE_MINIMAL, csv.QUOTE_NONE) if separator == "\t" else (csv.QUOTE_MINIMAL,)
        with _any_length():
            samples = [list(islice(_records(lines, separator, quoting), SNIFFED_ROWS)) for quoting in styles]
        shares[separator] = max(_count_full(sample) / max(1, len(sample)) for sample in samples)
    return max(shares, key=lambda separator: shares[separator])


def _count_full(records: Sequence[Record]) -> int:
    """How many rows have as many fields as the header, which is one of them; 0 if that has but one."""
    header, *rows = _without_ends(records) or [""]
    if isinstance(header, str) or len(header) < SEVERAL:
        return 0
    return 1 + sum(not isinstance(row, str) and _is_full(row, header) for row in rows)


def _is_full(row: Sequence[str], header: Sequence[str]) -> bool:
    """Whether a row has a value for each name; those that have none may be missing at its end."""
    last = max((place for place, name in enumerate(header, start=1) if name.strip()), default=0)
    return last <= len(row) <= len(header)


def _without_ends(records: Sequence[Record]) -> list[Record]:
    """The records without the empty field at the end of each row, where the header has none: rows end in a comma."""
    header, *rows = records or [""]
    if isinstance(header, str) or not rows:
        return list(records)
    fields = [row for row in rows if not isinstance(row, str)]
    if fields and all(len(row) > len(header) and not row[-1].strip() for row in fields):
        return [header, *(row if isinstance(row, str) else row[:-1] for row in rows)]
    return list(records)


def _records(lines: Sequence[str], separator: str, quoting: int = csv.QUOTE_MINIMAL) -> Iterator[Record]:
    """The rows but for empty ones.

    A quote that is never closed swallows what follows. Only the line that it stands in is bad then; what follows is
    read again, up to where the mistake was found without lines that hold quotes, for these may be parts of a field.
    """
    place = doubtful = 0

    def following() -> Iterator[str]:
        nonlocal place
        while place < len(lines):
            place += 1
            yield lines[place - 1]

    reader = csv.reader(following(), delimiter=separator, quoting=quoting, strict=True)  # type: ignore[arg-type]
    while place < len(lines):
        start = place
        if start < doubtful and QUOTE in lines[start]:
            place += 1
            yield f"line {start + 1} may be part of a field that an earlier line begins by a double quote"
            continue
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            place, doubtful = start + 1, max(place, doubtful)
            reader = csv.reader(following(), delimiter=separator, quoting=quoting, strict=True)  # type: ignore[arg-type]
            yield f"line {start + 1} has double quotes that enclose no whole field ({error})"
            continue
        if len(row) > 1 or any(field.strip() for field in row):
            yield row


@contextmanager
def _any_length() -> Iterator[None]:
    """Let a field be of any length, where Python would take 131,072 characters."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)
