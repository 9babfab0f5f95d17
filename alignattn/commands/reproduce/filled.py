"""A table with its numbers: what the renderers print, published beside measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from alignattn.statistics.comparison import Comparison
from alignattn.statistics.seeds import SeedSpread, over_seeds

State = Literal["done", "missing", "failed"]
"""Of a run or an entry; an entry is done when all its runs are, and failed when one of them is."""

Unit = Literal["percent", "seconds", "mebibytes", "millions", "ratio"]
"""What a number is printed in; `percent` of a fraction, `millions` of a count."""


@dataclass(frozen=True)
class Heading:
    """A row, a column, or one of the numbers below a column.

    Attributes:
        key: by which entries name it.
        label: as printed.
    """

    key: str
    label: str


@dataclass(frozen=True)
class MeasureHeading(Heading):
    """One of the numbers below a column.

    Attributes:
        unit: what it is printed in.
        is_better: which values are better; None where neither is.
    """

    unit: Unit = "percent"
    is_better: Literal["higher", "lower"] | None = "higher"


@dataclass(frozen=True)
class ColumnHeading(Heading):
    """A column, such as a task.

    Attributes:
        measures: the numbers below it, at least one.
    """

    measures: Sequence[MeasureHeading] = ()


@dataclass(frozen=True)
class Entry:
    """What stands where a row and a measure of a column meet.

    Attributes:
        row: key of the row.
        column: key of the column.
        measure: key of the measure.
        state: whether all its runs are there.
        reason: why it failed, one line.
        published: as the paper prints it, in the unit of the measure; None where it is not published.
        values: one a finished run, in the order of the seeds; fractions for percentages, counts for
            millions, else as the unit says.
        comparison: with the row of plain attention; None for that row, and where either has no value.
        runs: digests of its runs.
    """

    row: str
    column: str
    measure: str
    state: State
    reason: str | None = None
    published: str | None = None
    values: Sequence[float] = ()
    comparison: Comparison | None = None
    runs: Sequence[str] = ()

    @property
    def spread(self) -> SeedSpread | None:
        """Mean, standard deviation and number of the values; None where there are none."""
        return over_seeds(self.values) if self.values else None


@dataclass(frozen=True)
class RunDetails:
    """What the page tells of one run.

    Attributes:
        digest: names it, the hash of its options.
        title: what it is of, such as "mrpc, aa-ct, seed 1".
        state: whether it is there.
        reason: why it failed, one line.
        folder: where it is.
        command: that makes it again, ready to be pasted into a shell.
        facts: name and value of what else there is to know: seed, versions, hardware, runtime.
        config: its options, YAML.
        scores: what it measured, name and value.
        pictures: SVG documents by title: training curves, reliability diagrams.
    """

    digest: str
    title: str
    state: State
    folder: str
    command: str
    reason: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    scores: Mapping[str, str] = field(default_factory=dict)
    pictures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FilledTable:
    """A table of a paper, measured.

    Attributes:
        name: such as `table1`; its files are named by it.
        title: above the table.
        published_source: what the published numbers are of, such as "Zhang et al. 2021, table 1; ALBERT-base, mean of
            5 runs"; None where nothing is published.
        measured_source: what the measured ones are of: the model, the seeds, the limits.
        notes: sentences below the table: what is stand-in data, how rows were compared, what was chosen here.
        rows: in order.
        columns: in order.
        entries: of every row, column and measure, in that order.
        runs: by digest.
    """

    name: str
    title: str
    published_source: str | None
    measured_source: str
    notes: Sequence[str]
    rows: Sequence[Heading]
    columns: Sequence[ColumnHeading]
    entries: Sequence[Entry]
    runs: Mapping[str, RunDetails]
