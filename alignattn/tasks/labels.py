"""Labels: which of them are right for a task, and what a user's own labels mean.

Rows are counted from 1 in every message; a CSV file's header is not a row.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alignattn.errors import AlignAttnError
from alignattn.tasks.task import MetricName, Task

UNLABELLED = -1
"""The label of a row without one: SNLI's annotators disagreed, GLUE's test splits keep theirs secret."""

USER_CLASSIFICATION_METRICS: tuple[MetricName, ...] = ("accuracy",)
USER_REGRESSION_METRICS: tuple[MetricName, ...] = ("pearson", "spearmanr")

_LISTED_CLASSES = 10

UserLabel = int | float | str


def numeric_labels(values: Iterable[Any], origin: str) -> NDArray[np.float64]:
    """The labels of a column of numbers, [N].

    Raises:
        AlignAttnError: A value is missing or is no number; the message names its row.
    """
    numbers = []
    for row, value in enumerate(values, start=1):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise AlignAttnError(
                f"label {value!r} in row {row} of {origin} is not a number: correct it, or leave the row out"
            )
        numbers.append(float(value))
    return np.array(numbers, dtype=np.float64)


def labelled_rows(task: Task, labels: NDArray[np.float64], origin: str) -> NDArray[np.bool_]:
    """Which rows have a label, [N]: False where it is -1 and -1 is not a score of the task.

    Raises:
        AlignAttnError: A label is neither one of the task's nor -1 (the message names the first such row),
            or no row has a label.
    """
    valid = _valid_labels(task, labels)
    wrong = ~valid & (labels != UNLABELLED)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise AlignAttnError(
            f"label {labels[row]:g} in row {row + 1} of {origin} is not {_expected_labels(task)}: "
            "correct it, or leave the row out"
        )
    if not valid.any():
        raise AlignAttnError(f"{origin} has no labelled row: every label is {UNLABELLED}")
    return valid


def _valid_labels(task: Task, labels: NDArray[np.float64]) -> NDArray[np.bool_]:
    if not task.is_regression:
        return np.isin(labels, np.arange(task.num_labels))
    low, high = task.label_range or (-math.inf, math.inf)
    return np.isfinite(labels) & (low <= labels) & (labels <= high)


def _expected_labels(task: Task) -> str:
    if not task.is_regression:
        return f"a class number of 0 to {task.num_labels - 1}"
    if task.label_range is None:
        return "a finite number"
    low, high = task.label_range
    return f"a score of {low:g} to {high:g}"


def parse_user_labels(values: Iterable[Any], origin: str) -> list[UserLabel]:
    """A user's labels as what they say: integers, real numbers, or names without the blanks around them.

    Text that is a number counts as that number, since a CSV file holds nothing but text.

    Raises:
        AlignAttnError: A label is missing, or some are numbers and some are names; the message names the row.
    """
    parsed = []
    for row, value in enumerate(values, start=1):
        if value is None or (isinstance(value, str) and not value.strip()):
            raise AlignAttnError(f"row {row} of {origin} has no label: add it, or leave the row out")
        parsed.append(_parse_label(value))
    are_names = [isinstance(label, str) for label in parsed]
    if any(are_names) and not all(are_names):
        row = are_names.index(not are_names[0])
        raise AlignAttnError(
            f"labels of {origin} mix numbers and names ({parsed[0]!r} in row 1, {parsed[row]!r} in row "
            f"{row + 1}): use one kind throughout"
        )
    return parsed


def _parse_label(value: Any) -> UserLabel:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = str(value).strip()
    # Not every text that float() takes is meant as a number: "nan", "infinity" and "1_000" are names.
    if not text.isascii() or "_" in text:
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def user_task(labels: Sequence[UserLabel], text_columns: Sequence[str], label_column: str, origin: str) -> Task:
    """The task that a user's training labels pose: names or 0 to C-1 are classes, real numbers a regression.

    Raises:
        AlignAttnError: Integers are not 0 to C-1 without a gap, or there are fewer than two classes.
    """
    classes: tuple[str, ...] = ()
    if isinstance(labels[0], str):
        classes = tuple(sorted({str(label) for label in labels}))
    elif all(isinstance(label, int) for label in labels):
        classes = _numbered_classes(labels, origin)
    if len(classes) == 1:
        raise AlignAttnError(
            f"every label of {origin} is {classes[0]!r}: a classifier needs at least two classes; check --label_column"
        )
    return Task(
        name="user",
        text_columns=tuple(text_columns),
        label_column=label_column,
        labels=classes,
        metrics=USER_CLASSIFICATION_METRICS if classes else USER_REGRESSION_METRICS,
    )


def _numbered_classes(labels: Sequence[UserLabel], origin: str) -> tuple[str, ...]:
    numbers = set(labels) - {UNLABELLED}
    if not numbers:
        raise AlignAttnError(f"{origin} has no labelled row: every label is {UNLABELLED}")
    for row, label in enumerate(labels, start=1):
        if label != UNLABELLED and label not in range(len(numbers)):
            raise AlignAttnError(
                f"label {label} in row {row} of {origin} is outside 0 to {len(numbers) - 1}, the "
                f"{len(numbers)} classes found: number them from 0 without a gap, use names, "
                "or write 1.0 for 1 to learn a score"
            )
    return tuple(str(number) for number in range(len(numbers)))


def user_label_numbers(task: Task, labels: Sequence[UserLabel], origin: str) -> NDArray[np.float64]:
    """A user's labels as class numbers or scores, [N], by the classes of the training file.

    Raises:
        AlignAttnError: A label is no class of the training file, or no number where numbers are learned.
    """
    if task.is_regression:
        return numeric_labels(labels, origin)
    numbers = {name: number for number, name in enumerate(task.labels)}
    if "0" in numbers:
        numbers[str(UNLABELLED)] = UNLABELLED
    for row, label in enumerate(labels, start=1):
        if str(label) not in numbers:
            raise AlignAttnError(
                f"label {label!r} in row {row} of {origin} is not a class of the training file "
                f"({_listing(task.labels)}): correct it, or leave the row out"
            )
    return np.array([numbers[str(label)] for label in labels], dtype=np.float64)


def _listing(names: Sequence[str]) -> str:
    more = len(names) - _LISTED_CLASSES
    return ", ".join(names[:_LISTED_CLASSES]) + (f" and {more} more" if more > 0 else "")
