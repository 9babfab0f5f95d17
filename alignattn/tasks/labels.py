"""Labels as files have them: numbers, names of classes, missing ones. This module has no heavy imports."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from alignattn.utils.errors import AlignAttnError, shown

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


def is_missing(value: Any) -> bool:
    """Return whether a label is missing: None, blank text, or NaN, as pandas writes missing values."""
    return value is None or (isinstance(value, str) and not value.strip()) or value != value


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


def is_score(value: Label) -> bool:
    """Return whether a label is a number, or text that can be a score."""
    return not isinstance(value, str) or _SCIENTIFIC.fullmatch(value) is not None


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
