"""`alignattn compare`: a table of runs, each compared with the first; runs that are not comparable are refused."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from alignattn.commands import reader_of
from alignattn.commands.compare import CompareOptions
from alignattn.finetuning.examples import read_split
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import RESULTS_FILE, RunResult, read_result
from alignattn.finetuning.run_folder import (
    check_finished,
    differences_of_runs,
    evaluation_digests,
    read_run_options,
    seed_folders,
    short_names,
)
from alignattn.models.packaged import seen_before
from alignattn.reports.cells import Cell, Run, filled
from alignattn.reports.compared_cells import compare_cells
from alignattn.reports.measures import Measure
from alignattn.reports.result_reader import ResultReader, listed
from alignattn.reports.result_table import ResultTable
from alignattn.reports.writers import FORMS, to_text, write_table
from alignattn.tasks.metrics import metric_of
from alignattn.tasks.task import BY_SEED
from alignattn.utils.errors import AlignAttnError, plural
from alignattn.utils.files import check_free, unfinished
from alignattn.utils.publishing import publishable, publishable_text

TABLE = "comparison"

NOT_COMPARED = frozenset({"output_dir", "seed", "disable_tqdm", "report_to", "run_name", "resume_from_checkpoint"})
"""Options that do not distinguish runs; seeds are listed separately."""


@dataclass(frozen=True)
class EvaluatedRun:
    """A finished run: its folder, options and result."""

    folder: Path
    options: RunOptions
    result: RunResult

    @property
    def evaluated_on(self) -> str:
        """The source of its evaluation rows: the name of its task or of the user's file."""
        data = self.options.data
        own = data.validation_file or data.train_file
        return self.result.task if self.options.task is not None or own is None else Path(own).name

    @property
    def measures(self) -> list[tuple[str, str]]:
        """Split and metric of each of its scores."""
        return [(split, metric) for split, metrics in self.result.metrics.items() for metric in metrics]


@dataclass(frozen=True)
class ComparedRuns:
    """The runs of one folder: one run, or one per seed.

    Attributes:
        name: name in the table.
        runs: the runs by seed, at least one.
        unfinished: folders of seeds without a result.
    """

    name: str
    runs: Mapping[int, EvaluatedRun]
    unfinished: Sequence[Path]

    @property
    def first(self) -> EvaluatedRun:
        """The first of its runs."""
        return next(iter(self.runs.values()))


def compare_runs(options: CompareOptions) -> ResultTable:
    """Compare runs, write the table in all formats, print it, and return it."""
    folder = Path(options.output_dir)
    check_free(folder, [f"{TABLE}{suffix}" for suffix in (*FORMS, ".png")])
    table = compared(read_entries(options))
    with unfinished(folder):
        write_table(folder, table)
    print(f"{to_text(table)}\nwritten to {folder}")
    return table


def read_entries(options: CompareOptions) -> list[ComparedRuns]:
    """Return the runs of the folders, the baseline first.

    Raises:
        AlignAttnError: if the first run was not evaluated, or another was not evaluated in the same way.
    """
    folders = options.folders
    short = short_names(folders, "RUNS")
    names = options.names or [short[folder] for folder in folders]
    entries = [_read_entry(folder, name) for folder, name in zip(folders, names, strict=True)]
    first = entries[0].first
    if not first.measures:
        raise AlignAttnError(f"{first.folder} was not evaluated, so there is nothing to compare: leave it out")
    for run in _runs(entries):
        _check_comparable(first, run)
    for run in _runs(entries):
        _check_same_rows(first, run)
    return entries


def compared(entries: Sequence[ComparedRuns]) -> ResultTable:
    """Return the table of entries, each compared with the first, paired by seed where they have seeds in common."""
    reader, baseline = reader_of("finetune"), entries[0]
    undefined = [
        (split, metric)
        for split, metric in baseline.first.measures
        if any(run.result.metrics[split][metric] is None for run in _runs(entries))
    ]
    measures = [measure for measure in baseline.first.measures if measure not in undefined]
    if not measures:
        raise AlignAttnError("every metric is undefined for at least one of these runs: there is nothing to compare")
    runs = {
        entry.name: {seed: _table_run(entry, f"{number}-{seed}", run, reader) for seed, run in entry.runs.items()}
        for number, entry in enumerate(entries, start=1)
    }
    cells = [
        Cell(
            row=entry.name,
            column=split,
            measure=_measure(split, metric),
            path=("metrics", split, metric),
            runs=runs[entry.name],
            digests=[run.digest for run in runs[entry.name].values()],
            baseline=None if entry is baseline else baseline.name,
            samples_by_seed=any(one.first.options.data.take == BY_SEED for one in (entry, baseline)),
        )
        for entry in entries
        for split, metric in measures
    ]
    made, problems = compare_cells([filled(cell) for cell in cells])
    return ResultTable(
        name=TABLE,
        title=f"{baseline.first.evaluated_on}: {plural(len(entries), 'run')} side by side",
        cells=made,
        runs={run.digest: run for by_seed in runs.values() for run in by_seed.values()},
        notes=[
            *_settings(entries),
            *(f"{split} {metric} is undefined for a run and is left out." for split, metric in undefined),
            *_notes(entries),
            *problems,
        ],
        baseline=baseline.name,
    )


def _table_run(entry: ComparedRuns, digest: str, run: EvaluatedRun, reader: ResultReader) -> Run:
    report = reader.report(run.folder)
    return Run(
        digest=digest,
        title=entry.name if len(entry.runs) == 1 else f"{entry.name}, seed {run.result.seed}",
        reader=reader,
        output=run.folder,
        report=replace(report, config=publishable_text(report.config)),
        folder=publishable_text(str(run.folder)),
    )


