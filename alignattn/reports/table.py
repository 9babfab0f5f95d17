"""A table of numbers over seeds: its cells, their paired comparisons with a baseline, and the legend of its marks."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Literal

import pandas as pd
from markupsafe import Markup

from alignattn.evaluation.estimates import over_seeds, with_deviation
from alignattn.evaluation.statistics.comparison import (
    SIGNIFICANCE_LEVEL,
    Comparison,
    compare,
    compare_ensemble,
    correct,
)
from alignattn.evaluation.statistics.example_scores import ExampleScores
from alignattn.reports.measures import UNITS, Measure, State, Unit
from alignattn.utils.errors import AlignAttnError, listing, one_line, plural

NOTHING, NOT_APPLICABLE, WORSE_MARK, CONSTANT_MARK = "–", "n/a", "†", "°"

UNREADABLE = (AlignAttnError, OSError, ValueError, LookupError, TypeError)
"""Errors of reading a damaged file."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of a table.

    Attributes:
        digest: its name within the table, such as the hash of its options.
        title: a title such as "mrpc, aa-ct, seed 1".
        results: the content of its results file; empty unless it is done.
        state: whether it is finished.
        reason: why it failed, one line.
        folder: its location, for readers of the table.
        command: the command line that repeats it; empty if unknown.
        facts: seed, versions, hardware and runtime, by name.
        config: its options as YAML; empty if the command writes none.
        charts: `<svg>` elements by caption.
    """

    digest: str
    title: str
    results: Mapping[str, Any] = field(default_factory=dict)
    state: State = "done"
    reason: str | None = None
    folder: str = ""
    command: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    charts: Mapping[str, Markup] = field(default_factory=dict)

    def number(self, path: Sequence[str]) -> float:
        """Return the number at a path of keys; raises `AlignAttnError` if there is none."""
        found: Any = self.results
        for key in path:
            if not isinstance(found, Mapping) or key not in found:
                raise AlignAttnError(f"the run did not measure {'.'.join(path)}: {key!r} is not there")
            found = found[key]
        if found is None:
            raise AlignAttnError(
                f"{self.title}: {'.'.join(path)} is undefined, as a correlation of equal predictions is"
            )
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            raise AlignAttnError(f"the run did not measure {'.'.join(path)}: there is {found!r}")
        return float(found)

    def is_constant(self, path: Sequence[str]) -> bool:
        """Whether the prediction is constant over the rows behind the number at a path."""
        predicted = self.results.get("constant_prediction")
        return any(key in predicted for key in path) if isinstance(predicted, Mapping) else predicted is not None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a table: a row and a measure.

    Attributes:
        row: label of the row.
        column: label of the column.
        measure: the measure of its number.
        runs: its runs, by seed; a single run if the command has no seeds; none if only the values are known.
        planned: number of runs that the study plans, at least the number of `runs`.
        published: the published number as the paper prints it, in the unit of the measure; None without one.
        baseline: label of the row that it is compared with, or None.
        names_baseline: whether the table's file sets this baseline; labels of the comparison then include it.
        is_primary: whether its comparison was named before the runs were made.
        is_ensemble: whether its number is that of an ensemble, the mean of its runs' predictions.
        samples_by_seed: whether each seed draws its training rows; a test over examples then says nothing about other
            draws.
        digests: the runs that the page shows for it: its own, and those whose results they need.
        state: `done` if all its runs are.
        reason: why it failed or is unfit, one line.
        values: the number of each finished run, by seed: fractions for percentages, counts for millions.
        is_constant: whether the model of a run predicts the same for every row.
        examples: reads the row scores behind the number of a seed, or of an ensemble's member; None if the number is
            not a statistic of rows, or they are not kept.
        ensemble: the row scores of an ensemble.
        share_rows: the number of rows that its numbers are shares of, as accuracies are; None for other measures.
        comparison: the comparison with the baseline; None if there is none.
    """

    row: str
    column: str
    measure: Measure
    runs: Mapping[Any, Run] = field(default_factory=dict)
    planned: int = 0
    published: str | None = None
    baseline: str | None = None
    names_baseline: bool = False
    is_primary: bool = False
    is_ensemble: bool = False
    samples_by_seed: bool = False
    digests: Sequence[str] = ()
    state: State = "missing"
    reason: str | None = None
    values: Mapping[Any, float] = field(default_factory=dict)
    is_constant: bool = False
    examples: Callable[[Any], ExampleScores | None] = lambda seed: None
    ensemble: ExampleScores | None = None
    share_rows: int | None = None
    comparison: Comparison | None = None

    @property
    def finished(self) -> int:
        """The number of its runs that are done."""
        return sum(run.state == "done" for run in self.runs.values())

    @property
    def numbers(self) -> list[float]:
        """The values of the finished runs."""
        return list(self.values.values())

    @property
    def unit(self) -> Unit:
        """How its numbers are printed."""
        return UNITS[self.measure.unit]

    @property
    def heading(self) -> str:
        """Column, measure and unit."""
        return f"{self.column} {self.measure.heading}".strip()

    @property
    def verdict(self) -> Literal["better", "worse"] | None:
        """Whether it is better or worse than the baseline; None if the difference does not survive correction."""
        if self.comparison is None or self.measure.is_better is None or not self.comparison.survives:
            return None
        return "better" if (self.comparison.difference > 0) == (self.measure.is_better == "higher") else "worse"

    @property
    def failure(self) -> str | None:
        """Why it failed, in one line; None if it did not."""
        return (self.reason or "no reason is recorded") if self.state == "failed" else None

    @property
    def number(self) -> str | None:
        """Mean ± standard deviation without the unit; None without values."""
        return with_deviation(over_seeds(self.numbers), self.unit.form, self.unit.factor) if self.values else None

    @property
    def compared_label(self) -> str:
        """The label of its row, with the baseline if the table's file sets one."""
        return f"{self.row}, to {self.baseline}" if self.names_baseline else self.row

    def difference_texts(self) -> dict[str, str]:
        """Return the comparison as texts by their headings.

        `detectable` is the difference that the study detects at 0.05, after correction, with a power of 80 %.
        """
        assert self.comparison is not None
        unit, compared = self.unit, self.comparison
        interval, detectable = compared.interval, compared.detectable
        p_values = [
            NOTHING if p_value is None else "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"
            for p_value in (compared.p_value, compared.corrected_p_value)
        ]
        return {
            "row": f"{self.compared_label} (primary)" if self.is_primary else self.compared_label,
            "column": self.heading,
            "difference": f"{unit.difference(compared.difference)} {unit.difference_symbol}".strip(),
            "95 % interval": f"[{unit.difference(interval.low)}, {unit.difference(interval.high)}]"
            if interval
            else NOTHING,
            "detectable": NOTHING if detectable is None else unit.form.format(unit.factor * detectable),
            "p": p_values[0],
            "corrected p": p_values[1],
            "seeds": str(compared.seeds),
            "test": compared.test,
        }

    def summary(self) -> str:
        """Return a description in several lines."""
        lines = [f"{self.row}, {self.heading}"]
        if self.number is not None:
            lines.append(f"{self.number} {self.unit.symbol}".strip() + f", {plural(len(self.values), 'seed')}")
        if self.state != "done":
            unfinished = f"not applicable: {self.reason}" if self.state == "unfit" else "not all of its runs are done"
            lines.append(f"failed: {self.failure}" if self.failure else unfinished)
        if self.is_constant:
            lines.append("one of its models predicts the same for every row")
        if self.comparison is not None:
            texts = self.difference_texts()
            lines.append(
                f"difference to {self.baseline} {texts['difference']}, 95 % interval {texts['95 % interval']}, "
                f"detectable {texts['detectable']}"
            )
            lines.append(f"p {texts['p']}, corrected {texts['corrected p']} ({texts['test']})")
        if self.published is not None:
            lines.append(f"published: {self.published}")
        return "\n".join(lines)


