"""Labels of rows: which of them are right for a task, and what they are as numbers."""

import math
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray

from alignattn.tasks.task import LabelledTask
from alignattn.utils.errors import AlignAttnError, listing, shown

UNLABELLED = -1
"""The label of a row without one: SNLI's annotators disagreed, GLUE's test splits keep theirs secret."""

NO_LABEL = "it has no label"
"""What is wrong with a row whose label is missing."""

Label = int | float | str
"""As a user writes it: a class number, a score or the name of a class."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
"""An integer as Python prints it. Not 007 or +1, which are codes."""
_DECIMAL = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)")
_SCIENTIFIC = re.compile(rf"{_DECIMAL.pattern}([eE][+-]?[0-9]+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")

_JOINT = re.compile(r"(?<=[^\W_])[-_]+(?=[^\W_])")
"""What joins words as a blank does."""
_QUOTES = "\"'`´‘’‚“”„«»‹›"
_INVISIBLE = "Cf"
"""Unicode's category of characters that take no room, such as U+200B and U+FEFF."""


def label_problems(task: LabelledTask, values: Sequence[Any]) -> dict[int, str]:
    """What is wrong with each row, counted from 0, whose label is neither one of the task's nor -1."""
    problems, by_name = {}, _numbers_by_name(task)
    for index, value in enumerate(map(only_item, values)):
        number = _number(task, value, by_name)
        if number is None or (number != UNLABELLED and not _is_label(task, number)):
            problems[index] = (
                form_problem(value) or f"label {shown(value)} is not {_expected_labels(task)}{_hint(task, value)}"
            )
    return problems


def label_numbers(task: LabelledTask, values: Sequence[Any]) -> NDArray[np.float64]:
    """The labels as numbers, [N]; none of them has a problem."""
    by_name = _numbers_by_name(task)
    return np.array([_number(task, only_item(value), by_name) for value in values], dtype=np.float64)


def has_label(task: LabelledTask, numbers: NDArray[np.float64], origin: str) -> NDArray[np.bool_]:
    """Which rows have a label, [N]: False where it is -1 and -1 is not a score of the task."""
    labelled = np.array([_is_label(task, number) for number in numbers], dtype=bool)
    if not labelled.any():
        raise no_labelled_row(origin)
    return labelled


def class_names(dataset: datasets.Dataset, column: str) -> tuple[str, ...]:
    """The names of the class numbers in a column; empty where it has none, or where they are the numbers themselves."""
    feature = dataset.features[column]
    names = tuple(getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None) or ())
    return () if names == tuple(map(str, range(len(names)))) else names


def number_names(task: LabelledTask, values: Sequence[Any]) -> dict[int, str]:
    """The classes that integers in a column stand for, where some classes have integers for names but not their own.

    Args:
        task: whose labels they are.
        values: the labels of a split.

    Returns:
        The class of each integer; nothing where the numbers of the classes are meant without doubt.
    """
    by_name = {int(label): label for label in task.labels if _INTEGER.fullmatch(label)}
    by_number = dict(enumerate(task.labels))
    if all(by_number.get(number) == label for number, label in by_name.items()):
        return {}
    parsed = {value: parse_label(value) for value in values if isinstance(value, int | str)}
    numbers = {number for number in parsed.values() if isinstance(number, int) and number != UNLABELLED}
    known = len(numbers & by_name.keys()), len(numbers & by_number.keys())
    if numbers and known[0] == known[1] and not all(isinstance(value, str) for value in parsed):
        raise AlignAttnError(
            f"column {task.label_column!r} holds {listing([str(number) for number in sorted(numbers)])}, which can be "
            f"names or numbers of the classes of task {task.name!r} ({listing(task.labels)}): write names as text"
        )
    return by_name if known[0] >= known[1] else by_number


def named_labels(values: Iterable[Any], names: Mapping[int, str]) -> list[Any]:
    """Labels in which names replace the integers that stand for them; -1 stays."""
    return [_named(value, names) for value in values]


def _named(value: Any, names: Mapping[int, str]) -> Any:
    number = parse_label(value) if isinstance(value, int | str) else None
    if not isinstance(number, int) or isinstance(number, bool):
        return value
    return str(number) if number == UNLABELLED else names.get(number, f"class number {number}")


def say_numbers_read(task: LabelledTask, splits: Mapping[str, datasets.Dataset]) -> None:
    """Say how label numbers are read of files without names for them, where another file has names.

    Args:
        task: that they are rows of.
        splits: the files by where they are from.
    """
    of_labels = {origin: rows for origin, rows in splits.items() if task.label_column in rows.column_names}
    if not any(class_names(rows, task.label_column) for rows in of_labels.values()):
        return
    numbered = ", ".join(f"{number} = {name}" for number, name in enumerate(task.labels))
    for origin, rows in of_labels.items():
        values = [parse_label(only_item(value)) for value in rows[task.label_column][:]]
        if not class_names(rows, task.label_column) and all(isinstance(value, int | float) for value in values):
            print(f"{origin}: it has no names for its label numbers, which are read as {numbered}", file=sys.stderr)


