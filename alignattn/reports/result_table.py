"""A table of runs, of `compare` or `reproduce`, and the legend of its marks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from alignattn.evaluation.statistics.comparison import SIGNIFICANCE_LEVEL
from alignattn.reports.cells import CONSTANT_MARK, NOT_APPLICABLE, NOTHING, WORSE_MARK, Cell, Run
from alignattn.utils.errors import listing, plural

DETECTABLE = "Detectable: the difference that this study detects at 0.05, after correction, with a power of 80 %."


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A table of runs.

    Attributes:
        name: its name and that of its files, such as `table1`.
        title: the title above the table.
        cells: the cells, row by row.
        runs: the runs, by digest.
        notes: sentences below the table.
        baseline: label of the row that the others are compared with, unless they name another.
        measured_source: models, seeds and options of the measured numbers; empty if the notes give them.
        published_source: paper, model and data of the published numbers; None without published numbers.
        named: number of comparisons that were named before the runs were made; a narrowed table shows some of them.
    """

    name: str
    title: str
    cells: Sequence[Cell]
    runs: Mapping[str, Run]
    notes: Sequence[str] = ()
    baseline: str = "soft"
    measured_source: str = ""
    published_source: str | None = None
    named: int = 0

    @property
    def rows(self) -> list[list[Cell]]:
        """The cells of each row, from left to right."""
        return [list(row) for _, row in groupby(self.cells, lambda cell: cell.row)]

    @property
    def compared(self) -> list[Cell]:
        """The cells that were compared with the baseline."""
        return [cell for cell in self.cells if cell.comparison is not None]

    @property
    def primary(self) -> list[Cell]:
        """The primary comparisons, named before the runs were made."""
        return [cell for cell in self.compared if cell.is_primary]

    @cached_property
    def failures(self) -> Mapping[str, int]:
        """The reasons of failed cells, numbered from 1 in the order of the table."""
        reasons = dict.fromkeys(cell.failure for cell in self.cells if cell.failure is not None)
        return {reason: number for number, reason in enumerate(reasons, start=1)}

    @property
    def has_uneven_seeds(self) -> bool:
        """Whether some of its cells have more seeds than others."""
        return len({len(cell.runs) for cell in self.cells if not cell.is_ensemble}) > 1

    def text_of(self, cell: Cell) -> str:
        """Return the text of one of its cells."""
        return cell.text(self.failures, counts=self.has_uneven_seeds)

    def legend(self, better: str, published: str) -> list[str]:
        """Return sentences that explain the marks in the table.

        Args:
            better: how a better number is marked, such as "Bold".
            published: how a published number is marked, such as "In brackets".
        """
        cells, compared = self.cells, [cell.comparison for cell in self.cells if cell.comparison is not None]
        verdicts = {cell.verdict for cell in cells}
        counts = sorted({len(cell.values) for cell in cells if cell.values and not cell.is_ensemble})
        lines = []
        if counts and counts[-1] > 1:
            number = f"{counts[0]} to {counts[-1]}" if counts[0] < counts[-1] else str(counts[0])
            lines.append(f"Mean ± standard deviation (of a sample, n − 1) over {number} seeds.")
        if self.has_uneven_seeds:
            lines.append("Means of a column may be over different seeds; paired differences are over common ones.")
        if self.published_source is not None:
            lines.append(
                f"{published}: published numbers, of the model and data named above, not of those measured here."
            )
        if self.primary:
            lines += self._families()
        family = "its family" if self.primary else "this table"
        survives = f"survives correction for all comparisons of {family} (p < {SIGNIFICANCE_LEVEL})"
        baseline, names = self.baseline, {one.names_baseline for one in self.compared}
        if names == {True, False}:
            baseline += " (or the row that its difference is to)"
        if "better" in verdicts:
            lines.append(f"{better}: better than {baseline} by a paired difference that {survives}.")
        elif compared:
            lines.append(f"No number is better than that of {baseline} by a paired difference that {survives}.")
        if "worse" in verdicts:
            lines.append(f"{WORSE_MARK}: worse than {baseline} by a paired difference that {survives}.")
        if any(cell.is_constant for cell in cells):
            lines.append(f"{CONSTANT_MARK}: of a model that predicts the same for every row.")
        if any(one.detectable for one in compared):
            lines.append(DETECTABLE)
        if verdicts & {"better", "worse"} and any(" examples" in one.test for one in compared):
            lines.append("A test over examples holds for the models of these seeds, not for other seeds.")
        if any(cell.values and cell.state != "done" for cell in cells):
            lines.append("“2 of 3”: over the finished runs.")
        unfit = dict.fromkeys(cell.reason for cell in cells if cell.state == "unfit")
        lines += [f"{NOT_APPLICABLE}: {reason}." for reason in unfit]
        if any(cell.state == "missing" and not cell.values for cell in cells):
            lines.append(f"{NOTHING}: not measured yet.")
        return lines

    def _families(self) -> list[str]:
        """Return sentences on primary, exploratory and unfinished comparisons."""
        named = dict.fromkeys(f"{cell.row} on {cell.heading}" for cell in self.primary)
        others = len(self.compared) - len(self.primary)
        lines = [
            f"Primary, named before the runs were made: {listing(list(named))}, of a family of "
            f"{plural(self.named, 'comparison')}; the other {others} are exploratory, and another family."
        ]
        if any(cell.comparison is not None and cell.comparison.is_early for cell in self.compared):
            lines.append(
                "A comparison is tested once all its runs are finished: a test after each run would inflate false "
                "positives."
            )
        return lines
