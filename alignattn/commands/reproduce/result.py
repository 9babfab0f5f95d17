"""A table with its numbers: read from the runs in a results folder, and compared with plain attention."""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any

from alignattn.commands.reproduce.cell import Cell
from alignattn.commands.reproduce.experiment import State
from alignattn.commands.reproduce.fillers import filler_of
from alignattn.commands.reproduce.folder import RunFolder
from alignattn.commands.reproduce.legend import contamination, measured_source
from alignattn.commands.reproduce.pictures import pictures_of
from alignattn.commands.reproduce.table import Table
from alignattn.evaluation.statistics.comparison import Comparison, compare, compare_early, compare_unpaired, correct
from alignattn.evaluation.statistics.example_scores import ExampleScores
from alignattn.evaluation.statistics.paired_tests import PairedScores, UnpairedScores
from alignattn.finetuning.examples import NotKeptError
from alignattn.finetuning.filler import RunReport
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.progress import counted
from alignattn.utils.publishing import publishable_text, short_path

WORST_FIRST: Sequence[State] = ("failed", "missing", "unfit")
"""States of runs that are not done, in the order in which one of them is that of a cell."""

UNREADABLE = (AlignAttnError, OSError, ValueError, LookupError, TypeError)
"""What reading a damaged file raises."""

ONE_OF_ALL_SEEDS = "an ensemble is one model of all seeds"
"""Why no seed pairs it with a run."""


@dataclass(frozen=True, kw_only=True)
class TableRun(RunReport):
    """What a table tells of one of its runs: what it measured and how, and what it is.

    Attributes:
        digest: names it, the hash of its options.
        title: what it is of, such as "mrpc, aa-ct, seed 1".
        state: whether it is there.
        reason: why it failed, one line.
        folder: where it is.
        command: that makes it again, ready to be pasted into a shell.
        pictures: SVG documents by title: training curves, reliability diagrams.
    """

    digest: str
    title: str
    state: State
    folder: str
    command: str
    reason: str | None = None
    pictures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TableResult:
    """A table of a paper, measured.

    Attributes:
        name: such as `table1`; its files are named by it.
        title: above the table.
        published_source: what the published numbers are of, such as "Zhang et al. 2021, table 1; ALBERT-base, mean of
            5 runs"; None where nothing is published.
        measured_source: what the measured ones are of: the model, the seeds, the limits.
        notes: sentences below the table: what is stand-in data, how rows were compared, what was chosen here.
        cells: row by row.
        runs: by digest.
        named: how many comparisons were named before the runs were made; of a narrowed table it shows some.
    """

    name: str
    title: str
    published_source: str | None
    measured_source: str
    notes: Sequence[str]
    cells: Sequence[Cell]
    runs: Mapping[str, TableRun]
    named: int = 0

    @property
    def rows(self) -> list[list[Cell]]:
        """The cells of each row, from left to right."""
        return [list(row) for _, row in groupby(self.cells, lambda cell: cell.row.label)]

    @property
    def compared(self) -> list[Cell]:
        """The cells that were compared with plain attention."""
        return [cell for cell in self.cells if cell.comparison is not None]

    @property
    def primary(self) -> list[Cell]:
        """Those of them that were named before the runs were made."""
        return [cell for cell in self.compared if cell.is_primary]

    @cached_property
    def failures(self) -> Mapping[str, int]:
        """The reasons of failed cells, numbered from 1 in the order of the table."""
        reasons = dict.fromkeys(cell.failure for cell in self.cells if cell.failure is not None)
        return {reason: number for number, reason in enumerate(reasons, start=1)}

    @property
    def has_uneven_seeds(self) -> bool:
        """Whether some of its cells are of more seeds than others."""
        return len({len(cell.experiments) for cell in self.cells if not cell.row.ensemble}) > 1

    def text_of(self, cell: Cell) -> str:
        """Return what one of its cells says."""
        return cell.text(self.failures, counts=self.has_uneven_seeds)


def read_table(table: Table, cells: Sequence[Cell], folders: Mapping[str, RunFolder]) -> TableResult:
    """Return a table with what its runs measured.

    Args:
        table: the table.
        cells: its cells.
        folders: of their runs, by digest, as `folders_of` makes them.
    """
    read = counted(folders.items(), "read", len(folders), "run")
    runs = {digest: _read_run(folder) for digest, folder in read}
    results = next(iter(folders.values())).results
    done = {digest for digest, run in runs.items() if run.state == "done"}
    compared, problems = _compare_all([_with_numbers(cell, runs, folders) for cell in cells], folders, table.named)
    return TableResult(
        name=table.name,
        title=table.title,
        published_source=table.published_source,
        measured_source=_without_paths(measured_source(table, cells, done), results),
        notes=[*table.notes, *contamination(table), *(_without_paths(problem, results) for problem in problems)],
        cells=compared,
        runs=runs,
        named=table.named,
    )