def filled(cell: Cell, path: Sequence[str]) -> Cell:
    """Return a cell with the state of its runs and the numbers at a path of their results."""
    states = {run.state for run in cell.runs.values()}
    state: State = next((one for one in ("failed", "missing", "unfit") if one in states), "done")
    reason = next((run.reason for run in cell.runs.values() if run.state == state), None)
    done = {seed: run for seed, run in cell.runs.items() if run.state == "done"}
    try:
        values = {seed: run.number(path) for seed, run in done.items()}
    except AlignAttnError as error:
        return replace(cell, state="failed", reason=str(error))
    constant = any(run.is_constant(path) for run in done.values())
    return replace(cell, state=state, reason=reason, values=values, is_constant=constant)


def compare_cells(cells: Sequence[Cell], named: int = 0) -> tuple[list[Cell], list[str]]:
    """Return the cells with comparisons, corrected for their number, and lines on missing ones.

    The comparisons that were named before the runs were made form one family, all others another. If any were named,
    unfinished comparisons are left out, and the correction is for all planned comparisons.

    Args:
        cells: the cells, row by row; a cell's baseline is the cell at the same place of the baseline's row.
        named: number of comparisons that were named before the runs were made.
    """
    rows = {label: list(row) for label, row in groupby(cells, lambda cell: cell.row)}
    width = len(next(iter(rows.values())))
    pairs = [
        (cell, rows[cell.baseline][index % width] if cell.baseline in rows else None)
        for index, cell in enumerate(cells)
    ]
    family_sizes = Counter(cell.is_primary for cell, baseline in pairs if baseline is not None)
    if named:
        family_sizes[True] = named
    comparisons: list[Comparison | None] = []
    problems, unfinished = [], 0
    for cell, baseline in pairs:
        comparison = None
        if baseline is not None and cell.values and baseline.values:
            if named and not _is_complete(cell, baseline):
                unfinished += 1
            else:
                try:
                    comparison = _compare(cell, baseline, family_sizes[cell.is_primary])
                except UNREADABLE as error:
                    cell_title = ", ".join(filter(None, (cell.row, cell.column)))
                    problems.append(f"{cell_title}, is not compared: {one_line(error)}")
        comparisons.append(comparison)
    if unfinished:
        problems.append(
            f"{plural(unfinished, 'comparison')} will be made once all runs are finished: a test after each run would "
            "inflate false positives."
        )
    families = [
        correct(
            [
                comparison if cell.is_primary is is_primary else None
                for cell, comparison in zip(cells, comparisons, strict=True)
            ],
            family_sizes[is_primary] if named else None,
        )
        for is_primary in (True, False)
    ]
    corrected = [first or second for first, second in zip(*families, strict=True)]
    return [replace(cell, comparison=comparison) for cell, comparison in zip(cells, corrected, strict=True)], list(
        dict.fromkeys(problems)
    )


