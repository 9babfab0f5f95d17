"""What the labels of a user's own texts mean: classes by number or by name, or scores."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from alignattn.support.errors import AlignAttnError, listing
from alignattn.tasks.labels import UNLABELLED, Label, no_labelled_row, parse_label
from alignattn.tasks.task import MetricName
from alignattn.tasks.texts.task import TextClassification

USER_CLASSIFICATION_METRICS: tuple[MetricName, ...] = ("accuracy",)
USER_REGRESSION_METRICS: tuple[MetricName, ...] = ("pearson", "spearmanr")


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
    """The task that a user's training labels pose: names or 0 to C-1 are classes, real numbers a regression.

    Args:
        labels: By row, counted from 0; at least one.
        text_columns: The columns of text.
        label_column: The column of the labels.
        origin: The training file.
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


def _numbered_classes(labels: Mapping[int, Label], origin: str) -> tuple[str, ...]:
    numbers = set(labels.values()) - {UNLABELLED}
    if not numbers:
        raise no_labelled_row(origin)
    for index, label in labels.items():
        if label != UNLABELLED and label not in range(len(numbers)):
            raise AlignAttnError(
                f"label {label} in row {index + 1} of {origin} is outside 0 to {len(numbers) - 1}, the "
                f"{len(numbers)} classes found: number them from 0 without a gap, use names, "
                "or write 1.0 for 1 to learn a score"
            )
    return tuple(str(number) for number in range(len(numbers)))


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
    if "0" in numbers:
        numbers[str(UNLABELLED)] = UNLABELLED
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