def _read_run(folder: RunFolder) -> TableRun:
    """A run whose result cannot be read has failed."""
    status, report = folder.status(), RunReport()
    state, reason = status.state, status.reason
    if state == "done":
        try:
            report = folder.filler.report(folder.output)
        except UNREADABLE as error:
            state, reason = "failed", f"what it left cannot be read: {one_line(error)}"

    def published(text: str) -> str:
        return _without_paths(text, folder.results, folder.values)

    took = {} if math.isnan(folder.seconds) else {"run took": f"{folder.seconds:.0f} s, start and evaluation included"}
    return TableRun(
        digest=folder.experiment.digest,
        title=folder.experiment.title,
        state=state,
        reason=None if reason is None else published(reason),
        folder=published(str(folder.path)),
        command=published(folder.command_line),
        pictures=pictures_of(report, folder.path) if state == "done" else {},
        **vars(report)
        | {
            "facts": {name: published(fact) for name, fact in {**report.facts, **took}.items()},
            "config": published(report.config),
        },
    )


def _without_paths(text: str, results: Path, options: Mapping[str, Any] = MappingProxyType({})) -> str:
    """A text without the paths of this machine: of the results' folder its name stays, of others the last two parts."""
    text = text.replace(str(results.absolute()), results.absolute().name)
    for path in filter(os.path.isabs, (value for value in options.values() if isinstance(value, str))):
        text = text.replace(path, short_path(path))
    return publishable_text(text)


def _with_numbers(cell: Cell, runs: Mapping[str, TableRun], folders: Mapping[str, RunFolder]) -> Cell:
    own = [runs[experiment.digest] for experiment in cell.experiments]
    states = {run.state for run in own}
    state: State = next((one for one in WORST_FIRST if one in states), "done")
    reason = next((run.reason for run in own if run.state == state), None)
    try:
        values = [_number_at(run.numbers, cell.path) if run.state == "done" else None for run in own]
    except AlignAttnError as error:
        return replace(cell, state="failed", reason=str(error))
    if cell.row.ensemble:
        return _of_ensemble(replace(cell, state=state, reason=reason), runs, folders)
    is_one_answer = any(_is_one_answer(run.numbers, cell.path) for run in own if run.state == "done")
    return replace(cell, state=state, reason=reason, values=values, is_one_answer=is_one_answer)


def _of_ensemble(cell: Cell, runs: Mapping[str, TableRun], folders: Mapping[str, RunFolder]) -> Cell:
    """The cell of the mean of what its finished runs predicted: one number."""
    if reason := filler_of(cell.experiments[0].command).no_ensemble(cell.path):
        return replace(cell, state="unfit", reason=reason)
    members = [one.digest for one in cell.experiments if runs[one.digest].state == "done"]
    try:
        scores = _ensemble(cell, members, folders)
    except UNREADABLE as error:
        return replace(cell, state="failed", reason=one_line(error))
    if scores is None and cell.state == "done":
        return replace(cell, state="failed", reason=f"{'.'.join(cell.path)} of an ensemble is not kept")
    answers = [_is_one_answer(runs[digest].numbers, cell.path) for digest in members]
    is_one_answer = bool(answers) and all(answers)
    values = [None if scores is None else scores.value]
    return replace(cell, values=values, members=len(members), is_one_answer=is_one_answer)


def _ensemble(cell: Cell, digests: Sequence[str], folders: Mapping[str, RunFolder]) -> ExampleScores | None:
    found = [folders[digest] for digest in digests]
    return found[0].filler.ensemble([folder.output for folder in found], cell.path) if found else None


