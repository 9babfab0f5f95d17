"""Labels of rows: which of them are right for a task, and what they are as numbers."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alignattn.support.errors import AlignAttnError, listing, shown
from alignattn.tasks.task import LabelledTask

UNLABELLED = -1
"""The label of a row without one: SNLI's annotators disagreed, GLUE's test splits keep theirs secret."""

Label = int | float | str
"""As a user writes it: a class number, a score or the name of a class."""


def label_problems(task: LabelledTask, values: Sequence[Any]) -> dict[int, str]:
    """What is wrong with each row, counted from 0, whose label is neither one of the task's nor -1."""
    problems = {}
    for index, value in enumerate(values):
        number = _number(task, value)
        if number is None or (number != UNLABELLED and not _is_label(task, number)):
            problems[index] = f"label {shown(value)} is not {_expected_labels(task)}"
    return problems


def label_numbers(task: LabelledTask, values: Sequence[Any]) -> NDArray[np.float64]:
    """The labels as numbers, [N]; none of them has a problem."""
    return np.array([_number(task, value) for value in values], dtype=np.float64)


def has_label(task: LabelledTask, numbers: NDArray[np.float64], origin: str) -> NDArray[np.bool_]:
    """Which rows have a label, [N]: False where it is -1 and -1 is not a score of the task."""
    labelled = np.array([_is_label(task, number) for number in numbers], dtype=bool)
    if not labelled.any():
        raise no_labelled_row(origin)
    return labelled


def _number(task: LabelledTask, value: Any) -> float | None:
    """A label as a number: the Hub's HellaSwag and every CSV file write numbers as text, a user may write the name."""
    if isinstance(value, str):
        value = task.labels.index(value) if value in task.labels else parse_label(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _is_label(task: LabelledTask, number: float) -> bool:
    if not task.is_regression:
        return number in range(task.num_labels)
    low, high = task.label_range or (-math.inf, math.inf)
    return math.isfinite(number) and low <= number <= high


def _expected_labels(task: LabelledTask) -> str:
    if not task.is_regression:
        return f"a class number of 0 to {task.num_labels - 1} ({listing(task.labels)})"
    if task.label_range is None:
        return "a finite number"
    low, high = task.label_range
    return f"a score of {low:g} to {high:g}"


def no_labelled_row(origin: str) -> AlignAttnError:
    """The error of rows none of which has a label."""
    return AlignAttnError(f"{origin} has no labelled row: every label is {UNLABELLED}")


def parse_label(value: Any) -> Label:
    """A label as it is meant: text that is a number counts as that number, since a CSV file holds nothing but text."""
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
