"""The cells of a table of runs: the measures of its runs, and the difference to the baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from alignattn.evaluation.statistics.comparison import (
    Comparison,
)
from alignattn.evaluation.statistics.example_scores import ExampleScores
from alignattn.evaluation.statistics.seeds import SeedSpread, over_seeds, with_deviation
from alignattn.reports.measures import UNITS, Measure, State, Unit, Verdict
from alignattn.reports.result_reader import UNREADABLE, NotKeptError, ResultReader, RunReport
from alignattn.utils.errors import AlignAttnError, one_line, plural

NOTHING = "–"
NOT_APPLICABLE = "n/a"
WORSE_MARK = "†"
CONSTANT_MARK = "°"
NO_REASON = "no reason is recorded"
MIN_P = 0.001
"""Smaller p-values are printed as `< 0.001`."""

DIFFERENCE_HEADINGS = (
    "row",
    "column",
    "difference",
    "95 % interval",
    "detectable",
    "p",
    "corrected p",
    "seeds",
    "test",
)
"""`detectable`: the difference that the study detects at 0.05, after correction, with a power of 80 %."""
DIFFERENCE_WORDS = ("row", "column", "test")
"""Headings of left-aligned columns."""

WORST_FIRST: Sequence[State] = ("failed", "missing", "unfit")
"""A cell has the first of these states that any of its runs has, else `done`."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of a table and its results.

    Attributes:
        digest: its name within the table, such as the hash of its options.
        title: a title such as "mrpc, aa-ct, seed 1".
        reader: the reader of its output.
        output: the file or folder that its command wrote.
        report: its results; empty unless it is done.
        state: whether it is finished.
        reason: why it failed, one line.
        folder: its location, for readers of the table.
        command: the command line that repeats it; empty if unknown.
        charts: `<svg>` elements by caption.
    """

    digest: str
    title: str
    reader: ResultReader
    output: Path
    report: RunReport = field(default_factory=RunReport)
    state: State = "done"
    reason: str | None = None
    folder: str = ""
    command: str = ""
    charts: Mapping[str, Markup] = field(default_factory=dict)

    def number(self, path: Sequence[str]) -> float:
        """Return the number at a path of keys; raises `AlignAttnError` if there is none."""
        found: Any = self.report.numbers
        for key in path:
            if not isinstance(found, Mapping) or key not in found:
                raise AlignAttnError(f"the run did not measure {'.'.join(path)}: {key!r} is not there")
            found = found[key]
        if found is None:
            raise AlignAttnError(
                f"{self.title}: {'.'.join(path)} is undefined, as a correlation of equal predictions is"
            )
        if not isinstance(found, int | float):
            raise AlignAttnError(f"the run did not measure {'.'.join(path)}: there is {found!r}")
        return float(found)

    def is_constant(self, path: Sequence[str]) -> bool:
        """Whether the prediction is constant over the rows behind the number at a path."""
        predicted = self.report.numbers.get("constant_prediction")
        return any(key in predicted for key in path) if isinstance(predicted, Mapping) else predicted is not None

    def examples(self, path: Sequence[str]) -> ExampleScores | None:
        """Return the row scores behind the number at a path; None if they are not kept."""
        try:
            return self.reader.examples(self.output, path)
        except NotKeptError:
            return None
        except UNREADABLE as error:
            raise AlignAttnError(f"{self.output} cannot be read: {one_line(error)}; move it away") from error


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a table: a row and a measure.

    Attributes:
        row: label of the row.
        column: label of the column.
        measure: the measure of its number.
        runs: its runs, by seed; a single run if the command has no seeds.
        path: the keys that lead to the number in the results of a run.
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
        comparison: the comparison with the baseline; None if either has no value.
    """

    row: str
    column: str
    measure: Measure
    runs: Mapping[int, Run]
    path: Sequence[str] = ()
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
    values: Mapping[int, float] = field(default_factory=dict)
    is_constant: bool = False
    comparison: Comparison | None = None

    @property
    def finished(self) -> list[Run]:
        """The runs that are done."""
        return [run for run in self.runs.values() if run.state == "done"]

    def ensemble_scores(self) -> ExampleScores | None:
        """Return the row scores of the mean of its runs' predictions; None if they are not kept."""
        members = self.finished
        return members[0].reader.ensemble([run.output for run in members], self.path) if members else None

    @property
    def numbers(self) -> list[float]:
        """The values of the finished runs."""
        return list(self.values.values())

    @property
    def share_rows(self) -> int | None:
        """How many rows its numbers are shares of, as accuracies are; None for other measures."""
        of_runs = {run.reader.share_rows(run.report.numbers, self.path) for run in self.finished}
        (rows,) = of_runs if len(of_runs) == 1 else (None,)
        # A share of other units than rows, such as words, is no multiple of 1 / rows.
        return rows if rows and all(abs(rows * one - round(rows * one)) < 1e-6 for one in self.numbers) else None

    @property
    def repeats_one_run(self) -> bool:
        """Whether all its seeds are known to predict the same, so that they count as one run."""
        digests = {run.report.predictions_digest for run in self.finished}
        return len(self.values) > 1 and digests != {""} and len(digests) == 1 == len(set(self.numbers))

    @property
    def spread(self) -> SeedSpread | None:
        """Mean, standard deviation and number of the values; None without values."""
        return over_seeds(self.numbers) if self.values else None

    @property
    def unit(self) -> Unit:
        """How its numbers are printed."""
        return UNITS[self.measure.unit]

    @property
    def heading(self) -> str:
        """Column, measure and unit."""
        return f"{self.column} {self.measure.heading}".strip()

    @property
    def verdict(self) -> Verdict | None:
        """Whether it is better or worse than the baseline; None if the difference does not survive correction."""
        if self.comparison is None or self.measure.is_better is None or not self.comparison.survives:
            return None
        return "better" if (self.comparison.difference > 0) == (self.measure.is_better == "higher") else "worse"

    @property
    def failure(self) -> str | None:
        """Why it failed, in one line; None if it did not."""
        return (self.reason or NO_REASON) if self.state == "failed" else None

    @property
    def number(self) -> str | None:
        """Mean ± standard deviation without the unit; None without values."""
        return None if self.spread is None else with_deviation(self.spread, self.unit.form, self.unit.factor)

    @property
    def compared_label(self) -> str:
        """The label of its row, with the baseline if the table's file sets one."""
        return f"{self.row}, to {self.baseline}" if self.names_baseline else self.row

    def text(self, failures: Mapping[str, int], *, counts: bool = False) -> str:
        """Return its text: its number, `failed [1]` or `–`, and how many runs have finished if not all have.

        Args:
            failures: the number of each reason.
            counts: whether to always add the number of seeds.
        """
        reference = "" if self.failure is None else f" [{failures[self.failure]}]"
        if self.number is None:
            return f"failed{reference}" if reference else NOT_APPLICABLE if self.state == "unfit" else NOTHING
        mark = WORSE_MARK if self.verdict == "worse" else ""
        mark += CONSTANT_MARK if self.is_constant else ""
        seeds = f", {plural(len(self.runs), 'seed')}" if counts and not self.is_ensemble else ""
        done = len(self.finished) if self.is_ensemble else len(self.values)
        return f"{self.number}{mark}{seeds if self.state == 'done' else f', {done} of {len(self.runs)}'}{reference}"

    def difference_texts(self) -> list[str]:
        """Return the comparison as texts, one for each of `DIFFERENCE_HEADINGS`."""
        assert self.comparison is not None
        unit, interval, detectable = self.unit, self.comparison.interval, self.comparison.detectable
        return [
            f"{self.compared_label} (primary)" if self.is_primary else self.compared_label,
            self.heading,
            f"{unit.difference(self.comparison.difference)} {unit.difference_symbol}".strip(),
            f"[{unit.difference(interval.low)}, {unit.difference(interval.high)}]" if interval else NOTHING,
            NOTHING if detectable is None else unit.form.format(unit.factor * detectable),
            _p_text(self.comparison.p_value),
            _p_text(self.comparison.corrected_p_value),
            str(self.comparison.seeds),
            self.comparison.test,
        ]

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
            _, _, difference, interval, detectable, p_value, corrected, _, test = self.difference_texts()
            lines.append(
                f"difference to {self.baseline} {difference}, 95 % interval {interval}, detectable {detectable}"
            )
            lines.append(f"p {p_value}, corrected {corrected} ({test})")
        if self.published is not None:
            lines.append(f"published: {self.published}")
        return "\n".join(lines)


