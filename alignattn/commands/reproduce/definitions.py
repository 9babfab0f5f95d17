"""The rows and columns of a table's file, and its planned cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, model_validator

from alignattn.commands.reproduce.experiment import Experiment
from alignattn.reports.measures import Definition, Measure
from alignattn.tasks.task import BY_SEED

COLUMN_OPTIONS = ("task", "pair")
"""Options that name a column; the first that it has."""


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
        run: a user's own program: the words of a command, or a function as FILE.py:NAME or MODULE:NAME; where empty,
            the column's command runs.
        label: as printed; where empty, the options that tell it from the others.
        ensemble: whether it is the deep ensemble of the runs of its options: the mean of what they predicted.
        published: by column and measure, as the paper prints it; None where it does not.
        against: label of the row that it is compared with; where empty, the plain row that differs least.
        primary: whether it was named before the runs were made: what it is compared by is corrected apart.
        seeds: most that its cells have; None for all.
    """

    options: Mapping[str, Any] = Field(default_factory=dict)
    run: str | Sequence[str | bool | int | float] = ()
    label: str = ""
    ensemble: bool = False
    against: str = ""
    primary: bool = False
    seeds: int | None = Field(None, ge=1)
    published: Sequence[Sequence[str | None]] = ()

    @model_validator(mode="before")
    @classmethod
    def _check(cls, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Say what a row lacks, and that a placeholder is quoted, which YAML reads as a mapping."""
        run = row.get("run")
        for word in run if isinstance(run, list) else ():
            if isinstance(word, dict):
                raise ValueError(f'write the placeholder in quotes: "{{{", ".join(map(str, word))}}}"')
        if "options" not in row and not run:
            raise ValueError("a row needs options, or the program that it runs")
        if run and not row.get("label"):
            raise ValueError("a row with run needs a label")
        return row


@dataclass(frozen=True)
class PlannedCell:
    """The plan of one cell: a row and one measure of a column.

    Attributes:
        row: the row, with its label.
        column: the column.
        measure: the number.
        experiments: the runs that measure it, one per seed; one alone where the command has no seeds.
        planned: how many of them there are by the table's own number of seeds, or those that are asked for if more.
        published: as the paper prints it; None where it is not published.
        baseline: label of the row that it is compared with, or None.
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
        """Whether each run samples its own training rows by its seed, so that examples say nothing of other samples."""
        return self.experiments[0].options.get("take") == BY_SEED

    @property
    def digests(self) -> list[str]:
        """Its runs and then the runs that they depend on, without duplicates."""
        needed = [run.needs for run in self.experiments if run.needs is not None]
        return list(dict.fromkeys(run.digest for run in (*self.experiments, *needed)))
