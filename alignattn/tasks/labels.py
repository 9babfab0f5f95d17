"""Labels as files have them: numbers, names of classes, missing ones; and the classes that a user's labels define.

This module has no heavy imports.
"""

from __future__ import annotations

import difflib
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from alignattn.tasks.metrics import MetricName
from alignattn.tasks.names import MAX_CLASSES
from alignattn.utils.errors import AlignAttnError, listing, shown

if TYPE_CHECKING:
    import datasets

UNLABELLED = -1
"""The label of an unlabelled row, as in SNLI (no majority) and GLUE's test splits."""

Label = int | float | str
"""A label in a file: a class number, a score or a class name."""

INTEGER = re.compile(r"0|-?[1-9][0-9]*")
"""An integer as Python prints it; 007 and +1 are codes."""
_DECIMAL = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)")
_SCIENTIFIC = re.compile(rf"{_DECIMAL.pattern}([eE][+-]?[0-9]+)?")
_DECIMAL_COMMA = re.compile(r"[+-]?([0-9]+|[0-9]{1,3}(\.[0-9]{3})+),[0-9]+")

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

USER_BINARY_METRICS: tuple[MetricName, ...] = ("accuracy", "f1", "matthews_correlation")
USER_CLASSIFICATION_METRICS: tuple[MetricName, ...] = ("accuracy", "macro_f1", "matthews_correlation")
USER_REGRESSION_METRICS: tuple[MetricName, ...] = ("pearson", "spearmanr", "mse", "mae")

_JOINT = re.compile(r"(?<=[^\W_])[-_]+(?=[^\W_])")
"""Hyphens and underscores between words, which count as blanks."""
_QUOTES = "\"'`´‘’‚“”„«»‹›"
_INVISIBLE = "Cf"
"""Unicode's category of zero-width characters, such as U+200B and U+FEFF."""


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


def named_labels(values: Iterable[Any], names: Mapping[int, str]) -> list[Any]:
    """Return labels with names in place of class numbers; -1 is kept."""
    labels = []
    for value in values:
        if (number := whole_number(value)) is not None:
            value = str(number) if number == UNLABELLED else names.get(number, f"class number {number}")
        labels.append(value)
    return labels


def whole_number(value: Any) -> int | None:
    """Return the whole number of a label, also of 1.0, as pandas writes 1 beside missing values; None for others."""
    number = parse_label(value) if isinstance(value, int | float | str) else None
    if isinstance(number, float) and number.is_integer():
        return int(number)
    return number if isinstance(number, int) else None


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
    if INTEGER.fullmatch(text):
        return int(text)
    pattern = _SCIENTIFIC if is_score else _DECIMAL
    return text if pattern.fullmatch(text) is None or is_code(text) else float(text)


def is_code(text: str) -> bool:
    """Return whether text is digits, signed or not, but not an integer as Python prints it, such as 0101 and +1."""
    return text.lstrip("+-").isdecimal() and INTEGER.fullmatch(text) is None


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


def read_user_labels(dataset: datasets.Dataset, column: str, origin: str) -> UserLabels:
    """Read a file's labels: class names if it has them, otherwise numbers if the whole column allows it.

    Args:
        dataset: the rows of the file.
        column: the column of the labels.
        origin: the file.
    """
    named_classes = class_names(dataset, column)
    class_ids = {UNLABELLED, *range(len(named_classes))}
    raw_labels: dict[int, Any] = {}
    problems: dict[int, str] = {}
    for index, value in enumerate(map(only_item, dataset[column][:])):
        # pandas writes missing values as NaN.
        is_missing = value is None or (isinstance(value, str) and not value.strip()) or value != value
        problem = NO_LABEL if is_missing else form_problem(value)
        if problem is None and isinstance(value, float) and value in (float("inf"), -float("inf")):
            problem = f"label {value} is not a finite number"
        if problem is None and named_classes and value not in class_ids:
            problem = f"label {value} is not the number of one of the {len(named_classes)} named classes"
        if problem is None:
            raw_labels[index] = value
        else:
            problems[index] = problem
    if named_classes:
        names = named_labels(raw_labels.values(), dict(enumerate(named_classes)))
        labels = dict(zip(raw_labels, (UNLABELLED if name == str(UNLABELLED) else name for name in names), strict=True))
        return UserLabels(origin, labels, problems, named_classes)
    stripped = {
        index: value if isinstance(value, int | float) and not isinstance(value, bool) else str(value).strip()
        for index, value in raw_labels.items()
    }
    all_scores = all(not isinstance(text, str) or _SCIENTIFIC.fullmatch(text) for text in stripped.values())
    if all_scores and any("." in str(text) for text in stripped.values()):
        parsed = {index: parse_label(text, is_score=True) for index, text in stripped.items()}
    elif any(isinstance(text, str) and is_code(text) for text in stripped.values()):
        # One code such as 0101 turns all integers into text, so that 101 remains a different class.
        parsed = {index: str(text) for index, text in stripped.items()}
    else:
        parsed = {index: parse_label(text) for index, text in stripped.items()}
    are_names = {index: isinstance(label, str) for index, label in parsed.items()}
    if len(set(are_names.values())) > 1:
        first_index = next(iter(parsed))
        differing_index = next(index for index, is_name in are_names.items() if is_name != are_names[first_index])
        name = next(str(parsed[index]) for index in (first_index, differing_index) if are_names[index])
        advice = "use one kind throughout"
        if has_decimal_comma(name):
            advice = f"write a decimal point if {name} is a number"
        elif name.casefold() in NULL_MARKERS:
            advice = f"leave the field empty if {name!r} marks a row without a label"
        raise AlignAttnError(
            f"labels of {origin} mix numbers and names ({parsed[first_index]!r} in row {first_index + 1}, "
            f"{parsed[differing_index]!r} in row {differing_index + 1}): {advice}"
        )
    return UserLabels(origin, parsed, problems)


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
        if labels.names or any(isinstance(value, str) or value % 1 for value in values):
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


