"""Attacked examples in words: the changed words and the outcome."""

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from alignattn.robustness.recipe_names import OUTCOMES
from alignattn.robustness.records import AttackRecord

Change = Literal["same", "deleted", "inserted"]
Piece = tuple[Change, str]
"""Adjacent words of a text, and whether they are the same in the other text."""


def changed_words(original: str, perturbed: str) -> tuple[list[Piece], list[Piece]]:
    """Return the pieces of both texts: `same` or `deleted` of the first, `same` or `inserted` of the second.

    Words are separated by whitespace. Invisible characters, such as a zero-width space or a terminal's escape sequence,
    become Python escapes.
    """
    before, after = original.split(), perturbed.split()
    # With autojunk, a word that makes up more than 1 % of a long text is never matched.
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    left: list[Piece] = []
    right: list[Piece] = []
    for operation, start, end, other_start, other_end in matcher.get_opcodes():
        is_same = operation == "equal"
        if end > start:
            left.append(("same" if is_same else "deleted", visible(" ".join(before[start:end]))))
        if other_end > other_start:
            right.append(("same" if is_same else "inserted", visible(" ".join(after[other_start:other_end]))))
    return left, right


def visible(text: str) -> str:
    """Return a text in one line, with Python escapes for invisible characters."""
    shown = (char if char.isprintable() else char.encode("unicode_escape").decode() for char in " ".join(text.split()))
    return "".join(shown)


def changed_columns(record: AttackRecord) -> Iterator[tuple[str, list[Piece], list[Piece] | None]]:
    """Yield each column's name and the pieces of its text before and after; None after for a skipped example."""
    for column, original in record.original.items():
        if record.perturbed is None:
            yield column, [("same", visible(original))], None
        else:
            yield column, *changed_words(original, record.perturbed.get(column, original))


def heading(record: AttackRecord) -> str:
    """Return a line with the row, the recipe, the outcome and the effort of the attack."""
    return visible(
        f"row {record.index} · {record.recipe} · {record.outcome} · {record.queries} queries · "
        f"{record.words_changed} of {record.words} words changed"
    )


def prediction_lines(record: AttackRecord, labels: Sequence[str]) -> list[str]:
    """Return lines with the label, the classes' scores before and after the attack, and the error, if any.

    Args:
        record: the example.
        labels: names of the classes; a class without one is its number.
    """
    lines = [f"label {_class_name(record.label, labels)}"]
    if record.original_scores:
        lines.append(f"predicted {_scores(record.original_scores, labels)}")
    if record.perturbed_scores:
        lines.append(f"attacked {_scores(record.perturbed_scores, labels)}")
    if record.error is not None:
        lines.append(f"error {visible(record.error)}")
    return lines


def summary_line(records: Sequence[AttackRecord]) -> str:
    """Return the number of examples of each outcome, and the share of failed attacks."""
    counts = Counter(record.outcome for record in records)
    attacked = counts["failed"] + counts["succeeded"]
    share = f"{counts['failed'] / attacked:.1%} of {attacked}" if attacked else "no row was attacked"
    each = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)
    return f"{len(records)} example(s): {each}; attacks that failed: {share}"


def _class_name(label: int, labels: Sequence[str]) -> str:
    return visible(labels[label]) if 0 <= label < len(labels) else str(label)


def _scores(scores: Sequence[float], labels: Sequence[str]) -> str:
    predicted = max(range(len(scores)), key=scores.__getitem__)
    each = ", ".join(f"{_class_name(label, labels)} {score:.3f}" for label, score in enumerate(scores))
    return f"{_class_name(predicted, labels)} ({each})"