def only_item(value: Any) -> Any:
    """A label that may stand in a list of one; an empty list holds none."""
    while isinstance(value, list) and len(value) <= 1:
        value = value[0] if value else None
    return value


def form_problem(value: Any) -> str | None:
    """What is wrong with the form of a label, whatever the task; None for text, a number, a truth value or nothing."""
    if value is None or isinstance(value, str | int | float | Decimal):
        return None
    if isinstance(value, list):
        return (
            f"its label is a list of several, {shown(value)}: for several labels a row, name a column of 0 and 1 for "
            "each with --label_column"
        )
    return f"its label is {shown(value)}, which is neither text nor a number"


def is_missing(value: Any) -> bool:
    """Whether a row has no label: nothing, blanks, or NaN, which is what pandas makes of nothing."""
    return value is None or (isinstance(value, str) and not value.strip()) or value != value


def _numbers_by_name(task: LabelledTask) -> dict[str, int]:
    return {label: number for number, label in enumerate(task.labels)}


def _number(task: LabelledTask, value: Any, by_name: Mapping[str, int]) -> float | None:
    """A label as a number: the Hub's HellaSwag and every CSV file write numbers as text, a user may write the name."""
    if isinstance(value, Decimal):
        value = str(value)
    if isinstance(value, str):
        value = by_name[value] if value in by_name else parse_label(value, is_score=task.is_regression)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _is_label(task: LabelledTask, number: float) -> bool:
    if not task.is_regression:
        # Not "in range(...)", which looks for a float at one number after the other.
        return number.is_integer() and 0 <= number < task.num_labels
    low, high = task.label_range or (-math.inf, math.inf)
    return math.isfinite(number) and low <= number <= high


def _expected_labels(task: LabelledTask) -> str:
    if not task.is_regression:
        return f"a class number of 0 to {task.num_labels - 1} ({listing(task.labels)})"
    if task.label_range is None:
        return "a finite number"
    low, high = task.label_range
    return f"a score of {low:g} to {high:g}"


def _hint(task: LabelledTask, value: Any) -> str:
    if task.is_regression and has_decimal_comma(value):
        return "; write a decimal point"
    return twin_hint(value, task.labels)


def no_labelled_row(origin: str) -> AlignAttnError:
    """The error of rows none of which has a label."""
    return AlignAttnError(f"{origin} has no labelled row: every label is {UNLABELLED}")


def parse_label(value: Any, *, is_score: bool = False) -> Label:
    """A label as it is meant: text that is a plain decimal number counts as that number, since CSV holds only text.

    Other text that a number parser would take is a name: 007, 1_000, 0x1, nan, and 1e3 where no score is meant.

    Args:
        value: a number or text.
        is_score: whether scores are meant.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    if _INTEGER.fullmatch(text):
        return int(text)
    pattern = _SCIENTIFIC if is_score else _DECIMAL
    if pattern.fullmatch(text) is None or is_code(text):
        return text
    return float(text)


def is_score(value: Label) -> bool:
    """Whether a label is a number or text that can be meant as a score."""
    return not isinstance(value, str) or _SCIENTIFIC.fullmatch(value) is not None


def is_code(text: str) -> bool:
    """Whether text consists of digits and is no integer as it is printed, such as 0101 and +1."""
    return text.lstrip("+-").isdecimal() and _INTEGER.fullmatch(text) is None


def has_decimal_comma(value: Any) -> bool:
    """Whether text looks like a number with a comma where Python writes a point."""
    return isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value.strip()) is not None


def twin_hint(value: Any, names: Iterable[str]) -> str:
    """For the end of a message: which of the names differs from a label only in how it is written; or nothing."""
    if not isinstance(value, str) or not (key := spelling_key(value)):
        return ""
    twin = next((name for name in names if spelling_key(name) == key), None)
    return "" if twin is None else f"; it differs from {exactly(twin)} only in how it is written: {exactly(value)}"


def spelling_key(name: str) -> str:
    """What is the same of names that differ in Unicode form, invisible characters, quotes, blanks or case alone."""
    composed = unicodedata.normalize("NFKC", name)
    visible = "".join(c for c in composed if unicodedata.category(c) != _INVISIBLE and c not in _QUOTES)
    return " ".join(_JOINT.sub(" ", visible).split()).casefold()


def exactly(name: str) -> str:
    """A name in quotes, with the codes of characters that are not ASCII, so that names which look alike differ."""
    return repr(name) if name.isascii() else f"{name!r} ({ascii(name)[1:-1]})"
