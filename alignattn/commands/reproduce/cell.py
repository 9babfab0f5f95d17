"""What stands where a row of a table meets one of the numbers below a column, from its definition to its print."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from alignattn.commands.reproduce.experiment import Experiment, State
from alignattn.evaluation.statistics.comparison_words import (
    NOTHING,
    ONE_ANSWER_MARK,
    UNITS,
    WORSE_MARK,
    Better,
    Unit,
    UnitName,
    Verdict,
    counted,
    difference_texts,
    verdict_of,
)
from alignattn.evaluation.statistics.seeds import SeedSpread, over_seeds, with_deviation
from alignattn.tasks.task import BY_SEED

if TYPE_CHECKING:
    from alignattn.evaluation.statistics.comparison import Comparison

COLUMN_OPTIONS = ("task", "pair")
"""Options that name a column; the first that it has."""

NOT_APPLICABLE = "n/a"
NO_REASON = "no reason is recorded"


class Definition(BaseModel):
    """A part of a table's file: it holds what is named here and nothing else."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Measure(Definition):
    """One of the numbers below a column.

    Attributes:
        label: as printed.
        path: keys joined by dots, to the number in what a run measured; `{attention}` stands for the row's.
        unit: what it is printed in.
        is_better: which values are better; None where neither is.
        primary: whether it is what the primary rows were named for.
    """

    label: str
    path: str
    unit: UnitName = "percent"
    is_better: Better | None = "higher"
    primary: bool = False

    @property
    def heading(self) -> str:
        """Its label with its unit."""
        symbol = UNITS[self.unit].symbol
        return f"{self.label} ({symbol})" if symbol else self.label


class Column(Definition):
    """A column, such as a task.

    Attributes:
        label: as printed.
        command: whose runs fill it; where empty, the table's.
        options: of its runs.
        measures: the numbers below it.
        seeds: most that its cells have; None for all.
    """

    label: str
    command: str = ""
    options: Mapping[str, Any] = Field(default_factory=dict)
    measures: Sequence[Measure] = Field(min_length=1)
    seeds: int | None = Field(None, ge=1)

    @property
    def name(self) -> str:
        """The task or pair; the label where there is neither."""
        return next((str(self.options[name]) for name in COLUMN_OPTIONS if name in self.options), self.label)


class Row(Definition):
    """A row.

    Attributes:
        options: of its runs.
        label: as printed; where empty, the options that tell it from the others.
        ensemble: whether it is the deep ensemble of the runs of its options: the mean of what they predicted.
        published: by column and measure, as the paper prints it; None where it does not.
        against: label of the row that it is compared with; where empty, the plain row that differs least.
        primary: whether it was named before the runs were made: what it is compared by is corrected apart.
        seeds: most that its cells have; None for all.
    """

    options: Mapping[str, Any]
    label: str = ""
    ensemble: bool = False
    against: str = ""
    primary: bool = False
    seeds: int | None = Field(None, ge=1)
    published: Sequence[Sequence[str | None]] = ()


def with_family(label: str, *, is_primary: bool) -> str:
    """Return the label of what is compared, marked where it was named beforehand."""
    return f"{label} (primary)" if is_primary else label


