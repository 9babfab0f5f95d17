"""What is told of rows that are cut; imports nothing heavy."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

WHOLE_SHARE = 0.99
"""Of the rows that a length is to hold whole."""


@dataclass(frozen=True)
class TruncatedRows:
    """The rows of a split that are cut.

    Attributes:
        rows: how many.
        share: of all rows of the split.
        max_length: the most tokens of a row.
        length_of_99_percent: the tokens that would hold 99 % of the rows whole.
    """

    rows: int
    share: float
    max_length: int
    length_of_99_percent: int

    def __str__(self) -> str:
        """Return it in words."""
        enough = f"; {self.length_of_99_percent} would hold 99 % of them whole"
        if self.length_of_99_percent <= self.max_length:
            enough = ", which holds 99 % of them whole"
        return f"{100 * self.share:.1f} % of the rows are cut at --max_length {self.max_length}{enough}"


def truncated_of(counts: Mapping[int, int], max_length: int) -> TruncatedRows | None:
    """Return which rows are cut; None where none is.

    Args:
        counts: how many rows have so many tokens.
        max_length: of the tokens that the model is given.
    """
    total, cut = sum(counts.values()), sum(count for length, count in counts.items() if length > max_length)
    if not cut:
        return None
    lengths = sorted(counts)
    place = math.ceil(WHOLE_SHARE * (total - 1))
    whole = lengths[bisect_right(list(accumulate(counts[length] for length in lengths)), place)]
    return TruncatedRows(cut, cut / total, max_length, whole)