def _is_complete(cell: Cell, baseline: Cell) -> bool:
    """Whether all planned runs of a comparison are finished."""
    if cell.is_ensemble:
        return cell.finished == cell.planned and cell.runs.keys() & baseline.runs.keys() <= baseline.values.keys()
    return len(cell.values.keys() & baseline.values.keys()) == min(cell.planned, baseline.planned)


def _compare(cell: Cell, baseline: Cell, family_size: int) -> Comparison | None:
    """Compare over the seeds that both have finished; None if there is none yet, or if the same runs fill both.

    Raises:
        AlignAttnError: if there is no common seed, if all seeds repeat one pair, or the examples cannot be paired.
    """
    if cell.is_ensemble:
        members = [seed for seed in baseline.values if seed in cell.runs]
        if not members:
            return None
        member_scores = [scores for scores in map(baseline.examples, members) if scores is not None]
        ensemble_scores = cell.ensemble if len(member_scores) == len(members) else None
        return compare_ensemble(
            cell.numbers[0], [baseline.values[seed] for seed in members], ensemble_scores, member_scores
        )
    if cell.runs and [run.digest for run in cell.runs.values()] == [run.digest for run in baseline.runs.values()]:
        return None
    seeds = [seed for seed in baseline.values if seed in cell.values]
    if not seeds and cell.runs.keys() & baseline.runs.keys():
        return None
    if not seeds:
        raise AlignAttnError(f"no seed in common with {baseline.row}")
    if len(seeds) > 1 and all(side.is_constant and len({*side.numbers}) == 1 for side in (cell, baseline)):
        raise AlignAttnError("both predict the same for every row with all seeds, which is one pair of models")

    def paired_scores() -> list[tuple[ExampleScores, ExampleScores]] | None:
        by_seed = [(cell.examples(seed), baseline.examples(seed)) for seed in seeds]
        pairs = [
            (scores, baseline_scores)
            for scores, baseline_scores in by_seed
            if scores is not None and baseline_scores is not None
        ]
        return pairs if len(pairs) == len(by_seed) else None

    row_counts = {side.share_rows for side in (cell, baseline)}
    rows = row_counts.pop() if len(row_counts) == 1 else None
    # A share of other units than rows, such as words, is no multiple of 1 / rows.
    if rows and any(abs(rows * share - round(rows * share)) >= 1e-6 for share in (*cell.numbers, *baseline.numbers)):
        rows = None
    return compare(
        [cell.values[seed] for seed in seeds],
        [baseline.values[seed] for seed in seeds],
        None if cell.samples_by_seed else paired_scores,
        family_size=family_size,
        rows=rows,
    )


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A table of `compare` or `reproduce`.

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
    runs: Mapping[str, Run] = field(default_factory=dict)
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

    @cached_property
    def failures(self) -> Mapping[str, int]:
        """The reasons of failed cells, numbered from 1 in the order of the table."""
        reasons = dict.fromkeys(cell.failure for cell in self.cells if cell.failure is not None)
        return {reason: number for number, reason in enumerate(reasons, start=1)}

    @cached_property
    def has_uneven_seeds(self) -> bool:
        """Whether some of its cells have more seeds than others."""
        counts = {len(cell.runs or cell.values) for cell in self.cells if not cell.is_ensemble}
        return len(counts - {0}) > 1

    def text_of(self, cell: Cell) -> str:
        """Return a cell's number, `failed [1]` or `–`, and how many runs have finished if not all have."""
        reference = "" if cell.failure is None else f" [{self.failures[cell.failure]}]"
        if cell.number is None:
            return f"failed{reference}" if reference else NOT_APPLICABLE if cell.state == "unfit" else NOTHING
        mark = WORSE_MARK if cell.verdict == "worse" else ""
        mark += CONSTANT_MARK if cell.is_constant else ""
        planned = len(cell.runs or cell.values)
        if cell.state == "done":
            count = f", {plural(planned, 'seed')}" if self.has_uneven_seeds and not cell.is_ensemble else ""
        else:
            count = f", {cell.finished if cell.is_ensemble else len(cell.values)} of {planned}"
        return f"{cell.number}{mark}{count}{reference}"

    def frame(self) -> pd.DataFrame:
        """Return one row per cell.

        Numbers are not rounded, in the printed unit, which is in the column `unit`. `values` contains the values of the
        seeds, separated by blanks; `published` is text, as the paper prints it.
        """
        lines = []
        for cell in self.cells:
            factor, compared = cell.unit.factor, cell.comparison
            interval = None if compared is None else compared.interval
            spread = over_seeds(cell.numbers) if cell.values else {}
            family = None if compared is None or not self.named else "primary" if cell.is_primary else "exploratory"
            numbers: dict[str, float | None] = {
                "mean": spread.get("mean"),
                "standard_deviation": spread.get("standard_deviation"),
                "difference": None if compared is None else compared.difference,
                "difference_low": None if interval is None else interval.low,
                "difference_high": None if interval is None else interval.high,
                "detectable_difference": None if compared is None else compared.detectable,
            }
            lines.append(
                {
                    "row": cell.row,
                    "column": cell.column,
                    "measure": cell.measure.label,
                    "unit": cell.measure.unit,
                    "family": family,
                    "state": cell.state,
                    "reason": cell.reason,
                    "published": cell.published,
                    "seeds": len(cell.values),
                    "values": " ".join(str(factor * value) for value in cell.numbers),
                    "compared_with": compared and cell.baseline,
                    **{name: None if number is None else factor * number for name, number in numbers.items()},
                    "p_value": compared and compared.p_value,
                    "corrected_p_value": compared and compared.corrected_p_value,
                    "test": compared and compared.test,
                    "verdict": cell.verdict,
                    "runs": " ".join(cell.digests),
                }
            )
        columns = "row column measure unit family state reason published mean standard_deviation seeds values "
        columns += "compared_with difference difference_low difference_high detectable_difference p_value "
        columns += "corrected_p_value test verdict runs"
        return pd.DataFrame(lines, columns=columns.split()).astype({"seeds": "Int64"})

    def legend(self, better: str, published: str) -> list[str]:
        """Return sentences that explain the marks in the table.

        Args:
            better: how a better number is marked, such as "Bold".
            published: how a published number is marked, such as "In brackets".
        """
        cells, compared = self.cells, [cell.comparison for cell in self.cells if cell.comparison is not None]
        primary = [cell for cell in self.compared if cell.is_primary]
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
        if primary:
            named = dict.fromkeys(f"{cell.row} on {cell.heading}" for cell in primary)
            lines.append(
                f"Primary, named before the runs were made: {listing(list(named))}, of a family of "
                f"{plural(self.named, 'comparison')}; the other {len(compared) - len(primary)} are exploratory, and "
                "another family."
            )
        family = "its family" if primary else "this table"
        criterion = f"paired, p < {SIGNIFICANCE_LEVEL} after correction for all comparisons of {family}"
        baseline = self.baseline
        if {one.names_baseline for one in self.compared} == {True, False}:
            baseline += " (or the row that its difference is to)"
        if "better" in verdicts:
            lines.append(f"{better}: significantly better than {baseline} ({criterion}).")
        elif compared and all(one.p_value is None for one in compared):
            lines.append("No difference is tested: there are too few seeds, and no scores of examples.")
        elif compared:
            lines.append(f"No number is significantly better than that of {baseline} ({criterion}).")
        if "worse" in verdicts:
            lines.append(f"{WORSE_MARK}: significantly worse than {baseline} ({criterion}).")
        if any(cell.is_constant for cell in cells):
            lines.append(f"{CONSTANT_MARK}: of a model that predicts the same for every row.")
        if any(one.detectable for one in compared):
            lines.append(
                "Detectable: the difference that this study detects at 0.05, after correction, with a power of 80 %."
            )
        if verdicts & {"better", "worse"} and any(" examples" in one.test for one in compared):
            lines.append("A test over examples holds for the models of these seeds, not for other seeds.")
        if any(cell.values and cell.state != "done" for cell in cells):
            lines.append("“2 of 3”: over the finished runs.")
        unfit = dict.fromkeys(cell.reason for cell in cells if cell.state == "unfit")
        lines += [f"{NOT_APPLICABLE}: {reason}." for reason in unfit]
        if any(cell.state == "missing" and not cell.values for cell in cells):
            lines.append(f"{NOTHING}: not measured yet.")
        return lines
