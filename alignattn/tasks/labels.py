"""Validation of labels, and their conversion to class numbers or scores."""

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
"""The label of an unlabelled row, as in SNLI (no majority) and GLUE's test splits."""

Label = int | float | str
"""A label in a file: a class number, a score or a class name."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
"""An integer as Python prints it; 007 and +1 are codes."""
_DECIMAL = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)")
_SCIENTIFIC = re.compile(rf"{_DECIMAL.pattern}([eE][+-]?[0-9]+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?([0-9]+|[0-9]{1,3}(\.[0-9]{3})+),[0-9]+")

_JOINT = re.compile(r"(?<=[^\W_])[-_]+(?=[^\W_])")
"""Hyphens and underscores between words, which count as blanks."""
_QUOTES = "\"'`´‘’‚“”„«»‹›"
_INVISIBLE = "Cf"
"""Unicode's category of zero-width characters, such as U+200B and U+FEFF."""


def label_problems(task: LabelledTask, values: Sequence[Any]) -> dict[int, str]:
    """Return the problem of each row, by index from 0, whose label is neither one of the task's nor -1."""
    problems = {}
    expected = f"a class number from 0 to {task.num_labels - 1} ({listing(task.labels)})"
    if task.is_regression:
        limits = task.label_range
        expected = "a finite number" if limits is None else f"a score from {limits[0]:g} to {limits[1]:g}"
    for index, (value, number) in enumerate(zip(map(only_item, values), _numbers(task, values), strict=True)):
        if number is None or (number != UNLABELLED and not _is_label(task, number)):
            is_comma = task.is_regression and has_decimal_comma(value)
            hint = "; write a decimal point" if is_comma else twin_hint(value, task.labels)
            problems[index] = form_problem(value) or f"label {shown(value)} is not {expected}{hint}"
    return problems


