"""How far written sequences are from what is right."""

from collections.abc import Sequence
from dataclasses import dataclass

Sequences = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Nearest:
    """The reference that a written sequence is nearest to.

    Attributes:
        edits: between both: units put in, left out or exchanged.
        length: units of the reference.
    """

    edits: int
    length: int


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the fewest units to put in, to leave out or to exchange, to make one of the other (Levenshtein 1966)."""
    above = list(range(len(second) + 1))
    for row, unit in enumerate(first, start=1):
        left = row
        line = [left]
        for column, other in enumerate(second, start=1):
            left = min(above[column] + 1, left + 1, above[column - 1] + (unit != other))
            line.append(left)
        above = line
    return above[-1]


def nearest(written: Sequence[str], references: Sequences) -> Nearest:
    """Return the reference with the fewest edits; of several such the longest, by which an edit weighs least."""
    found = (Nearest(edit_distance(written, reference), len(reference)) for reference in references)
    return min(found, key=lambda one: (one.edits, -one.length))


def error_rate(found: Sequence[Nearest]) -> float:
    """Return the edits of all rows over the lengths of their nearest references."""
    return sum(one.edits for one in found) / sum(one.length for one in found)