def _is_one_answer(numbers: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Whether a run says that it predicted the same for every row that a number is of."""
    answer = numbers.get("constant_prediction")
    return any(key in answer for key in path) if isinstance(answer, Mapping) else answer is not None


def _number_at(numbers: Mapping[str, Any], path: Sequence[str]) -> float:
    """Return the number that a path leads to."""
    found: Any = numbers
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            raise AlignAttnError(f"the run did not measure {'.'.join(path)}: {key!r} is not there")
        found = found[key]
    if not isinstance(found, int | float):
        raise AlignAttnError(f"the run did not measure {'.'.join(path)}: there is {found!r}")
    return float(found)


def _compare_all(cells: Sequence[Cell], folders: Mapping[str, RunFolder], named: int) -> tuple[list[Cell], list[str]]:
    """The cells with their corrected comparisons, and why some could not be made.

    Where something was named beforehand, what is unfinished is not tested, and corrected for all that was planned.
    """
    rows = {label: list(row) for label, row in groupby(cells, lambda cell: cell.row.label)}
    width = len(next(iter(rows.values())))
    plain_cells = [
        rows[cell.baseline][place % width] if cell.baseline in rows else None for place, cell in enumerate(cells)
    ]
    family_sizes = Counter(cell.is_primary for cell, plain in zip(cells, plain_cells, strict=True) if plain is not None)
    if named:
        family_sizes[True] = named
    comparisons: list[Comparison | None] = []
    problems = []
    for cell, plain in zip(cells, plain_cells, strict=True):
        comparison = None
        try:
            if plain is not None:
                is_early = named > 0 and not _is_whole(cell, plain)
                comparison = _compare(cell, plain, folders, family_sizes[cell.is_primary], is_early=is_early)
        except UNREADABLE as error:
            problems.append(f"{cell.row.label}, {cell.column.label}, is not compared: {one_line(error)}")
        comparisons.append(comparison)
    # What was named beforehand is a family of its own.
    families = [
        correct(
            [one if cell.is_primary is own else None for cell, one in zip(cells, comparisons, strict=True)],
            family_sizes[own] if named else None,
        )
        for own in (True, False)
    ]
    corrected = [first or second for first, second in zip(*families, strict=True)]
    return [replace(cell, comparison=one) for cell, one in zip(cells, corrected, strict=True)], problems


def _compare(
    cell: Cell, plain: Cell, folders: Mapping[str, RunFolder], family_size: int, *, is_early: bool
) -> Comparison | None:
    """The comparison of the seeds that both cells have finished; None where there are none, or one run fills both.

    What is early is not tested, and of an ensemble nothing is told then.
    """
    if cell.row.ensemble:
        return None if is_early else _compare_ensemble(cell, _of_members(plain, cell), folders)
    values = _common_values(cell, plain)
    if not values or cell.experiments == plain.experiments:
        return None
    measured, baseline = zip(*values.values(), strict=True)
    if is_early:
        return compare_early(measured, baseline, planned=_planned(cell, plain))
    scores = None if cell.draws_own_rows else partial(_paired_scores, cell, plain, folders, list(values))
    return compare(measured, baseline, scores, family_size=family_size)


def _common_values(cell: Cell, plain: Cell) -> dict[int, tuple[float, float]]:
    """What both measured, by the place of the seed."""
    return {
        seed: (measured, baseline)
        for seed, (measured, baseline) in enumerate(zip(cell.values, plain.values, strict=False))
        if measured is not None and baseline is not None
    }


def _is_whole(cell: Cell, plain: Cell) -> bool:
    """Whether all runs of a comparison are there."""
    if cell.row.ensemble:
        return cell.members == cell.planned and None not in _of_members(plain, cell).values
    return len(_common_values(cell, plain)) == _planned(cell, plain)


def _planned(cell: Cell, plain: Cell) -> int:
    """How many seeds pair both cells once all runs are there."""
    return min(cell.planned, plain.planned)


def _of_members(plain: Cell, ensemble: Cell) -> Cell:
    """What an ensemble is compared with, of the seeds of its members alone: others are no part of its gain."""
    count = len(ensemble.experiments)
    return replace(plain, experiments=plain.experiments[:count], values=plain.values[:count])


def _compare_ensemble(cell: Cell, plain: Cell, folders: Mapping[str, RunFolder]) -> Comparison | None:
    """One model of all seeds against those of each: over the examples, which is all that they share."""
    finished = [one.digest for one, value in zip(plain.experiments, plain.values, strict=True) if value is not None]
    own = [one.digest for one in cell.experiments if folders[one.digest].status().state == "done"]
    if not cell.numbers or not finished:
        return None

    def scores() -> UnpairedScores | None:
        whole = _ensemble(cell, own, folders)
        each = [_examples(folders[digest], plain.path) for digest in finished]
        known = [one for one in each if one is not None]
        return ([whole], known) if whole is not None and len(known) == len(each) else None

    return compare_unpaired(cell.numbers, plain.numbers, scores, reason=ONE_OF_ALL_SEEDS)


def _paired_scores(
    cell: Cell, plain: Cell, folders: Mapping[str, RunFolder], seeds: Sequence[int]
) -> PairedScores | None:
    pairs = []
    for seed in seeds:
        runs = ((folders[one.experiments[seed].digest], one.path) for one in (cell, plain))
        measured, baseline = (_examples(folder, path) for folder, path in runs)
        if measured is None or baseline is None:
            return None
        pairs.append((measured, baseline))
    return pairs


def _examples(folder: RunFolder, path: Sequence[str]) -> ExampleScores | None:
    try:
        return folder.filler.examples(folder.output, path)
    except NotKeptError:
        return None
    except UNREADABLE as error:
        raise AlignAttnError(f"what {folder.output} holds cannot be read: {one_line(error)}; move it away") from error
