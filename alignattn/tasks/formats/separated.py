"""CSV, TSV and other separated tables, as spreadsheets and scripts write them."""

import csv
import io
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from alignattn.tasks.formats.file_rows import TableForm, TextRows
from alignattn.utils.errors import AlignAttnError, listing, plural, shown
from alignattn.utils.files import BYTE_ORDER_MARK

NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
SEPARATORS = {".csv": ",", ".tsv": "\t"}
"""The separator by the file's ending."""
SNIFFED_ROWS = 200
"""Number of rows that determine the separator."""
QUOTE = '"'

Record = list[str] | str
"""The fields of a row, or the problem of its lines."""
Numbered = tuple[int, Record]
"""A record and the line where it begins, from 1."""

# The standard library parses. The builders of `datasets` guess: a text "NA" becomes None, "007" becomes 7,
# "2020-01-01" a date, an unquoted comma shifts the columns.


def read_separated(path: Path, text: str, suffix: str) -> TextRows:
    """Return the columns of a table by the names in its first line, every field as text.

    If another separator fits more rows than that of the file's ending or of a first line `sep=;`, it is used, and
    standard error reports it. In a tab-separated table, quotes are text if more rows then have all columns. Empty
    unnamed columns, as spreadsheets write them, are left out; other unnamed columns get pandas' names, and standard
    error reports them. A row that repeats the header is bad.

    Args:
        path: the path of the file, for messages.
        text: its content.
        suffix: `.csv` or `.tsv`.
    """
    lines = list(io.StringIO(text, newline=""))
    first_line, promised = "", SEPARATORS[suffix]
    if lines and (named := lines[0].strip()) in {f"sep={separator}".strip() for separator in NAMES}:
        promised = named.removeprefix("sep=") or "\t"
        first_line, lines[0] = f"sep={promised}\n", ""
    # Python's default limit of a field is 131,072 characters.
    limit = csv.field_size_limit(sys.maxsize)
    try:
        separator, numbered = _parsed(path, lines, promised)
    finally:
        csv.field_size_limit(limit)
    if separator != SEPARATORS[suffix]:
        print(f"{path}: its columns seem to be separated by {NAMES[separator]}", file=sys.stderr)
    header, *rows = _without_last_comma([record for _, record in numbered]) or [[]]
    # A carriage return alone ends a line for `csv`, but not for every editor.
    has_sure_lines = text.count("\r") in (0, text.count("\r\n"))
    starts = array("Q", (line for line, _ in numbered[1:])) if has_sure_lines else ()
    if isinstance(header, str):
        raise AlignAttnError(f"cannot read the header of {path}: {header}; correct it")
    if not rows:
        alone = f" except for its header ({listing([shown(name) for name in header])})" if header else ""
        raise AlignAttnError(f"{path} is empty{alone}: give a file that holds rows")
    problems: dict[int, str] = {}
    spellings = list(map(_spelling, header))
    longest = max(map(len, spellings), default=0) + 10  # most fields are texts, longer than any name in a header
    for number, row in enumerate(rows):
        if isinstance(row, str):
            problems[number] = row
        elif max(map(len, row)) <= longest and list(map(_spelling, row)) == spellings:
            problems[number] = "it repeats the header, as in a file that was joined from two"
        elif not _is_full(row, header):
            problems[number] = (
                f"it has {plural(len(row), 'value')}, and the header has {len(header)}: put texts that hold a "
                f"{NAMES[separator].removesuffix('s')} in double quotes"
            )
    values: list[list[str | None]] = [
        [None for _ in header] if number in problems else [*row, *[""] * (len(header) - len(row))]
        for number, row in enumerate(rows)
    ]
    filled = {
        place: [number for number, row in enumerate(values, start=1) if (row[place] or "").strip()]
        for place, name in enumerate(header)
        if not name.strip()
    }
    unnamed = {place: f"Unnamed: {place}" for place, numbers in filled.items() if numbers}
    # pandas writes its index without a name, which is neither a text nor a label.
    reported = [place for place in unnamed if place > 0 or not all((row[0] or "0").isdecimal() for row in values)]
    if reported:
        numbers = {number for place in reported for number in filled[place]}
        print(
            f"{path}: {plural(len(numbers), 'row')}, the first of them row {min(numbers)}, with values in unnamed "
            f"columns, called {', '.join(repr(unnamed[place]) for place in reported)}: are texts in double quotes?",
            file=sys.stderr,
        )
    places = [
        (place, unnamed.get(place, name)) for place, name in enumerate(header) if name.strip() or place in unnamed
    ]
    names = [name for _, name in places]
    if len(set(names)) < len(names):
        raise AlignAttnError(f"the header of {path} has duplicate columns: {', '.join(names)}; rename one")
    columns: dict[str, list[Any]] = {name: [value[place] for value in values] for place, name in places}
    return TextRows(columns, problems, TableForm(separator, first_line), starts)


