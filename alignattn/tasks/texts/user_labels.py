"""What the labels of a user's own texts mean: classes by number or by name, or scores."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from alignattn.support.compression import plain_stem
from alignattn.support.errors import AlignAttnError, listing
from alignattn.tasks.labels import UNLABELLED, Label, no_labelled_row, parse_label
from alignattn.tasks.task import MOST_CLASSES, MetricName
from alignattn.tasks.texts.task import TextClassification

USER_BINARY_METRICS: tuple[MetricName, ...] = ("accuracy", "f1", "matthews_correlation")
USER_CLASSIFICATION_METRICS: tuple[MetricName, ...] = ("accuracy", "macro_f1", "matthews_correlation")
USER_REGRESSION_METRICS: tuple[MetricName, ...] = ("pearson", "spearmanr", "mse", "mae")

BINARY = 2
"""Classes of a yes or no."""
SURELY_CLASSES = 20
"""So many different labels are no free text, however few rows there are."""
MOST_DIFFERENT = 0.5
"""Share of the rows that have a label of their own in a column of classes."""


def parse_user_labels(values: Iterable[Any], origin: str) -> dict[int, Label]:
    """A user's labels by row, counted from 0: integers, real numbers, or names without the blanks around them.

    Text that is a number counts as that number, since a CSV file holds nothing but text. A row without a label is
    left out.
    """
    parsed = {
        index: parse_label(value)
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


def user_task(
    labels: Mapping[int, Label], text_columns: Sequence[str], label_column: str, origin: str
) -> TextClassification:
    """The task that a user's training labels pose: names or integers are classes, real numbers a regression.

    Args:
        labels: By row, counted from 0; at least one.
        text_columns: The columns of text.
        label_column: The column of the labels.
        origin: The training file, whose name is the task's.
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
    if len(classes) > MOST_CLASSES or len(classes) > max(len(labels) * MOST_DIFFERENT, SURELY_CLASSES):
        advice = "" if names else ", or write 1.0 for 1 to learn a score"
        raise AlignAttnError(
            f"column {label_column!r} of {origin} has {len(classes):,} different labels in {len(labels):,} rows, more "
            f"than classes can be: check --label_column{advice}"
        )
    metrics = USER_BINARY_METRICS if len(classes) == BINARY else USER_CLASSIFICATION_METRICS
    return TextClassification(
        name=plain_stem(origin),
        text_columns=tuple(text_columns),
        label_column=label_column,
        labels=classes,
        metrics=metrics if classes else USER_REGRESSION_METRICS,
    )


def _numbered_classes(labels: Mapping[int, Label], origin: str) -> tuple[str, ...]:
    """The integers among the labels in their order; -1 marks a row without a label where the others count from 0."""
    numbers = sorted(int(label) for label in set(labels.values()))
    others = [number for number in numbers if number != UNLABELLED]
    if not others:
        raise no_labelled_row(origin)
    marks_unlabelled = len(others) > 1 and others == list(range(len(others)))
    return tuple(map(str, others if marks_unlabelled else numbers))


def user_label_numbers(
    task: TextClassification, labels: Mapping[int, Label], num_rows: int
) -> tuple[list[Label], dict[int, str]]:
    """A user's labels as class numbers or scores by the classes of the training file, and what is wrong with others.

    Args:
        task: What `user_task` made of the training file.
        labels: By row, counted from 0.
        num_rows: How many rows there are.

    Returns:
        The label of every row, -1 where there is none that is good; the problems by row.
    """
    numbers = {name: number for number, name in enumerate(task.labels)}
    if all(isinstance(parse_label(name), int) for name in task.labels):
        numbers.setdefault(str(UNLABELLED), UNLABELLED)
    column: list[Label] = [UNLABELLED] * num_rows
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
