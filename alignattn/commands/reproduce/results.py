"""The results of the runs of a table, read from their folders and compared."""

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from markupsafe import Markup

from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.commands.reproduce.definitions import PlannedCell
from alignattn.commands.reproduce.experiment import MODEL_OPTION, SEED_OPTION
from alignattn.commands.reproduce.folder import COSTS, RunFolder
from alignattn.commands.reproduce.table import Table
from alignattn.finetuning.logs import training_charts
from alignattn.models.packaged import seen_before
from alignattn.reports.cells import Cell, Run, filled
from alignattn.reports.charts import reliability_chart
from alignattn.reports.compared_cells import compare_cells
from alignattn.reports.diagrams import reliability_panel
from alignattn.reports.result_reader import UNREADABLE, RunReport
from alignattn.reports.result_table import ResultTable
from alignattn.utils.errors import one_line
from alignattn.utils.progress import counted
from alignattn.utils.publishing import publishable_text, short_path

COST = "cost"
"""Key of a run's cost, by the names of `COSTS`, among the numbers of every run."""


def read_table(table: Table, cells: Sequence[PlannedCell], folders: Mapping[str, RunFolder]) -> ResultTable:
    """Return a table with what its runs measured.

    Args:
        table: the table.
        cells: its cells.
        folders: the folders of their runs by digest, from `folders_of`.
    """
    runs = {digest: _read_run(folder) for digest, folder in counted(folders.items(), "read", len(folders), "run")}
    results = next(iter(folders.values())).results
    compared, problems = compare_cells([filled(_cell_of(cell, runs)) for cell in cells], table.named)
    repeated = dict.fromkeys(
        f"{cell.row}: all {len(cell.values)} runs on {cell.column} predict the same and count as one: does the program "
        "use its seed?"
        for cell in compared
        if cell.repeats_one_run
    )
    # A column's task, or each task of its pair.
    tasks = [task for column in table.columns for task in (column.name, *column.name.split("-"))]
    contamination = seen_before(map(table.model_of, table.rows), tasks)
    done = {digest for digest, run in runs.items() if run.state == "done"}
    return ResultTable(
        name=table.name,
        title=table.title,
        published_source=table.published_source,
        measured_source=_without_paths(measured_source(table, cells, done), results),
        notes=[*table.notes, *contamination, *repeated, *(_without_paths(problem, results) for problem in problems)],
        cells=compared,
        runs=runs,
        baseline=_baseline_of(compared),
        named=table.named,
    )


def _baseline_of(cells: Sequence[Cell]) -> str:
    """Return a description of what the cells are compared with."""
    compared = [cell for cell in cells if cell.comparison is not None]
    if not compared or not all(cell.names_baseline for cell in compared):
        return PLAIN_ATTENTION
    labels = {str(cell.baseline) for cell in compared}
    return labels.pop() if len(labels) == 1 else "the row that each names"


def _cell_of(cell: PlannedCell, runs: Mapping[str, Run]) -> Cell:
    return Cell(
        row=cell.row.label,
        column=cell.column.label,
        measure=cell.measure,
        runs={place: runs[experiment.digest] for place, experiment in enumerate(cell.experiments)},
        path=cell.measure.keys(cell.row.options),
        planned=cell.planned,
        published=cell.published,
        baseline=cell.baseline,
        names_baseline=bool(cell.row.against),
        is_primary=cell.is_primary,
        is_ensemble=cell.row.ensemble,
        samples_by_seed=cell.samples_by_seed,
        digests=cell.digests,
    )


def _read_run(folder: RunFolder) -> Run:
    """Read a run; one whose result cannot be read has failed."""
    status, report = folder.status(), RunReport()
    state, reason = status.state, status.reason
    if state == "done":
        try:
            report = folder.reader.report(folder.output)
        except UNREADABLE as error:
            state, reason = "failed", f"its results cannot be read: {one_line(error)}"

    def published(text: str) -> str:
        return _without_paths(text, folder.results, folder.values)

    took = {} if math.isnan(folder.seconds) else {"run took": f"{folder.seconds:.0f} s, start and evaluation included"}
    if (used := folder.cost.get(COSTS[1])) is not None:
        took["processor time"] = f"{used:.0f} s"
    return Run(
        digest=folder.experiment.digest,
        title=folder.experiment.title,
        reader=folder.reader,
        output=folder.output,
        report=replace(
            report,
            # A program reports its own cost, without that of alignattn.
            numbers={COST: folder.cost, **report.numbers},
            facts={name: published(fact) for name, fact in {**report.facts, **took}.items()},
            config=published(report.config),
        ),
        state=state,
        reason=None if reason is None else published(reason),
        folder=published(str(folder.path)),
        command=published(folder.command_line),
        charts=_charts(report) if state == "done" else {},
    )


def _charts(report: RunReport) -> dict[str, Markup]:
    """Return the curves of a run's training and its reliability diagram, by caption."""
    charts = training_charts(report.log_history)
    if report.probabilities is not None:
        panel = reliability_panel(*report.probabilities)
        charts[f"reliability, {panel.title}"] = reliability_chart(panel)
    return charts


def _without_paths(text: str, results: Path, options: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return a text without this machine's paths: the results folder keeps its name, others their last two parts."""
    text = text.replace(str(results.absolute()), results.absolute().name)
    for path in filter(os.path.isabs, (value for value in options.values() if isinstance(value, str))):
        text = text.replace(path, short_path(path))
    return publishable_text(text)


def measured_source(table: Table, cells: Sequence[PlannedCell], done: Collection[str]) -> str:
    """Describe the runs behind the measured numbers: models, seeds, options.

    Args:
        table: the table.
        cells: its cells.
        done: digests of the runs that have finished.
    """
    models = dict.fromkeys(table.model_of(row) for row in table.rows if not row.run)
    seeds: dict[Any, bool] = {}
    for experiment in (one for cell in cells for one in cell.experiments):
        if (seed := experiment.all_options.get(SEED_OPTION)) is not None:
            seeds[seed] = seeds.get(seed, False) or experiment.digest in done
    finished = [str(seed) for seed, is_done in seeds.items() if is_done]
    parts = [" and ".join(short_path(model) for model in models)] if models else []
    if seeds:
        of_all = f" of {len(seeds)}" if len(finished) < len(seeds) else ""
        parts.append(f"seeds {', '.join(finished) or 'none'}{of_all}")
    given = [
        f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in table.given.items()
        if name != MODEL_OPTION
    ]
    return "; ".join([*parts, *([f"with {', '.join(given)}"] if given else [])])