def _parsed(path: Path, lines: Sequence[str], promised: str) -> tuple[str, list[Numbered]]:
    """The separator that fits most of the first rows, the promised one in a tie, and the rows, the header first."""
    shares = {}
    for separator in sorted(NAMES, key=lambda separator: separator != promised):
        styles = (csv.QUOTE_MINIMAL, csv.QUOTE_NONE) if separator == "\t" else (csv.QUOTE_MINIMAL,)
        samples = [list(islice(_records(lines, separator, quoting), SNIFFED_ROWS)) for quoting in styles]
        shares[separator] = max(_count_full(sample) / max(1, len(sample)) for sample in samples)
    separator = max(shares, key=lambda separator: shares[separator])
    quoted = list(_records(lines, separator))
    if separator != "\t":
        return separator, quoted
    # Tab-separated tables are often written without quoting, such as GLUE's.
    bare = list(_records(lines, separator, csv.QUOTE_NONE))
    full_quoted, full_bare = _count_full(quoted), _count_full(bare)
    if (full_quoted == len(quoted) and full_bare < len(bare)) or full_quoted >= full_bare:
        return separator, quoted
    if any(field.startswith(QUOTE) for _, row in bare for field in row):
        print(f"{path}: its double quotes are read as text, because they do not enclose whole fields", file=sys.stderr)
    return separator, bare


def _count_full(numbered: Sequence[Numbered]) -> int:
    """The number of rows with as many fields as the header, which counts too; 0 if the header has only one."""
    header, *rows = _without_last_comma([record for _, record in numbered]) or [""]
    if isinstance(header, str) or len(header) == 1:
        return 0
    return 1 + sum(not isinstance(row, str) and _is_full(row, header) for row in rows)


def _spelling(name: str) -> str:
    """A name without case, and without what may surround it in a header: a byte order mark, quotes and blanks."""
    return name.strip(f"{BYTE_ORDER_MARK}{QUOTE}' \t").casefold()


def _is_full(row: Sequence[str], header: Sequence[str]) -> bool:
    """Whether a row has a value for each name; columns without a name may be missing at its end."""
    last = max((place for place, name in enumerate(header, start=1) if name.strip()), default=0)
    return last <= len(row) <= len(header)


def _without_last_comma(records: Sequence[Record]) -> list[Record]:
    """The records without an empty last field, if every row has one and the header has none."""
    header, *rows = records or [""]
    fields = [row for row in rows if not isinstance(row, str)]
    if isinstance(header, str) or not fields:
        return list(records)
    if all(len(row) > len(header) and not row[-1].strip() for row in fields):
        return [header, *(row if isinstance(row, str) else row[:-1] for row in rows)]
    return list(records)


def _records(lines: Sequence[str], separator: str, quoting: int = csv.QUOTE_MINIMAL) -> Iterator[Numbered]:
    """Yield the rows, without empty ones, and their lines.

    An unclosed quote swallows the lines after it. Only its own line is bad: the lines after it are read again, except
    those with quotes up to the error, which may be parts of the field.
    """
    place = doubtful = 0

    def following() -> Iterator[str]:
        nonlocal place
        while place < len(lines):
            place += 1
            yield lines[place - 1]

    def new_reader() -> Iterator[list[str]]:
        return csv.reader(following(), delimiter=separator, quoting=quoting, strict=True)  # type: ignore[arg-type]

    reader = new_reader()
    while place < len(lines):
        start = place
        if start < doubtful and QUOTE in lines[start]:
            place += 1
            yield start + 1, "it may be part of a field that an earlier line opens with a double quote"
            continue
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            place, doubtful = start + 1, max(place, doubtful)
            reader = new_reader()
            yield start + 1, f"it has double quotes that do not enclose a whole field ({error})"
            continue
        if len(row) > 1 or any(field.strip() for field in row):
            yield start + 1, row