def user_classes(training: UserLabels, column: str) -> tuple[tuple[str, ...], tuple[MetricName, ...]]:
    """Return the classes of a user's training labels and the metrics; real numbers are scores, without classes.

    Names are classes in alphabetical order, integers in numerical order, unless the file names its numbers.

    Args:
        training: the labels of the training file, at least one.
        column: the column of the labels, for messages.
    """
    labels, origin = training.labels, training.origin
    whole_labels = [int(label) for label in labels.values() if not isinstance(label, str) and label % 1 == 0]
    has_points = len(whole_labels) == len(labels) and any(isinstance(label, float) for label in labels.values())
    if has_points and BINARY <= len(set(whole_labels)) <= SURELY_CLASSES:
        listed = listing([str(integer) for integer in sorted(set(whole_labels))])
        if NO_LABEL in training.problems.values():
            print(
                f"{origin}: its labels are whole numbers, and some rows have none, in which case pandas writes 1 as "
                f"1.0: they are read as classes ({listed}); for scores, remove the rows without a label",
                file=sys.stderr,
            )
            labels = dict(zip(labels, whole_labels, strict=True))
        else:
            print(
                f"{origin}: its labels are whole numbers with a decimal point ({listed}) and are read as scores; for "
                "classes, write 1 for 1.0",
                file=sys.stderr,
            )

    names = sorted({label for label in labels.values() if isinstance(label, str)})
    classes: tuple[str, ...] = tuple(names)
    if not names and (training.names or all(isinstance(label, int) for label in labels.values())):
        integers = sorted(int(label) for label in set(labels.values()))
        labelled = [integer for integer in integers if integer != UNLABELLED]
        if not labelled:
            raise no_labelled_row(origin)
        # -1 marks unlabelled rows if the others count from 0.
        marks_unlabelled = labelled != integers and len(labelled) > 1 and labelled == list(range(len(labelled)))
        classes = tuple(map(str, labelled if marks_unlabelled else integers))
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
            f"column {column!r} of {origin} has {len(classes):,} distinct labels in {len(labels):,} rows, too many for "
            f"classes: check --label_column{advice}"
        )
    # A file that names its classes determines their order, and may name classes that no row has.
    classes = training.names or classes
    metrics = USER_BINARY_METRICS if len(classes) == BINARY else USER_CLASSIFICATION_METRICS
    return classes, metrics if classes else USER_REGRESSION_METRICS


def with_user_labels(
    dataset: datasets.Dataset, column: str, of_file: UserLabels, classes: Sequence[str]
) -> tuple[datasets.Dataset, dict[int, str]]:
    """Return a file's rows with labels as class names or scores, and the problems of the others.

    Args:
        dataset: the rows of the file.
        column: the column of the labels.
        of_file: the labels of the file.
        classes: the classes of `user_classes`; empty for scores.

    Returns:
        The rows, with -1 for a row without a valid label; the problems by row.
    """
    is_regression = not classes
    unlabelled: Label = UNLABELLED if is_regression else str(UNLABELLED)
    names, has_integers = {*classes}, all(INTEGER.fullmatch(name.strip()) for name in classes)
    if of_file.names or has_integers:
        names.add(str(UNLABELLED))
    labels: list[Label] = [unlabelled] * len(dataset)
    problems = {}
    for index, label in of_file.labels.items():
        is_whole = not isinstance(label, str) and label % 1 == 0
        name = str(int(label)) if has_integers and is_whole else str(label)
        if is_regression and isinstance(label, str):
            problems[index] = f"label {label!r} is not a number"
        elif is_regression:
            labels[index] = label
        elif name in names:
            labels[index] = name
        else:
            hint = twin_hint(label, classes)
            problems[index] = f"label {label!r} is not a class of the training file ({listing(classes)}){hint}"
    return dataset.remove_columns(column).add_column(column, labels), problems


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
