"""Hints at labels that are read as classes and may be meant otherwise."""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from alignattn.tasks.labels import Label, exactly, has_decimal_comma, spelling_key

NULL_MARKERS = frozenset(
    [
        "-",
        "--",
        "---",
        "?",
        "??",
        ".",
        "n/a",
        "na",
        "#n/a",
        "<na>",
        "n.a.",
        "nan",
        "null",
        "<null>",
        "none",
        "nil",
        "\\n",
        "unsup",
        "unlabeled",
        "unlabelled",
        "missing",
        "undefined",
        "unknown",
        "-1",
        "-9",
        "-99",
        "-100",
        "-999",
        "-9999",
    ]
)
"""What files hold, in any case, where a value is missing."""


def say_label_hints(labels: Iterable[Label], classes: Sequence[str], origin: str) -> None:
    """Say what is odd about the classes of a training file.

    Args:
        labels: of its rows; what is no class is passed over.
        classes: of the task.
        origin: the file.
    """
    known = frozenset(classes)
    for hint in _label_hints(label for label in labels if isinstance(label, str) and label in known):
        print(f"{origin}: {hint}", file=sys.stderr)


def _label_hints(labels: Iterable[str]) -> Iterator[str]:
    counts = Counter(labels)
    if counts and all(map(has_decimal_comma, counts)):
        first = next(iter(counts))
        yield (
            f"its labels look like numbers with a decimal comma and are read as classes; "
            f"for scores, write a decimal point: {first.replace(',', '.')} for {first}"
        )
    for name, count in counts.items():
        # Minus is a class beside plus, and -1 beside 1.
        is_opposite = name.startswith("-") and not counts.keys().isdisjoint({name[1:] or "+"})
        if name.casefold() in NULL_MARKERS and not is_opposite:
            yield (
                f"{exactly(name)} is read as a class ({_of(count, counts)}); if it marks rows without a label, leave "
                "their label empty and give --skip_bad_rows"
            )
    written = defaultdict(list)
    for name in counts:
        written[spelling_key(name)].append(name)
    for key, names in written.items():
        if key and len(names) > 1:
            told = " and ".join(f"{exactly(name)} ({_of(counts[name], counts)})" for name in names)
            yield f"{told} are read as different classes and differ only in how they are written"


def _of(count: int, counts: Counter[str]) -> str:
    return f"{count:,} of {counts.total():,} rows"
