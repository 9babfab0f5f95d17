"""Labels of a user's files: classes by number, classes by name, or scores."""

import difflib
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import datasets

from alignattn.tasks.labelled import LabelledTask
from alignattn.tasks.labels import (
    UNLABELLED,
    Label,
    class_names,
    exactly,
    form_problem,
    has_decimal_comma,
    is_code,
    is_missing,
    is_score,
    named_labels,
    no_labelled_row,
    only_item,
    parse_label,
    spelling_key,
    twin_hint,
)
from alignattn.tasks.metrics import MetricName
from alignattn.tasks.names import MAX_CLASSES
from alignattn.utils.errors import AlignAttnError, listing

USER_BINARY_METRICS: tuple[MetricName, ...] = ("accuracy", "f1", "matthews_correlation")
USER_CLASSIFICATION_METRICS: tuple[MetricName, ...] = ("accuracy", "macro_f1", "matthews_correlation")
USER_REGRESSION_METRICS: tuple[MetricName, ...] = ("pearson", "spearmanr", "mse", "mae")

L = TypeVar("L", bound=LabelledTask)

NO_LABEL = "it has no label"

MAX_MISTYPED_ROWS, MISTYPED_SHARE, MISTYPED_LIKENESS = 3, 1 / 30, 0.8
"""Most rows of a class that may be another's name mistyped, its share of the other's, and the least likeness."""

_NO_DIGITS = str.maketrans("", "", "0123456789")

BINARY = 2
SURELY_CLASSES = 20
"""Number of distinct labels up to which a column is never considered free text."""
NULL_MARKERS = frozenset(
    r"""- -- --- _ ? ?? . n/a na #n/a <na> n.a. nan null <null> none nil \n unsup unlabeled unlabelled missing undefined
    unknown tbd -1 -9 -99 -100 -999 -9999""".split()  # noqa: SIM905
)
"""Markers of missing values in files; case is ignored."""