def _measure(split: str, metric: str) -> Measure:
    return Measure(
        label=metric,
        path=f"metrics.{split}.{metric}",
        unit="error" if metric_of(metric).is_error else "percent",
        is_better="lower" if metric_of(metric).lower_is_better else "higher",
    )


def _settings(entries: Sequence[ComparedRuns]) -> list[str]:
    """The seeds of each entry, and the options that differ between entries, without paths of this machine."""
    # A run without the option has the default of its model.
    options: list[dict[str, Any]] = [
        publishable(entry.first.options.to_dict() | {"attention": entry.first.options.attention.name})
        for entry in entries
    ]
    known = sorted({name for one in options for name in one} - NOT_COMPARED)
    differing = [name for name in known if any(one.get(name) != options[0].get(name) for one in options)]
    lines = []
    for entry, one in zip(entries, options, strict=True):
        settings = ", ".join(f"{name} {_plain(one.get(name))}" for name in differing) or "the same options"
        lines.append(f"{entry.name}: {settings}; seed {', '.join(map(str, entry.runs))}")
    return lines


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _notes(entries: Sequence[ComparedRuns]) -> list[str]:
    """Notes on pairing, on unfinished runs, and on differences that are not options."""
    baseline, *others = entries
    lines = []
    for entry in others:
        common = [str(seed) for seed in baseline.runs if seed in entry.runs]
        if not common:
            lines.append(f"{entry.name} and {baseline.name} have no seed in common, so they are not paired by seed.")
        elif set(baseline.runs) != set(entry.runs):
            lines.append(f"{entry.name}: the difference is over the seeds in common ({', '.join(common)}).")
    lines += [
        f"{entry.name}: {', '.join(folder.name for folder in entry.unfinished)} not finished and left out."
        for entry in entries
        if entry.unfinished
    ]
    for entry, split in product(others, baseline.first.result.metrics):
        own, theirs = (evaluation_digests(one.first.options, one.first.folder, split) for one in (entry, baseline))
        if own and theirs and own != theirs:
            lines.append(
                f"{entry.name}: its file of {split} rows has another content than that of {baseline.name}; rows are "
                "paired by their place."
            )
    results = [run.result for run in _runs(entries)]
    lines += seen_before((result.model for result in results), (result.task for result in results))
    facts: dict[str, Callable[[RunResult], str]] = {
        "training rows": lambda result: f"{result.train_rows} rows",
        "hardware": lambda result: result.device,
        "versions": lambda result: listed(result.versions),
    }
    for what, fact in facts.items():
        if len(set(map(fact, results))) > 1:
            by_entry = [dict.fromkeys(fact(run.result) for run in entry.runs.values()) for entry in entries]
            each = "; ".join(f"{entry.name}: {' and '.join(own)}" for entry, own in zip(entries, by_entry, strict=True))
            lines.append(f"Different {what}: {each}.")
    return lines


def _read_entry(folder: Path, name: str) -> ComparedRuns:
    seeds = seed_folders(folder)
    finished = [seed for seed in seeds if (seed / RESULTS_FILE).is_file()]
    if not finished:
        check_finished(seeds[0] if seeds else folder, "RUNS")
        finished = [folder]
    runs = [_read_run(one) for one in finished]
    by_seed = {run.result.seed: run for run in runs}
    if len(by_seed) < len(runs):
        raise AlignAttnError(f"{folder} contains two runs with the same seed: give their folders one by one")
    for run in runs[1:]:
        if differing := differences_of_runs(run.options, runs[0].options):
            raise AlignAttnError(
                f"{run.folder} is another run than {runs[0].folder} (different: {', '.join(differing)}), so they have "
                "no mean over seeds: give their folders one by one"
            )
    return ComparedRuns(name, by_seed, [seed for seed in seeds if seed not in finished])


def _read_run(folder: Path) -> EvaluatedRun:
    result = read_result(folder)
    assert result is not None
    return EvaluatedRun(folder, read_run_options(folder), result)


def _runs(entries: Sequence[ComparedRuns]) -> Iterator[EvaluatedRun]:
    return (run for entry in entries for run in entry.runs.values())


def _check_comparable(first: EvaluatedRun, run: EvaluatedRun) -> None:
    if run.evaluated_on != first.evaluated_on:
        raise AlignAttnError(
            f"{run.folder} was evaluated on {run.evaluated_on}, and {first.folder} on {first.evaluated_on}: compare "
            "runs of one task"
        )
    if run.result.labels != first.result.labels:
        raise AlignAttnError(
            f"{run.folder} predicts {', '.join(run.result.labels) or 'scores'}, and {first.folder} "
            f"{', '.join(first.result.labels) or 'scores'}: compare runs with the same labels"
        )
    if set(run.measures) != set(first.measures):
        words = [", ".join(sorted(map(" ".join, one.measures))) or "nothing" for one in (run, first)]
        raise AlignAttnError(
            f"{run.folder} measured {words[0]}, and {first.folder} {words[1]}: compare runs of one task"
        )


def _check_same_rows(first: EvaluatedRun, run: EvaluatedRun) -> None:
    """Refuse a run whose evaluation rows differ from the first run's in their numbers or labels."""
    for split in first.result.metrics:
        expected, found = (read_split(one.folder, split).select(["row", "label"]) for one in (first, run))
        if found.num_rows != expected.num_rows:
            raise AlignAttnError(
                f"{run.folder} was evaluated on {found.num_rows} rows of {split}, and {first.folder} on "
                f"{expected.num_rows}: compare runs that were evaluated on the same rows"
            )
        if found != expected:
            raise AlignAttnError(
                f"{run.folder} was evaluated on other rows of {split} than {first.folder}: compare runs that were "
                "evaluated on the same rows"
            )
