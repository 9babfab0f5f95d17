"""Rows of JSON: lines, one list, a document that holds a list, or objects one after the other, on lines or not."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from alignattn.tasks.answers.squad_rows import is_nested, nested_questions
from alignattn.tasks.file_rows import TextRows
from alignattn.utils.errors import AlignAttnError, shown
from alignattn.utils.json_records import parse_json

LEAST_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1
"""That a column holds."""

LIST_OF_ROWS = "data"
"""What a document calls its list of rows beside other values, such as a version: SQuAD's, and those of libraries."""


_NOT_BLANK = re.compile(r"\S")


class _Unread(NamedTuple):
    """What stands for a line that is no JSON."""

    problem: str


def read_json_rows(path: Path, text: str) -> TextRows:
    """Return the rows of a file by their names; values of rows that lack a name are None.

    Articles and paragraphs, as SQuAD nests them, are a row a question.

    Args:
        path: of the file, for messages.
        text: what it holds.
    """
    # The builder of `datasets` guesses: "2020-01-01" becomes a date, and a first `null` crashes Python.
    rows: list[dict[str, Any]] = []
    problems: dict[int, str] = {}
    for value in _values(path, text):
        for row, problem in nested_questions(value) if is_nested(value) else [_row(value)]:
            if problem is not None:
                problems[len(rows)] = problem
            rows.append(row)
    names = {name: None for row in rows for name in row}  # a dict keeps the order of the file
    if not names:
        raise AlignAttnError(
            f"{path} holds no row: {next(iter(problems.values()))}; give a JSON object a row"
            if problems
            else f"{path} is empty: give a file that holds rows"
        )
    return TextRows({name: [_storable(row.get(name)) for row in rows] for name in names}, problems)


def _row(value: Any) -> tuple[dict[str, Any], str | None]:
    if isinstance(value, dict):
        return value, None
    return {}, value.problem if isinstance(value, _Unread) else f"it is {shown(value)} and no JSON object"


def _values(path: Path, text: str) -> list[Any]:
    """The values of a file, which are rows if it is right."""
    if not text.strip():
        return []
    try:
        return _rows_of(parse_json(text))
    except ValueError as error:
        whole = error
    lines = list(_lines(text))
    if any(isinstance(value, _Unread) for value in lines):
        objects, objection = _stream(text)
        if objection is None:
            return objects
        is_list = text.lstrip().startswith("[")
        runs_over_lines = bool(objects) and not _stream(text.lstrip().partition("\n")[0])[0]
        has_rows = any(isinstance(value, dict) for value in lines)
        if isinstance(lines[0], _Unread) and (is_list or runs_over_lines or not has_rows):
            raise AlignAttnError(f"{path} is not JSON: {whole if is_list else objection}; correct the file")
    return lines


def _rows_of(document: Any) -> list[Any]:
    """The rows of one document: a list, an object that holds a list of objects, or one row."""
    if isinstance(document, list):
        return document
    if isinstance(document, dict):
        held = next(iter(document.values())) if len(document) == 1 else document.get(LIST_OF_ROWS)
        if isinstance(held, list) and all(isinstance(row, dict) for row in held):
            return held
    return [document]


def _lines(text: str) -> Iterator[Any]:
    # Not splitlines(), which also breaks at characters that a JSON string may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield parse_json(line)
        except json.JSONDecodeError as error:
            yield _Unread(f"line {number} is not JSON: {error.msg} at character {error.colno}")
        except ValueError as error:
            yield _Unread(f"line {number} is not JSON: {error}")


def _stream(text: str) -> tuple[list[Any], ValueError | None]:
    """The objects that stand one after the other, wherever lines end, and what ends them if not the text."""
    decoder = json.JSONDecoder()
    found: list[Any] = []
    place = 0
    try:
        while (start := _NOT_BLANK.search(text, place)) is not None:
            value, place = decoder.raw_decode(text, start.start())
            found.append(value)
    except RecursionError:
        return found, ValueError("it is nested too deeply")
    except ValueError as error:
        return found, error
    return found, None


def _storable(value: Any) -> Any:
    """A value of JSON in which integers that no column of 64 bits holds, as ids may be, are the texts that they are."""
    if isinstance(value, dict):
        return {name: _storable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_integer and not LEAST_INTEGER <= value <= MAX_INTEGER else value