@dataclass(frozen=True)
class UserLabels:
    """The labels of a user's file.

    Attributes:
        origin: the file.
        labels: integers, real numbers, or names without surrounding blanks, by row, from 0.
        problems: what is wrong with the other rows.
        names: the names of the file's class numbers, in their order; the label -1 then marks an unlabelled row.
    """

    origin: str
    labels: Mapping[int, Label]
    problems: Mapping[int, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    def without(self, rows: Mapping[int, str]) -> "UserLabels":
        """Return the labels of all rows except these."""
        return replace(self, labels={index: label for index, label in self.labels.items() if index not in rows})


def read_user_labels(dataset: datasets.Dataset, column: str, origin: str) -> UserLabels:
    """Read a file's labels: class names if it has them, otherwise numbers if the whole column allows it.

    Args:
        dataset: the rows of the file.
        column: the column of the labels.
        origin: the file.
    """
    names = class_names(dataset, column)
    numbers = {UNLABELLED, *range(len(names))}
    values: dict[int, Any] = {}
    problems: dict[int, str] = {}
    for index, value in enumerate(map(only_item, dataset[column][:])):
        problem = NO_LABEL if is_missing(value) else form_problem(value)
        if problem is None and isinstance(value, float) and value in (float("inf"), -float("inf")):
            problem = f"label {value} is not a finite number"
        if problem is None and names and value not in numbers:
            problem = f"label {value} is not the number of one of the {len(names)} named classes"
        if problem is None:
            values[index] = value
        else:
            problems[index] = problem
    if names:
        named = named_labels(values.values(), dict(enumerate(names)))
        labels = dict(zip(values, (UNLABELLED if name == str(UNLABELLED) else name for name in named), strict=True))
        return UserLabels(origin, labels, problems, names)
    parsed = _parsed(values)
    are_names = {index: isinstance(label, str) for index, label in parsed.items()}
    if len(set(are_names.values())) > 1:
        first = next(iter(parsed))
        other = next(index for index, is_name in are_names.items() if is_name != are_names[first])
        name = next(str(parsed[index]) for index in (first, other) if are_names[index])
        advice = "use one kind throughout"
        if has_decimal_comma(name):
            advice = f"write a decimal point if {name} is a number"
        elif name.casefold() in NULL_MARKERS:
            advice = f"leave the field empty if {name!r} marks a row without a label"
        raise AlignAttnError(
            f"labels of {origin} mix numbers and names ({parsed[first]!r} in row {first + 1}, {parsed[other]!r} in "
            f"row {other + 1}): {advice}"
        )
    return UserLabels(origin, parsed, problems)


def _parsed(values: Mapping[int, Any]) -> dict[int, Label]:
    """Labels as numbers if the whole column allows it, because a CSV file holds only text.

    Scores may have an exponent, as Python prints small numbers. One code such as 0101 turns all integers into text, so
    that 101 remains a different class.
    """
    texts = {
        index: value if isinstance(value, int | float) and not isinstance(value, bool) else str(value).strip()
        for index, value in values.items()
    }
    if all(map(is_score, texts.values())) and any("." in str(value) for value in texts.values()):
        return {index: parse_label(value, is_score=True) for index, value in texts.items()}
    if any(isinstance(value, str) and is_code(value) for value in texts.values()):
        return {index: str(value) for index, value in texts.items()}
    return {index: parse_label(value) for index, value in texts.items()}


def _is_whole(label: Label) -> bool:
    return isinstance(label, int) or (isinstance(label, float) and label.is_integer())


def share_names(splits: Mapping[str, UserLabels]) -> dict[str, UserLabels]:
    """Return the labels of all files by name, if one file names its classes and another only numbers them."""
    named = next((labels for labels in splits.values() if labels.names), None)
    if named is None:
        return dict(splits)
    numbered = ", ".join(f"{number} = {name}" for number, name in enumerate(named.names))
    shared = {}
    for split, labels in splits.items():
        shared[split] = labels
        values = labels.labels.values()
        if labels.names or not all(map(_is_whole, values)):
            continue
        numbers = sorted({int(value) for value in values} - {UNLABELLED})
        are_names = all(str(number) in named.names for number in numbers)
        are_numbers = all(number in range(len(named.names)) for number in numbers)
        if are_names and not are_numbers:
            continue
        if are_names or not are_numbers:
            problem = "which may be names or numbers" if are_names else "which are not all class numbers"
            raise AlignAttnError(
                f"{named.origin} names its classes ({numbered}), and {labels.origin} has the labels "
                f"{listing([str(number) for number in numbers])}, {problem}: write the names in both"
            )
        print(f"{labels.origin}: its label numbers get the names of {named.origin}: {numbered}", file=sys.stderr)
        names = [named.names[int(value)] if value != UNLABELLED else UNLABELLED for value in values]
        shared[split] = replace(labels, labels=dict(zip(labels.labels, names, strict=True)), names=named.names)
    return shared


def user_task(training: UserLabels, task: L) -> L:
    """Return the task with a user's training labels: names and integers are classes, real numbers a regression.

    Args:
        training: the labels of the training file, at least one.
        task: the task without labels and metrics.
    """
    labels, origin = _without_points(training), training.origin
    names = sorted({label for label in labels.values() if isinstance(label, str)})
    classes: tuple[str, ...] = tuple(names)
    if not names and (training.names or all(isinstance(label, int) for label in labels.values())):
        numbers = sorted(int(label) for label in set(labels.values()))
        others = [number for number in numbers if number != UNLABELLED]
        if not others:
            raise no_labelled_row(origin)
        # -1 marks unlabelled rows if the others count from 0.
        marks_unlabelled = others != numbers and len(others) > 1 and others == list(range(len(others)))
        classes = tuple(map(str, others if marks_unlabelled else numbers))
        if marks_unlabelled and not training.names:
            count = list(labels.values()).count(UNLABELLED)
            print(
                f"{origin}: label {UNLABELLED} ({count:,} of {len(labels):,} rows) marks rows without a label; if it "
                "is a class, write the names of the classes",
                file=sys.stderr,
            )
    if len(classes) == 1:
        raise AlignAttnError(
            f"every label of {origin} is {classes[0]!r}: a classifier needs at least two classes; check --label_column"
        )
    if len(classes) > MAX_CLASSES or len(classes) > max(len(labels) / 2, SURELY_CLASSES):
        advice = "" if names else ", or write 1.0 for 1 to learn a score"
        if names and all(map(has_decimal_comma, names)):
            advice = ", or write a decimal point to learn a score"
        raise AlignAttnError(
            f"column {task.label_column!r} of {origin} has {len(classes):,} distinct labels in {len(labels):,} rows, "
            f"too many for classes: check --label_column{advice}"
        )
    # A file that names its classes determines their order, and may name classes that no row has.
    classes = training.names or classes
    metrics = USER_BINARY_METRICS if len(classes) == BINARY else USER_CLASSIFICATION_METRICS
    return replace(task, labels=classes, metrics=metrics if classes else USER_REGRESSION_METRICS)


def _without_points(training: UserLabels) -> Mapping[int, Label]:
    """The labels with 1 for 1.0 if they are few whole numbers and some rows have no label: pandas then writes 1.0."""
    labels, origin = training.labels, training.origin
    if not all(map(_is_whole, labels.values())) or all(isinstance(label, int) for label in labels.values()):
        return labels
    numbers = sorted({int(label) for label in labels.values()})
    if not BINARY <= len(numbers) <= SURELY_CLASSES:
        return labels
    listed = listing([str(number) for number in numbers])
    if NO_LABEL not in training.problems.values():
        print(
            f"{origin}: its labels are whole numbers with a decimal point ({listed}) and are read as scores; for "
            "classes, write 1 for 1.0",
            file=sys.stderr,
        )
        return labels
    print(
        f"{origin}: its labels are whole numbers, and some rows have none, in which case pandas writes 1 as 1.0: they "
        f"are read as classes ({listed}); for scores, remove the rows without a label",
        file=sys.stderr,
    )
    return {index: int(label) for index, label in labels.items()}


def has_integer_names(task: LabelledTask) -> bool:
    """Return whether all classes of a task are named by integers."""
    return all(isinstance(parse_label(name), int) for name in task.labels)


def user_label_column(task: LabelledTask, split: UserLabels, num_rows: int) -> tuple[list[Label], dict[int, str]]:
    """Return a file's labels as class names or scores, and the problems of the others.

    Args:
        task: the task of `user_task`.
        split: the labels of the file.
        num_rows: the number of rows of the file.

    Returns:
        The label of every row, -1 for a row without a valid one; the problems by row.
    """
    unlabelled: Label = UNLABELLED if task.is_regression else str(UNLABELLED)
    names = {*task.labels}
    are_integers = has_integer_names(task)
    if split.names or are_integers:
        names.add(str(UNLABELLED))
    column: list[Label] = [unlabelled] * num_rows
    problems = {}
    for index, label in split.labels.items():
        name = str(int(label)) if are_integers and _is_whole(label) else str(label)
        if task.is_regression and isinstance(label, str):
            problems[index] = f"label {label!r} is not a number"
        elif task.is_regression:
            column[index] = label
        elif name in names:
            column[index] = name
        else:
            hint = twin_hint(label, task.labels)
            problems[index] = f"label {label!r} is not a class of the training file ({listing(task.labels)}){hint}"
    return column, problems


def mistyped_classes(counts: Mapping[str, int]) -> dict[str, str]:
    """Return the frequent class that each very rare class resembles, as a typing error does.

    Args:
        counts: the rows of each class.
    """
    found = {}
    for name, count in counts.items():
        # Names that differ in numbers, such as `version 1` and `version 2`, are meant.
        letters = name.translate(_NO_DIGITS)
        others = [
            other
            for other, rows in counts.items()
            if count <= min(MAX_MISTYPED_ROWS, MISTYPED_SHARE * rows) and other.translate(_NO_DIGITS) != letters
        ]
        if close := difflib.get_close_matches(name, others, n=1, cutoff=MISTYPED_LIKENESS):
            found[name] = close[0]
    return found


def label_hints(labels: Sequence[Label], classes: Sequence[str]) -> Iterator[str]:
    """Yield hints about labels of a training file that are read as classes but may be something else.

    Args:
        labels: the labels of its rows; those that are not classes are ignored.
        classes: the classes of the task.
    """
    known = frozenset(classes)
    counts = Counter(label for label in labels if isinstance(label, str) and label in known)
    count_of = {name: f"{count:,} of {counts.total():,} rows" for name, count in counts.items()}
    if counts and all(map(has_decimal_comma, counts)):
        first = next(iter(counts))
        yield (
            f"its labels look like numbers with a decimal comma and are read as classes; "
            f"for scores, write a decimal point: {first.replace('.', '').replace(',', '.')} for {first}"
        )
    spellings = defaultdict(list)
    for name in counts:
        spellings[spelling_key(name)].append(name)
        # Minus is a class if plus is one, and -1 if 1 is.
        is_opposite = name.startswith("-") and not counts.keys().isdisjoint({name[1:] or "+"})
        if name.casefold() in NULL_MARKERS and not is_opposite:
            yield (
                f"{exactly(name)} is read as a class ({count_of[name]}); if it marks rows without a label, leave their "
                "label empty and give --skip_bad_rows"
            )
    for key, names in spellings.items():
        if key and len(names) > 1:
            listed = " and ".join(f"{exactly(name)} ({count_of[name]})" for name in names)
            yield f"{listed} are read as different classes and differ only in spelling"
    for name, frequent in mistyped_classes(counts).items():
        if spelling_key(name) != spelling_key(frequent):
            rows = listing([str(row) for row, label in enumerate(labels, start=1) if label == name])
            yield (
                f"label {exactly(name)} (row {rows}) may be a typing error for {exactly(frequent)} "
                f"({count_of[frequent]}): if it is, correct it; it is read as a class of its own"
            )
