"""What is to be known of the rows that were predicted, when all are."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from alignattn.tasks.truncation import TruncatedRows, unknown_rows_warning


@dataclass
class SeenRows:
    """The rows so far.

    Attributes:
        max_length: of the tokens that the model is given of a row.
        lengths: how many rows have so many tokens before any is cut.
        unknown: rows without a word that the model knows.
        unspaced: rows to tag that are one word for want of blanks.
    """

    max_length: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    unknown: int = 0
    unspaced: int = 0

    def remarks(self) -> Iterator[str]:
        """Yield what is odd of them, a line each."""
        cut = TruncatedRows.from_lengths(self.lengths, self.max_length)
        if cut is not None:
            yield f"{cut} (it is the run's)"
        if self.unspaced:
            yield (
                f"{self.unspaced} row(s) are one word of several Chinese characters, and get one tag: a word is what "
                "stands between blanks; put them between characters if the training rows have each as a word"
            )
        if self.unknown:
            yield unknown_rows_warning(self.unknown)

    def add(self, other: Self) -> None:
        """Count the rows of another part, too."""
        self.max_length = other.max_length
        self.lengths.update(other.lengths)
        self.unknown += other.unknown
        self.unspaced += other.unspaced

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Build it of its fields as JSON has them, whose keys are texts."""
        return cls(**{**fields, "lengths": Counter({int(tokens): rows for tokens, rows in fields["lengths"].items()})})