@dataclass(frozen=True)
class Cell:
    """Where a row meets one of the numbers below a column.

    Attributes:
        row: the row, with its label.
        column: the column.
        measure: the number.
        experiments: the runs that measure it, one a seed; one alone where the command has no seeds.
        planned: how many of them there are by the table's own number of seeds, or those that are asked for if more.
        published: as the paper prints it, in the unit of the measure; None where it is not published.
        baseline: label of the row of plain attention that it is compared with, or None.
        state: done when all its runs are, failed when one of them is, unfit where its model is not for its task.
        reason: why it failed or does not fit, one line.
        values: what each run measured, None where it is not finished: fractions for percentages, counts for millions,
            else as the unit says.
        comparison: with the baseline; None where either has no value.
        is_one_answer: whether the model of a run predicts the same for every row: its number is that of no model.
        members: how many finished runs an ensemble is the mean of; 0 of another row.
    """

    row: Row
    column: Column
    measure: Measure
    experiments: Sequence[Experiment]
    planned: int = 0
    published: str | None = None
    baseline: str | None = None
    state: State = "missing"
    reason: str | None = None
    values: Sequence[float | None] = ()
    comparison: "Comparison | None" = None
    is_one_answer: bool = False
    members: int = 0

    @property
    def is_primary(self) -> bool:
        """Whether its comparison was named before the runs were made."""
        return self.row.primary and self.measure.primary

    @property
    def draws_own_rows(self) -> bool:
        """Whether each of its runs was trained on rows that its seed drew: examples say nothing of other draws."""
        return self.experiments[0].options.get("take") == BY_SEED

    @property
    def path(self) -> list[str]:
        """The keys that lead to the number in what a run measured."""
        return [key.format(**self.row.options) for key in self.measure.path.split(".")]

    @property
    def runs(self) -> list[Experiment]:
        """Its runs, and after them those on whose results they work."""
        return [*self.experiments, *(run.needs for run in self.experiments if run.needs is not None)]

    @property
    def digests(self) -> list[str]:
        """Those of `runs`, each once."""
        return list(dict.fromkeys(run.digest for run in self.runs))

    @property
    def numbers(self) -> list[float]:
        """The values of the finished runs."""
        return [value for value in self.values if value is not None]

    @property
    def spread(self) -> SeedSpread | None:
        """Mean, standard deviation and number of the values; None where there are none."""
        return over_seeds(self.numbers) if self.numbers else None

    @property
    def unit(self) -> Unit:
        """How its numbers are printed."""
        return UNITS[self.measure.unit]

    @property
    def heading(self) -> str:
        """Column, measure and unit."""
        return f"{self.column.label} {self.measure.heading}".strip()

    @property
    def verdict(self) -> Verdict | None:
        """Whether it is better or worse than plain attention; None unless the difference survives correction."""
        return verdict_of(self.comparison, self.measure.is_better)

    @property
    def failure(self) -> str | None:
        """Why it failed, in one line; None where it did not."""
        return (self.reason or NO_REASON) if self.state == "failed" else None

    @property
    def number(self) -> str | None:
        """Mean ± standard deviation without the unit; None where there are no values."""
        return None if self.spread is None else with_deviation(self.spread, self.unit.form, self.unit.factor)

    @property
    def compared_label(self) -> str:
        """Its row, and with which it is compared where the table names that."""
        return f"{self.row.label}, to {self.baseline}" if self.row.against else self.row.label

    def text(self, failures: Mapping[str, int], *, counts: bool = False) -> str:
        """Return what it says: its number, `failed [1]` or `–`, and how many runs if not all finished.

        Args:
            failures: the number of each reason.
            counts: whether to say of how many seeds it is in any case.
        """
        reference = "" if self.failure is None else f" [{failures[self.failure]}]"
        if self.number is None:
            return f"failed{reference}" if reference else NOT_APPLICABLE if self.state == "unfit" else NOTHING
        mark = WORSE_MARK if self.verdict == "worse" else ""
        is_done, planned = self.state == "done", len(self.experiments)
        seeds = f", {counted(planned, 'seed')}" if counts and not self.row.ensemble else ""
        finished = seeds if is_done else f", {self.members or len(self.numbers)} of {planned}"
        mark += ONE_ANSWER_MARK if self.is_one_answer else ""
        return f"{self.number}{mark}{finished}{reference}"

    def difference_texts(self) -> list[str]:
        """Return the comparison in words, one for each of `DIFFERENCE_HEADINGS`."""
        assert self.comparison is not None
        label = with_family(self.compared_label, is_primary=self.is_primary)
        return difference_texts(label, self.heading, self.comparison, self.unit)

    def summary(self) -> str:
        """Return what it is, in lines that need nothing of the table around it."""
        lines = [f"{self.row.label}, {self.heading}"]
        if self.number is not None:
            lines.append(f"{self.number} {self.unit.symbol}".strip() + f", {counted(len(self.numbers), 'seed')}")
        if self.state != "done":
            unfinished = f"not applicable: {self.reason}" if self.state == "unfit" else "not all of its runs are done"
            lines.append(f"failed: {self.failure}" if self.failure else unfinished)
        if self.is_one_answer:
            lines.append("a model of it predicts the same for every row")
        if self.comparison is not None:
            _, _, difference, interval, detectable, p_value, corrected, _, test = self.difference_texts()
            difference = f"difference to {self.baseline} {difference}"
            lines.append(f"{difference}, 95 % interval {interval}, detectable {detectable}")
            lines.append(f"p {p_value}, corrected {corrected} ({test})")
        if self.published is not None:
            lines.append(f"published, of another run: {self.published}")
        return "\n".join(lines)
