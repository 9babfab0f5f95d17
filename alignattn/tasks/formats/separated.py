"""CSV, TSV and other separated tables, as spreadsheets and scripts write them."""

import csv
import io
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alignattn.tasks.formats import TableForm, TextRows
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
        separator, records = _parsed(path, lines, promised)
    finally:
        csv.field_size_limit(limit)
    if separator != SEPARATORS[suffix]:
        print(f"{path}: its columns seem to be separated by {NAMES[separator]}", file=sys.stderr)
    header, *rows = [record for _, record in records] or [[]]
    # A carriage return alone ends a line for `csv`, but not for every editor.
    has_sure_lines = text.count("\r") in (0, text.count("\r\n"))
    starts = array("Q", (line for line, _ in records[1:])) if has_sure_lines else ()
    if isinstance(header, str):
        raise AlignAttnError(f"cannot read the header of {path}: {header}; correct it")
    if not rows:
        alone = f" except for its header ({listing([shown(name) for name in header])})" if header else ""
        raise AlignAttnError(f"{path} is empty{alone}: give a file that holds rows")
    problems: dict[int, str] = {}
    # Names are compared without case, and without what may surround them in a header.
    around = f"{BYTE_ORDER_MARK}{QUOTE}' \t"
    spellings = [name.strip(around).casefold() for name in header]
    longest = max(map(len, spellings), default=0) + 10  # most fields are texts, longer than any name in a header
    fewest = _min_values(header)
    for row_index, row in enumerate(rows):
        if isinstance(row, str):
            problems[row_index] = row
        elif max(map(len, row)) <= longest and [field.strip(around).casefold() for field in row] == spellings:
            problems[row_index] = "it repeats the header, as in a file that was joined from two"
        elif not fewest <= len(row) <= len(header):
            problems[row_index] = (
                f"it has {plural(len(row), 'value')}, and the header has {len(header)}: put texts that hold a "
                f"{NAMES[separator].removesuffix('s')} in double quotes"
            )
    values: list[list[str | None]] = [
        [None for _ in header] if row_index in problems else [*row, *[""] * (len(header) - len(row))]
        for row_index, row in enumerate(rows)
    ]
    filled_rows = {
        place: [row_number for row_number, row in enumerate(values, start=1) if (row[place] or "").strip()]
        for place, name in enumerate(header)
        if not name.strip()
    }
    unnamed = {place: f"Unnamed: {place}" for place, row_numbers in filled_rows.items() if row_numbers}
    # pandas writes its index without a name, which is neither a text nor a label.
    reported = [place for place in unnamed if place > 0 or not all((row[0] or "0").isdecimal() for row in values)]
    if reported:
        reported_rows = {row_number for place in reported for row_number in filled_rows[place]}
        print(
            f"{path}: {plural(len(reported_rows), 'row')}, the first of them row {min(reported_rows)}, with values in "
            f"unnamed columns, called {', '.join(repr(unnamed[place]) for place in reported)}: are texts in double "
            "quotes?",
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
        samples = [_records(lines, separator, style, SNIFFED_ROWS) for style in styles]
        shares[separator] = max(_count_full(rows) / max(1, len(rows)) for rows in samples)
    separator = max(shares, key=lambda separator: shares[separator])
    quoted = _records(lines, separator)
    if separator != "\t":
        return separator, quoted
    # Tab-separated tables are often written without quoting, such as GLUE's.
    bare = _records(lines, separator, csv.QUOTE_NONE)
    full_quoted, full_bare = _count_full(quoted), _count_full(bare)
    if (full_quoted == len(quoted) and full_bare < len(bare)) or full_quoted >= full_bare:
        return separator, quoted
    if any(field.startswith(QUOTE) for _, row in bare for field in row):
        print(f"{path}: its double quotes are read as text, because they do not enclose whole fields", file=sys.stderr)
    return separator, bare


def _count_full(records: Sequence[Numbered]) -> int:
    """The number of rows with as many fields as the header, which counts too; 0 if the header has only one."""
    header, *rows = [record for _, record in records] or [""]
    if isinstance(header, str) or len(header) == 1:
        return 0
    fewest = _min_values(header)
    return 1 + sum(not isinstance(row, str) and fewest <= len(row) <= len(header) for row in rows)


def _min_values(header: Sequence[str]) -> int:
    """The minimum number of values of a row: columns without a name may be missing at its end."""
    return max((place for place, name in enumerate(header, start=1) if name.strip()), default=0)


def _records(
    lines: Sequence[str], separator: str, quoting: int = csv.QUOTE_MINIMAL, most: int = sys.maxsize
) -> list[Numbered]:
    """The first rows and their lines, without blank lines, and without a last field that is empty in all and unnamed.

    An unclosed quote swallows the lines after it. Only its own line is bad: the lines after it are read again, except
    those with quotes up to the error, which may be parts of the field.
    """
    records: list[Numbered] = []
    start = first = doubtful = 0
    reader: Any = None
    while start < len(lines) and len(records) < most:
        if start < doubtful and QUOTE in lines[start]:
            start, reader = start + 1, None
            records.append((start, "it may be part of a field that an earlier line opens with a double quote"))
            continue
        if reader is None:
            first, rest = start, map(lines.__getitem__, range(start, len(lines)))
            reader = csv.reader(rest, delimiter=separator, quoting=quoting, strict=True)  # type: ignore[arg-type]
        try:
            row = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            doubtful, reader = max(first + reader.line_num, doubtful), None
            start += 1
            records.append((start, f"it has double quotes that do not enclose a whole field ({error})"))
            continue
        # Writers of tables quote an empty field that is alone in its row.
        if len(row) > 1 or QUOTE in lines[start] or any(field.strip() for field in row):
            records.append((start + 1, row))
        start = first + reader.line_num

    header, *rows = [record for _, record in records] or [""]
    fields = [row for row in rows if not isinstance(row, str)]
    if isinstance(header, str) or not fields or any(len(row) <= len(header) or row[-1].strip() for row in fields):
        return records
    return [records[0], *((line, row if isinstance(row, str) else row[:-1]) for line, row in records[1:])]
