"""The rows and columns of a table's file, and its planned cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from alignattn.commands.reproduce.experiment import Experiment
from alignattn.reports.measures import Definition, Measure
from alignattn.tasks.names import BY_SEED

COLUMN_OPTIONS = ("task", "pair")
"""Options that name a column; the first one given counts."""


class Column(Definition):
    """A column, such as a task.

    Attributes:
        label: the printed label.
        command: the command whose runs fill it; the table's if empty.
        options: the options of its runs.
        measures: the numbers below it.
        seeds: the maximum number of runs per cell; None for all.
    """

    label: str
    command: str = ""
    options: Mapping[str, Any] = Field(default_factory=dict)
    measures: Sequence[Measure] = Field(min_length=1)
    seeds: int | None = Field(None, ge=1)

    @property
    def name(self) -> str:
        """The task or pair; the label without either."""
        return next((str(self.options[name]) for name in COLUMN_OPTIONS if name in self.options), self.label)


class Row(Definition):
    """A row.

    Attributes:
        options: the options of its runs.
        label: the printed label; if empty, the options that distinguish it from the others.
        ensemble: whether it is the deep ensemble of the runs with its options: the mean of their predictions.
        published: the published numbers by column and measure, as printed; None if not published.
        against: the label of its baseline row; if empty, the plain row that differs least.
        primary: whether it was named before the runs were made; primary comparisons are corrected separately.
        seeds: the maximum number of runs per cell; None for all.
    """

    options: Mapping[str, Any]
    label: str = ""
    ensemble: bool = False
    against: str = ""
    primary: bool = False
    seeds: int | None = Field(None, ge=1)
    published: Sequence[Sequence[str | None]] = ()


@dataclass(frozen=True)
class PlannedCell:
    """The plan of one cell: a row and one measure of a column.

    Attributes:
        row: the row, with its label.
        column: the column.
        measure: the number.
        experiments: the runs that measure it, one per seed.
        planned: the number of runs by the table's own number of seeds, or the requested number if it is larger.
        published: the published number, as printed; None if there is none.
        baseline: the label of the row that it is compared with, or None.
    """

    row: Row
    column: Column
    measure: Measure
    experiments: Sequence[Experiment]
    planned: int
    published: str | None
    baseline: str | None

    @property
    def is_primary(self) -> bool:
        """Whether its comparison was named before the runs were made."""
        return self.row.primary and self.measure.primary

    @property
    def samples_by_seed(self) -> bool:
        """Whether each run samples its training rows by its seed, so that its examples say nothing about others."""
        return self.experiments[0].all_options.get("take") == BY_SEED

    @property
    def digests(self) -> list[str]:
        """The digests of its runs and then of the runs that they depend on, without duplicates."""
        needed = [run.needs for run in self.experiments if run.needs is not None]
        return list(dict.fromkeys(run.digest for run in (*self.experiments, *needed)))
