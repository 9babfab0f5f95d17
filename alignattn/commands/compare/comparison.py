"""Runs side by side as numbers: each measure of each entry, and its paired difference to the baseline's."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from alignattn.commands.compare.entries import Entry, Run, differing_options
from alignattn.evaluation.statistics.comparison import (
    SIGNIFICANCE_LEVEL,
    Comparison,
    compare,
    compare_unpaired,
    correct,
)
from alignattn.evaluation.statistics.comparison_words import (
    ONE_ANSWER_MARK,
    UNITS,
    WORSE_MARK,
    Better,
    Unit,
    Verdict,
    counted,
    difference_texts,
    verdict_of,
)
from alignattn.evaluation.statistics.example_scores import ExampleScores
from alignattn.evaluation.statistics.paired_tests import PairedScores, UnpairedScores
from alignattn.evaluation.statistics.seeds import SeedSpread, over_seeds, with_deviation
from alignattn.finetuning.examples import metric_examples, read_split
from alignattn.models.packaged import seen_before
from alignattn.tasks.task import ERRORS, LESS_IS_BETTER
from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class Measure:
    """A metric of a split."""

    split: str
    metric: str

    @property
    def unit(self) -> Unit:
        """How it is printed."""
        return UNITS["error" if self.metric in ERRORS else "percent"]

    @property
    def is_better(self) -> Better:
        """Which values are better."""
        return "lower" if self.metric in LESS_IS_BETTER else "higher"

    @property
    def heading(self) -> str:
        """Split, metric and unit."""
        return f"{self.split} {self.metric}{f' ({self.unit.symbol})' if self.unit.symbol else ''}"

    def value(self, run: Run) -> float:
        """What a run measured."""
        value = run.result.metrics[self.split][self.metric]
        assert value is not None
        return value

    def is_defined(self, entries: Sequence[Entry]) -> bool:
        """Whether all runs measured a number."""
        runs = (run for entry in entries for run in entry.runs.values())
        return all(run.result.metrics[self.split][self.metric] is not None for run in runs)

    def examples(self, run: Run) -> ExampleScores | None:
        """What a run's value is made of, row by row; None where it is no statistic of rows."""
        return metric_examples(self.metric, read_split(run.folder, self.split))


@dataclass(frozen=True)
class Cell:
    """Where an entry meets a measure; the baseline has no comparison."""

    entry: Entry
    measure: Measure
    comparison: Comparison | None = None

    @property
    def spread(self) -> SeedSpread:
        """Mean, standard deviation and number of its runs' values."""
        return over_seeds([self.measure.value(run) for run in self.entry.runs.values()])

    @property
    def verdict(self) -> Verdict | None:
        """Whether it is better or worse than the baseline; None unless the difference survives correction."""
        return verdict_of(self.comparison, self.measure.is_better)

    @property
    def is_one_answer(self) -> bool:
        """Whether a model of it predicts the same for every row."""
        return any(self.measure.split in run.result.constant_prediction for run in self.entry.runs.values())

    @property
    def text(self) -> str:
        """Mean ± standard deviation, with its marks."""
        unit = self.measure.unit
        number = with_deviation(self.spread, unit.form, unit.factor)
        mark = WORSE_MARK if self.verdict == "worse" else ""
        return f"{number}{mark}{ONE_ANSWER_MARK if self.is_one_answer else ''}"

    @property
    def difference_texts(self) -> list[str]:
        """Its comparison in words."""
        assert self.comparison is not None
        return difference_texts(self.entry.name, self.measure.heading, self.comparison, self.measure.unit)


@dataclass(frozen=True)
class ComparedRuns:
    """Runs side by side.

    Attributes:
        entries: the baseline first.
        cells: a row an entry, a column a measure.
        undefined: measures that are undefined for some run, and have no column.
    """

    entries: Sequence[Entry]
    cells: Sequence[Sequence[Cell]]
    undefined: Sequence[Measure] = ()

    @property
    def title(self) -> str:
        """Above the table."""
        return f"{self.entries[0].first.evaluated_on}: {counted(len(self.entries), 'run')} side by side"

    @property
    def measures(self) -> list[Measure]:
        """The columns."""
        return [cell.measure for cell in self.cells[0]]

    @property
    def compared(self) -> list[Cell]:
        """The cells with a comparison, row by row."""
        return [cell for row in self.cells for cell in row if cell.comparison is not None]

    @property
    def settings(self) -> dict[str, str]:
        """What tells each entry from the others, in words."""
        return {
            name: ", ".join(f"{option} {_plain(value)}" for option, value in values.items()) or "the same options"
            for name, values in differing_options(self.entries).items()
        }

    def notes(self, better: str) -> list[str]:
        """Return sentences that explain the table.

        Args:
            better: how a difference for the better is marked, such as "Bold".
        """
        baseline, *others = self.entries
        verdicts = {cell.verdict for cell in self.compared}
        survives = (
            f"the paired difference survives correction for all comparisons of this table (p < {SIGNIFICANCE_LEVEL})"
        )
        lines = [f"Compared with {baseline.name}."]
        if any(len(entry.runs) > 1 for entry in self.entries):
            lines.append("Mean ± standard deviation (of a sample, n − 1) over the seeds of each.")
        if "better" in verdicts:
            lines.append(f"{better}: better than {baseline.name}, and {survives}.")
        else:
            lines.append(f"No number is better than that of {baseline.name} such that {survives}.")
        if "worse" in verdicts:
            lines.append(f"{WORSE_MARK}: worse than {baseline.name}, and {survives}.")
        lines += [
            f"{measure.split} {measure.metric} is undefined for a run, and left out." for measure in self.undefined
        ]
        if any(cell.is_one_answer for row in self.cells for cell in row):
            lines.append(
                f"{ONE_ANSWER_MARK}: of a model that predicts the same for every row, and tells nothing apart."
            )
        if any(" examples" in cell.comparison.test for cell in self.compared if cell.comparison is not None):
            lines.append("A test over examples holds for the models of these seeds, and says nothing of other seeds.")
        lines += [note for entry in others if (note := _pairing(baseline, entry))]
        lines += [
            f"{entry.name}: {', '.join(folder.name for folder in entry.unfinished)} not finished, and left out."
            for entry in self.entries
            if entry.unfinished
        ]
        runs = [run.result for entry in self.entries for run in entry.runs.values()]
        lines += seen_before((run.model for run in runs), (run.task for run in runs))
        return lines + _unlike(self.entries)