def label_numbers(
    task: LabelledTask, values: Sequence[Any], origin: str
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return valid labels as numbers, `[N]`, and which rows have one: -1 marks the others unless it is a score."""
    numbers = np.array(_numbers(task, values), dtype=np.float64)
    is_labelled = np.array([_is_label(task, number) for number in numbers], dtype=bool)
    if not is_labelled.any():
        raise no_labelled_row(origin)
    return numbers, is_labelled


def no_labelled_row(origin: str) -> AlignAttnError:
    """Return the error for rows without any label."""
    return AlignAttnError(f"{origin} has no labelled rows: every label is {UNLABELLED}")


def feature_names(dataset: datasets.Dataset, column: str) -> tuple[str, ...]:
    """Return the names of the class numbers of a column, or of its lists; empty if it has none."""
    feature = dataset.features[column]
    return tuple(getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None) or ())


def class_names(dataset: datasets.Dataset, column: str) -> tuple[str, ...]:
    """Return the names of `feature_names`; empty if they are the class numbers themselves."""
    names = feature_names(dataset, column)
    return () if names == tuple(map(str, range(len(names)))) else names


def number_names(task: LabelledTask, values: Sequence[Any]) -> dict[int, str]:
    """Return the class name of each integer label, if a class is named by an integer that is not its number.

    Args:
        task: the task of the labels.
        values: the labels of a split.

    Returns:
        An empty mapping if the integers can only be class numbers.
    """
    by_name = {int(label): label for label in task.labels if _INTEGER.fullmatch(label)}
    by_number = dict(enumerate(task.labels))
    if all(by_number.get(number) == label for number, label in by_name.items()):
        return {}
    parsed = {value: number for value in values if (number := _whole_number(value)) is not None}
    numbers = {*parsed.values()} - {UNLABELLED}
    num_names, num_numbers = len(numbers & by_name.keys()), len(numbers & by_number.keys())
    if numbers and num_names == num_numbers and not all(isinstance(value, str) for value in parsed):
        raise AlignAttnError(
            f"column {task.label_column!r} holds {listing([str(number) for number in sorted(numbers)])}, which can be "
            f"names or numbers of the classes of task {task.name!r} ({listing(task.labels)}): write names as text"
        )
    return by_name if num_names >= num_numbers else by_number


def named_labels(values: Iterable[Any], names: Mapping[int, str]) -> list[Any]:
    """Return labels with names in place of class numbers; -1 is kept."""
    labels = []
    for value in values:
        if (number := _whole_number(value)) is not None:
            value = str(number) if number == UNLABELLED else names.get(number, f"class number {number}")
        labels.append(value)
    return labels


def _whole_number(value: Any) -> int | None:
    """A label's whole number, also of 1.0, as pandas writes 1 in a column with missing values; None for others."""
    number = parse_label(value) if isinstance(value, int | float | str) else None
    if isinstance(number, float) and number.is_integer():
        return int(number)
    return number if isinstance(number, int) else None


def report_numbered_labels(task: LabelledTask, splits: Mapping[str, datasets.Dataset]) -> None:
    """Print how the class numbers of files without class names are read, if another file has names.

    Args:
        task: the task of the rows.
        splits: the rows by file.
    """
    labelled = {origin: rows for origin, rows in splits.items() if task.label_column in rows.column_names}
    if not any(class_names(rows, task.label_column) for rows in labelled.values()):
        return
    numbered = ", ".join(f"{number} = {name}" for number, name in enumerate(task.labels))
    for origin, rows in labelled.items():
        values = [parse_label(only_item(value)) for value in rows[task.label_column][:]]
        if not class_names(rows, task.label_column) and all(isinstance(value, int | float) for value in values):
            print(f"{origin}: its labels are numbers without names, which are read as {numbered}", file=sys.stderr)


def only_item(value: Any) -> Any:
    """Return the item of a (nested) list of one label; None for an empty list; other values unchanged."""
    while isinstance(value, list) and len(value) <= 1:
        value = value[0] if value else None
    return value


def form_problem(value: Any) -> str | None:
    """Return the problem of a label's type; None for text, a number, a Boolean or None."""
    if value is None or isinstance(value, str | int | float | Decimal):
        return None
    if isinstance(value, list):
        return (
            f"its label is a list, {shown(value)}: for several labels per row, give --label_column one column of "
            "0 and 1 per label"
        )
    return f"its label is {shown(value)}, which is neither text nor a number"


def is_missing(value: Any) -> bool:
    """Return whether a label is missing: None, blank text, or NaN, as pandas writes missing values."""
    return value is None or (isinstance(value, str) and not value.strip()) or value != value


def _numbers(task: LabelledTask, values: Iterable[Any]) -> list[float | None]:
    """The labels as numbers: HellaSwag on the Hub and CSV files have numbers as text, users may write names."""
    by_name = {label: number for number, label in enumerate(task.labels)}
    numbers: list[float | None] = []
    for value in map(only_item, values):
        value = str(value) if isinstance(value, Decimal) else value
        if isinstance(value, bool):
            value = str(value)
        if isinstance(value, str):
            value = by_name[value] if value in by_name else parse_label(value, is_score=task.is_regression)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        numbers.append(float(value) if is_number else None)
    return numbers


def _is_label(task: LabelledTask, number: float) -> bool:
    if not task.is_regression:
        # Not "in range(...)", which compares a float with one number after another.
        return number.is_integer() and 0 <= number < task.num_labels
    low, high = task.label_range or (-math.inf, math.inf)
    return math.isfinite(number) and low <= number <= high


def parse_label(value: Any, *, is_score: bool = False) -> Label:
    """Return a label as a number if it is a plain decimal number, because CSV files hold only text.

    Other text that a number parser accepts is a name: 007, 1_000, 0x1, nan, and 1e3 unless it is a score.

    Args:
        value: a number or text.
        is_score: whether the task is a regression.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    if _INTEGER.fullmatch(text):
        return int(text)
    pattern = _SCIENTIFIC if is_score else _DECIMAL
    return text if pattern.fullmatch(text) is None or is_code(text) else float(text)


def is_score(value: Label) -> bool:
    """Return whether a label is a number, or text that can be a score."""
    return not isinstance(value, str) or _SCIENTIFIC.fullmatch(value) is not None


def is_code(text: str) -> bool:
    """Return whether text is digits, signed or not, but not an integer as Python prints it, such as 0101 and +1."""
    return text.lstrip("+-").isdecimal() and _INTEGER.fullmatch(text) is None


def has_decimal_comma(value: Any) -> bool:
    """Return whether text looks like a number with a decimal comma."""
    return isinstance(value, str) and _DECIMAL_COMMA.fullmatch(value.strip()) is not None


def twin_hint(value: Any, names: Iterable[str]) -> str:
    """Return the end of a message on a name that differs from a label only in spelling; empty if there is none."""
    if not isinstance(value, str) or not (key := spelling_key(value)):
        return ""
    twin = next((name for name in names if spelling_key(name) == key), None)
    return "" if twin is None else f"; it differs from {exactly(twin)} in spelling only: {exactly(value)}"


def spelling_key(name: str) -> str:
    """Return a key that ignores Unicode form, invisible characters, quotes, blanks and case."""
    composed = unicodedata.normalize("NFKC", name)
    visible = "".join(c for c in composed if unicodedata.category(c) != _INVISIBLE and c not in _QUOTES)
    return " ".join(_JOINT.sub(" ", visible).split()).casefold()


def exactly(name: str) -> str:
    """Return a name in quotes, with the codes of non-ASCII characters, so that lookalikes differ."""
    return repr(name) if name.isascii() else f"{name!r} ({ascii(name)[1:-1]})"
