"""What is told of rows that are cut: a record, which imports nothing heavy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CutRows:
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
        enough = f"{self.length_of_99_percent} would hold 99 % of them whole"
        if self.length_of_99_percent <= self.max_length:
            enough = "which holds 99 % of them whole"
        return f"{100 * self.share:.1f} % of the rows are cut at --max_length {self.max_length}; {enough}"