def filled(cell: Cell) -> Cell:
    """Return a cell with the state and the results of its runs."""
    states = {run.state for run in cell.runs.values()}
    state: State = next((one for one in WORST_FIRST if one in states), "done")
    reason = next((run.reason for run in cell.runs.values() if run.state == state), None)
    cell = replace(cell, state=state, reason=reason)
    try:
        values = {seed: run.number(cell.path) for seed, run in cell.runs.items() if run.state == "done"}
    except AlignAttnError as error:
        return replace(cell, state="failed", reason=str(error))
    constant = [run.is_constant(cell.path) for run in cell.finished]
    if not cell.is_ensemble:
        return replace(cell, values=values, is_constant=any(constant))
    if reason := next(iter(cell.runs.values())).reader.reason_no_ensemble(cell.path):
        return replace(cell, state="unfit", reason=reason)
    try:
        scores = cell.ensemble_scores()
    except UNREADABLE as error:
        return replace(cell, state="failed", reason=one_line(error))
    if scores is None:
        reason = f"{'.'.join(cell.path)} is not kept for ensembles"
        return replace(cell, state="failed", reason=reason) if state == "done" else cell
    return replace(cell, values={0: scores.value}, is_constant=bool(constant) and all(constant))


def _p_text(p_value: float | None) -> str:
    if p_value is None:
        return NOTHING
    return f"< {MIN_P}" if p_value < MIN_P else f"{p_value:.3f}"
