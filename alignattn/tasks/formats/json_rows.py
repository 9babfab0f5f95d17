"""JSON files: lines, a list, a document with a list, or concatenated objects; and SQuAD's nested articles."""

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from alignattn.tasks.formats import TextRows
from alignattn.utils.errors import AlignAttnError, shown
from alignattn.utils.files import parse_json

PARAGRAPHS, QUESTIONS = "paragraphs", "qas"
"""Lists of SQuAD's articles and of their paragraphs."""

Row = tuple[dict[str, Any], str | None]
"""A row and its problem, if any."""


class _Unread(NamedTuple):
    """Stands for a line that is not JSON."""

    problem: str


def read_json_rows(path: Path, text: str) -> TextRows:
    """Read rows; missing values are None. SQuAD's articles become one row per question.

    Args:
        path: the path of the file, for messages.
        text: its content.
    """
    # The builder of `datasets` guesses: "2020-01-01" becomes a date, and a first `null` crashes Python.
    rows: list[dict[str, Any]] = []
    problems: dict[int, str] = {}
    starts = array("Q")
    for line, value in _values(path, text):
        of_value: Iterable[Row] = [({}, f"it is {shown(value)}, not a JSON object")]
        if isinstance(value, _Unread):
            of_value = [({}, value.problem)]
        elif isinstance(value, dict):
            is_squad = PARAGRAPHS in value or QUESTIONS in value
            of_value = _squad_questions(value) if is_squad else [(value, None)]
        for row, problem in of_value:
            if problem is not None:
                problems[len(rows)] = problem
            rows.append(row)
            starts.append(line)
    names = {name: None for row in rows for name in row}  # a dict keeps the order of the file
    if not names:
        raise AlignAttnError(
            f"{path} has no rows: {next(iter(problems.values()))}; give one JSON object per row"
            if problems
            else f"{path} is empty: give a file that holds rows"
        )
    return TextRows(
        {name: [_storable(row.get(name)) for row in rows] for name in names},
        problems,
        lines=starts if all(starts) else (),
    )


def _squad_questions(value: Mapping[str, Any]) -> Iterator[Row]:
    """Yield one row per question of an article or a paragraph of SQuAD."""
    title = value.get("title")
    paragraphs = value.get(PARAGRAPHS, [value])
    for paragraph in paragraphs if isinstance(paragraphs, list) else [paragraphs]:
        questions = paragraph.get(QUESTIONS) if isinstance(paragraph, Mapping) else None
        if not isinstance(questions, list) or not isinstance(paragraph, Mapping):
            yield {}, f"a paragraph of article {shown(title)} has no list {QUESTIONS!r} of questions"
            continue
        for question in questions:
            if not isinstance(question, Mapping):
                yield {}, f"a question of article {shown(title)} is {shown(question)}, not a JSON object"
                continue
            row = {"title": title, "context": paragraph.get("context"), **question}
            problem = None
            if question.get("is_impossible") is True:
                row["answers"] = question.get("answers") or []
                problem = "it has answers although its is_impossible is true" if row["answers"] else None
            yield row, problem


def _values(path: Path, text: str) -> list[tuple[int, Any]]:
    """The values of a file, which are rows if it is correct, and their lines; 0 if these are not counted."""
    if not text.strip():
        return []
    try:
        document = parse_json(text)
    except ValueError as error:
        whole = error
    else:
        rows = document
        if isinstance(document, dict):
            # SQuAD's version stands beside its rows.
            rows = next(iter(document.values())) if len(document) == 1 else document.get("data")
            rows = rows if isinstance(rows, list) and all(isinstance(row, dict) for row in rows) else None
        return [(0, row) for row in rows] if isinstance(rows, list) else [(0, document)]
    lines: list[tuple[int, Any]] = []
    # Not splitlines(), which also splits at characters that a JSON string may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            lines.append((number, parse_json(line)))
        except json.JSONDecodeError as error:
            lines.append((number, _Unread(f"it is not JSON: {error.msg} at character {error.colno}")))
        except ValueError as error:
            lines.append((number, _Unread(f"it is not JSON: {error}")))
    values = [value for _, value in lines]
    if any(isinstance(value, _Unread) for value in values):
        objects, stream_error = _concatenated(text)
        if stream_error is None:
            return [(0, value) for value in objects]
        is_list = text.lstrip().startswith("[")
        runs_over_lines = bool(objects) and not _concatenated(text.lstrip().partition("\n")[0])[0]
        has_rows = any(isinstance(value, dict) for value in values)
        if isinstance(values[0], _Unread) and (is_list or runs_over_lines or not has_rows):
            raise AlignAttnError(f"{path} is not JSON: {whole if is_list else stream_error}; correct the file")
    return lines


def _concatenated(text: str) -> tuple[list[Any], ValueError | None]:
    """The consecutive values, wherever lines end, and the error after the last one, if any."""
    decoder = json.JSONDecoder()
    found: list[Any] = []
    place = 0
    try:
        while (start := re.compile(r"\S").search(text, place)) is not None:
            value, place = decoder.raw_decode(text, start.start())
            found.append(value)
    except RecursionError:
        return found, ValueError("it is nested too deeply")
    except ValueError as error:
        return found, error
    return found, None


def _storable(value: Any) -> Any:
    """A JSON value in which integers beyond 64 bits, such as ids, are text."""
    if isinstance(value, dict):
        return {name: _storable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_integer and not -(2**63) <= value < 2**63 else value
