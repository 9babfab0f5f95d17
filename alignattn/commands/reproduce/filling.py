"""From the runs in a results folder to a filled table: numbers, comparisons, and what the page tells of each run."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from alignattn.calibration.diagrams import reliability_svg
from alignattn.commands.reproduce.experiment import Experiment, model_label
from alignattn.commands.reproduce.filled import Entry, FilledTable, RunDetails
from alignattn.commands.reproduce.fillers import RunReport
from alignattn.commands.reproduce.folder import RunFolder, Status
from alignattn.commands.reproduce.table import MODEL, SEED, Cell, Measure, Table
from alignattn.runs.curves import training_curves_svg
from alignattn.statistics.comparison import Comparison, compare, correct
from alignattn.statistics.paired_tests import PairedScores
from alignattn.support.errors import AlignAttnError, one_line

Place = tuple[Cell, Measure]
"""Where a row meets one of the numbers below a column."""

UNREADABLE = (AlignAttnError, OSError, ValueError, LookupError, TypeError)
"""What reading a damaged file raises."""

CURVES_TITLE, RELIABILITY_TITLE = "Training curves", "Reliability diagram"


@dataclass(frozen=True)
class Runs:
    """The runs of a table, each read once.

    Attributes:
        folders: by digest.
        statuses: by digest.
        numbers: what the finished ones measured, by digest.
        reports: what is to be told of them, by digest.
    """

    folders: Mapping[str, RunFolder]
    statuses: Mapping[str, Status]
    numbers: Mapping[str, Mapping[str, Any]]
    reports: Mapping[str, RunReport]

    @classmethod
    def read(cls, results: Path, experiments: Sequence[Experiment]) -> "Runs":
        """Return the runs of a results folder; one whose result cannot be read has failed."""
        folders = {experiment.digest: RunFolder(results, experiment) for experiment in experiments}
        statuses: dict[str, Status] = {}
        numbers: dict[str, Mapping[str, Any]] = {}
        reports: dict[str, RunReport] = {}
        for digest, folder in folders.items():
            statuses[digest] = folder.status()
            if statuses[digest].state != "done":
                continue
            try:
                numbers[digest], reports[digest] = (
                    folder.command.numbers(folder.output),
                    folder.command.report(folder.output),
                )
            except UNREADABLE as error:
                statuses[digest] = Status("failed", f"what it left cannot be read: {one_line(error)}")
        return cls(folders, statuses, numbers, reports)


@dataclass(frozen=True)
class Found:
    """A measure of the runs of a cell.

    Attributes:
        values: of the finished ones, by their place among the cell's runs.
        reason: why there is none to be had of one that finished, one line.
    """

    values: Mapping[int, float]
    reason: str | None = None


def fill(table: Table, cells: Sequence[Cell], results: Path) -> FilledTable:
    """Return a table with what the runs in a results folder measured.

    Args:
        table: the table.
        cells: its cells.
        results: the folder.
    """
    experiments = {run.digest: run for cell in cells for run in _with_needed(cell.experiments)}
    runs = Runs.read(results, list(experiments.values()))
    places = [(cell, measure) for cell in cells for measure in cell.column.measures]
    found = [_find(cell, measure, runs) for cell, measure in places]
    comparisons, problems = _compare_all(table, places, found, runs)
    entries = [
        _entry(table, cell, measure, one, comparison, runs)
        for (cell, measure), one, comparison in zip(places, found, comparisons, strict=True)
    ]
    return FilledTable(
        name=table.name,
        title=table.title,
        published_source=table.published_source,
        measured_source=_measured_source(table, cells),
        notes=[*table.notes, *problems],
        rows=[table.heading(row) for row in table.rows],
        columns=[column.heading for column in table.columns],
        entries=entries,
        runs={digest: _details(folder, runs) for digest, folder in runs.folders.items()},
    )


def _find(cell: Cell, measure: Measure, runs: Runs) -> Found:
    path = _path(measure, cell.row.options)
    try:
        return Found(
            {
                place: _number_at(runs.numbers[experiment.digest], path)
                for place, experiment in enumerate(cell.experiments)
                if experiment.digest in runs.numbers
            }
        )
    except AlignAttnError as error:
        return Found({}, str(error))


def _number_at(numbers: Mapping[str, Any], path: Sequence[str]) -> float:
    """Return the number that a path leads to.

    Raises:
        AlignAttnError: if it leads nowhere.
    """
    found: Any = numbers
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            raise AlignAttnError(f"the run did not measure {'.'.join(path)}: {key!r} is not there")
        found = found[key]
    if not isinstance(found, int | float):
        raise AlignAttnError(f"the run did not measure {'.'.join(path)}: there is {found!r}")
    return float(found)


def _entry(
    table: Table, cell: Cell, measure: Measure, found: Found, comparison: Comparison | None, runs: Runs
) -> Entry:
    statuses = [runs.statuses[experiment.digest] for experiment in cell.experiments]
    reason = found.reason or next((status.reason for status in statuses if status.state == "failed"), None)
    is_done = all(status.state == "done" for status in statuses)
    return Entry(
        row=table.heading(cell.row).key,
        column=cell.column.name,
        measure=measure.heading.key,
        state="failed" if reason is not None else "done" if is_done else "missing",
        reason=reason,
        published=cell.published[cell.column.measures.index(measure)],
        values=list(found.values.values()),
        comparison=comparison,
        runs=list(dict.fromkeys(run.digest for run in _with_needed(cell.experiments))),
    )


def _compare_all(
    table: Table, places: Sequence[Place], found: Sequence[Found], runs: Runs
) -> tuple[list[Comparison | None], list[str]]:
    """The corrected comparison of each place with the same place of its plain row, and why some could not be made."""
    by_place = {
        (id(cell.row), cell.column.name, measure.heading.key): (cell, one)
        for (cell, measure), one in zip(places, found, strict=True)
    }
    pairs = [
        by_place.get((id(table.baseline(cell.row)), cell.column.name, measure.heading.key)) for cell, measure in places
    ]
    family_size = sum(pair is not None for pair in pairs)
    comparisons: list[Comparison | None] = []
    problems = []
    for (cell, measure), one, pair in zip(places, found, pairs, strict=True):
        comparison = None
        try:
            if pair is not None:
                comparison = _compare((cell, one), pair, measure, runs, family_size)
        except UNREADABLE as error:
            place = f"{table.heading(cell.row).label}, {cell.column.label}"
            problems.append(f"{place}, is not compared: {one_line(error)}")
        comparisons.append(comparison)
    return correct(comparisons), problems


def _compare(
    measured: tuple[Cell, Found], plain: tuple[Cell, Found], measure: Measure, runs: Runs, family_size: int
) -> Comparison | None:
    """The comparison of the seeds that both cells have finished; None where there are none, or one run fills both."""
    (cell, found), (plain_cell, plain_found) = measured, plain
    seeds = sorted(found.values.keys() & plain_found.values.keys())
    if not seeds or cell.experiments == plain_cell.experiments:
        return None
    return compare(
        [found.values[seed] for seed in seeds],
        [plain_found.values[seed] for seed in seeds],
        partial(_pairs, cell, plain_cell, measure, runs, seeds),
        family_size=family_size,
    )


def _pairs(cell: Cell, plain: Cell, measure: Measure, runs: Runs, seeds: Sequence[int]) -> PairedScores | None:
    pairs = []
    for seed in seeds:
        scores = []
        for one in (cell, plain):
            folder = runs.folders[one.experiments[seed].digest]
            scores.append(folder.command.examples(folder.output, _path(measure, one.row.options)))
        if scores[0] is None or scores[1] is None:
            return None
        pairs.append((scores[0], scores[1]))
    return pairs


def _path(measure: Measure, row: Mapping[str, Any]) -> list[str]:
    return [key.format(**row) for key in measure.path]


def _measured_source(table: Table, cells: Sequence[Cell]) -> str:
    models = dict.fromkeys(table.model_of(row) for row in table.rows)
    seeds = dict.fromkeys(
        whole[SEED] for cell in cells for experiment in cell.experiments if SEED in (whole := experiment.all_options)
    )
    parts = [" and ".join(model_label(model) for model in models)]
    parts += [f"seeds {', '.join(map(str, seeds))}"] if seeds else []
    given = {name: value for name, value in table.given.items() if name != MODEL}
    parts += [f"with {_listed(given)}"] if given else []
    return "; ".join(parts)


def _listed(given: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in given.items()
    )


def _details(folder: RunFolder, runs: Runs) -> RunDetails:
    digest = folder.experiment.digest
    status, report = runs.statuses[digest], runs.reports.get(digest, RunReport({}, {}))
    seconds = (
        {} if math.isnan(folder.seconds) else {"run took": f"{folder.seconds:.0f} s, start and evaluation included"}
    )
    return RunDetails(
        digest=digest,
        title=folder.experiment.title,
        state=status.state,
        reason=status.reason,
        folder=str(folder.path),
        command=shlex.join(["alignattn", folder.experiment.command, *folder.argv]),
        facts={**report.facts, **seconds},
        config=report.config,
        scores=report.scores,
        pictures=_pictures(report),
    )


def _with_needed(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Runs, and after them those on whose results they work."""
    return [*experiments, *(run.needs for run in experiments if run.needs is not None)]


def _pictures(report: RunReport) -> dict[str, str]:
    pictures = {}
    curves = training_curves_svg(report.log_history)
    if curves is not None:
        pictures[CURVES_TITLE] = curves
    if report.probabilities is not None:
        pictures[RELIABILITY_TITLE] = reliability_svg(*report.probabilities)
    return pictures
