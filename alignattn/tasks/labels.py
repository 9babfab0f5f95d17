"""Labels: which of them are right for a task, and what a user's own labels mean."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alignattn.support.errors import AlignAttnError, listing, shown
from alignattn.tasks.task import LabelledTask, MetricName
from alignattn.tasks.texts.task import TextClassification

UNLABELLED = -1
"""The label of a row without one: SNLI's annotators disagreed, GLUE's test splits keep theirs secret."""

USER_CLASSIFICATION_METRICS: tuple[MetricName, ...] = ("accuracy",)
USER_REGRESSION_METRICS: tuple[MetricName, ...] = ("pearson", "spearmanr")

UserLabel = int | float | str


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
    """Which rows have a label, [N]: False where it is -1 and -1 is not a score of the task.

    Raises:
        AlignAttnError: No row has one.
    """
    labelled = np.array([_is_label(task, number) for number in numbers], dtype=bool)
    if not labelled.any():
        raise _no_labelled_row(origin)
    return labelled


def _number(task: LabelledTask, value: Any) -> float | None:
    """A label as a number: the Hub's HellaSwag and every CSV file write numbers as text, a user may write the name."""
    if isinstance(value, str):
        value = task.labels.index(value) if value in task.labels else _parse_label(value)
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


def _no_labelled_row(origin: str) -> AlignAttnError:
    return AlignAttnError(f"{origin} has no labelled row: every label is {UNLABELLED}")


def parse_user_labels(values: Iterable[Any], origin: str) -> dict[int, UserLabel]:
    """A user's labels by row, counted from 0: integers, real numbers, or names without the blanks around them.

    Text that is a number counts as that number, since a CSV file holds nothing but text. A row without a label is
    left out.

    Raises:
        AlignAttnError: Some labels are numbers and some are names; the message names a row.
    """
    parsed = {
        index: _parse_label(value)
        for index, value in enumerate(values)
        if value is not None and not (isinstance(value, str) and not value.strip())
    }
    are_names = {index: isinstance(label, str) for index, label in parsed.items()}
    if len(set(are_names.values())) > 1:
        first = next(iter(parsed))
        other = next(index for index, is_name in are_names.items() if is_name != are_names[first])
        raise AlignAttnError(
            f"labels of {origin} mix numbers and names ({parsed[first]!r} in row {first + 1}, {parsed[other]!r} in "
            f"row {other + 1}): use one kind throughout"
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


def user_task(
    labels: Mapping[int, UserLabel], text_columns: Sequence[str], label_column: str, origin: str
) -> TextClassification:
    """The task that a user's training labels pose: names or 0 to C-1 are classes, real numbers a regression.

    Args:
        labels: By row, counted from 0; at least one.
        text_columns: The columns of text.
        label_column: The column of the labels.
        origin: The training file.

    Raises:
        AlignAttnError: Integers are not 0 to C-1 without a gap, or there are fewer than two classes.
    """
    classes: tuple[str, ...] = ()
    names = [label for label in labels.values() if isinstance(label, str)]
    if names:
        classes = tuple(sorted(set(names)))
    elif all(isinstance(label, int) for label in labels.values()):
        classes = _numbered_classes(labels, origin)
    if len(classes) == 1:
        raise AlignAttnError(
            f"every label of {origin} is {classes[0]!r}: a classifier needs at least two classes; check --label_column"
        )
    return TextClassification(
        name="user",
        text_columns=tuple(text_columns),
        label_column=label_column,
        labels=classes,
        metrics=USER_CLASSIFICATION_METRICS if classes else USER_REGRESSION_METRICS,
    )


def _numbered_classes(labels: Mapping[int, UserLabel], origin: str) -> tuple[str, ...]:
    numbers = set(labels.values()) - {UNLABELLED}
    if not numbers:
        raise _no_labelled_row(origin)
    for index, label in labels.items():
        if label != UNLABELLED and label not in range(len(numbers)):
            raise AlignAttnError(
                f"label {label} in row {index + 1} of {origin} is outside 0 to {len(numbers) - 1}, the "
                f"{len(numbers)} classes found: number them from 0 without a gap, use names, "
                "or write 1.0 for 1 to learn a score"
            )
    return tuple(str(number) for number in range(len(numbers)))


def user_label_numbers(
    task: TextClassification, labels: Mapping[int, UserLabel], num_rows: int
) -> tuple[list[UserLabel], dict[int, str]]:
    """A user's labels as class numbers or scores by the classes of the training file, and what is wrong with others.

    Args:
        task: What `user_task` made of the training file.
        labels: By row, counted from 0.
        num_rows: How many rows there are.

    Returns:
        The label of every row, -1 where there is none that is good; the problems by row.
    """
    numbers = {name: number for number, name in enumerate(task.labels)}
    if "0" in numbers:
        numbers[str(UNLABELLED)] = UNLABELLED
    column: list[UserLabel] = [UNLABELLED] * num_rows
    problems = {}
    for index, label in labels.items():
        if task.is_regression and not isinstance(label, str):
            column[index] = label
        elif task.is_regression:
            problems[index] = f"label {label!r} is not a number"
        elif str(label) in numbers:
            column[index] = numbers[str(label)]
        else:
            problems[index] = f"label {label!r} is not a class of the training file ({listing(task.labels)})"
    return column, problems