def compare_entries(entries: Sequence[Entry]) -> ComparedRuns:
    """Compare each entry with the first, measure by measure, and correct for how many comparisons there are."""
    baseline, *others = entries
    metrics = baseline.first.result.metrics
    measured = [Measure(split, metric) for split, by_metric in metrics.items() for metric in by_metric]
    measures = [measure for measure in measured if measure.is_defined(entries)]
    if not measures:
        raise AlignAttnError("each metric is undefined for one of these runs, so there is nothing to compare")
    cells = [Cell(entry, measure) for entry in others for measure in measures]
    compared = correct([_compare(cell, baseline, len(cells)) for cell in cells])
    made = [replace(cell, comparison=comparison) for cell, comparison in zip(cells, compared, strict=True)]
    rows = [made[start : start + len(measures)] for start in range(0, len(made), len(measures))]
    undefined = [measure for measure in measured if measure not in measures]
    return ComparedRuns(entries, [[Cell(baseline, measure) for measure in measures], *rows], undefined)


def _compare(cell: Cell, baseline: Entry, family_size: int) -> Comparison:
    """By seed where there are seeds in common, and else by examples."""
    measure = cell.measure
    shared = _shared_seeds(baseline, cell.entry)
    systems = [
        [entry.runs[seed] for seed in shared] if shared else list(entry.runs.values())
        for entry in (cell.entry, baseline)
    ]
    values, baseline_values = ([measure.value(run) for run in runs] for runs in systems)
    if shared:
        scores = partial(_paired_scores, measure, *systems)
        return compare(values, baseline_values, scores, family_size=family_size)
    return compare_unpaired(values, baseline_values, partial(_scores, measure, *systems))


def _scores(measure: Measure, runs: Sequence[Run], baseline_runs: Sequence[Run]) -> UnpairedScores | None:
    measured, baseline = ([measure.examples(run) for run in system] for system in (runs, baseline_runs))
    known = [[one for one in system if one is not None] for system in (measured, baseline)]
    return (known[0], known[1]) if [*map(len, known)] == [len(runs), len(baseline_runs)] else None


def _paired_scores(measure: Measure, runs: Sequence[Run], baseline_runs: Sequence[Run]) -> PairedScores | None:
    systems = _scores(measure, runs, baseline_runs)
    return None if systems is None else list(zip(*systems, strict=True))


def _shared_seeds(baseline: Entry, entry: Entry) -> list[int]:
    return [seed for seed in baseline.seeds if seed in entry.runs]


def _pairing(baseline: Entry, entry: Entry) -> str | None:
    """Which runs stand against which, where that is not every seed against itself."""
    shared = _shared_seeds(baseline, entry)
    if set(baseline.seeds) == set(entry.seeds):
        return None
    if not shared:
        return f"{entry.name} and {baseline.name} have no seed in common: they are compared by examples."
    seeds = ", ".join(map(str, shared))
    return f"{entry.name}: the difference is over the seeds that {baseline.name} has too ({seeds}), not all of them."


def _unlike(entries: Sequence[Entry]) -> list[str]:
    """What differs between runs that no option says."""
    lines = []
    facts = {
        "trained on": [f"{entry.first.result.train_rows} rows" for entry in entries],
        "made on": [entry.first.result.device for entry in entries],
        "made with": [
            ", ".join(f"{name} {number}" for name, number in entry.first.result.versions.items()) for entry in entries
        ],
    }
    for what, by_entry in facts.items():
        if len(set(by_entry)) > 1:
            told = "; ".join(f"{entry.name}: {fact}" for entry, fact in zip(entries, by_entry, strict=True))
            lines.append(f"Not all {what} the same: {told}.")
    return lines


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
