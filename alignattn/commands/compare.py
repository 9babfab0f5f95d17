"""`alignattn compare`: paired differences of methods over seeds, from run folders or from a file of scores."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignattn.finetuning.run_folder import check_runs_folder
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError, plural, unknown
from alignattn.utils.options import REQUIRED, Options, OutputDir, option

if TYPE_CHECKING:
    from alignattn.evaluation.statistics.example_scores import ExampleScores
    from alignattn.finetuning.options import RunOptions
    from alignattn.finetuning.results import RunResult
    from alignattn.reports.table import Cell, ResultTable

TABLE = "comparison"


def runs_or_scores(label: str, value: str) -> None:
    """Refuse a path that is neither a file nor one of runs; the `place` of an option, with its label."""
    if not os.path.isfile(value):
        check_runs_folder(label, value)


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Options):
    """The options of `alignattn compare`."""

    runs: tuple[str, ...] = option(
        REQUIRED,
        "Run folders, folders with one run per seed, or one CSV file with the columns method, seed, score and "
        "optionally task and example.",
        positional=True,
        metavar="RUNS",
        place=runs_or_scores,
    )
    baseline: str | None = option(
        None, "Run or method to compare the others with (default: the first).", metavar="RUNS"
    )
    names: tuple[str, ...] | None = option(None, "Names of the runs (default: last parts of their paths).")
    lower_is_better: bool = option(False, "In a file of scores, lower ones are better.")
    output_dir: OutputDir = option("comparison", "Folder for the table in all formats and a picture.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scores is not None:
            if self.names is not None:
                raise AlignAttnError(f"--names is for folders of runs: {self.scores} names its methods itself")
            return
        if self.lower_is_better:
            raise AlignAttnError("--lower_is_better is for a file of scores: runs know it of their metrics")
        folders = self.folders
        # Unlike Path.is_file, it takes names that are too long for a path.
        if files := [folder for folder in folders if os.path.isfile(folder)]:
            raise AlignAttnError(f"{files[0]} is a file: give one file of scores alone, or folders of runs")
        if len(folders) < 2:
            raise AlignAttnError("compare needs at least 2 folders of runs, the baseline first, or a file of scores")
        if len({folder.resolve() for folder in folders}) < len(folders):
            raise AlignAttnError(f"{' '.join(self.runs)} lists a folder twice: give each once")
        if self.names is not None and (len(self.names) != len(folders) or len(set(self.names)) < len(folders)):
            raise AlignAttnError(
                f"--names {' '.join(self.names)}: give {len(folders)} different names, one for each of "
                f"{' '.join(map(str, folders))}"
            )

    @property
    def scores(self) -> Path | None:
        """The file of scores; None for folders."""
        only = Path(self.runs[0]) if len(self.runs) == 1 else None
        return only if only is not None and os.path.isfile(only) else None

    @property
    def folders(self) -> list[Path]:
        """The folders to compare, in the order of `names`: those given, after a baseline that is not among them."""
        given = list(map(Path, self.runs))
        if self.baseline is None or any(map(self.is_baseline, given)):
            return given
        return [Path(self.baseline), *given]

    def is_baseline(self, folder: Path) -> bool:
        """Return whether a folder is the one to compare with."""
        return folder.resolve() == Path(self.runs[0] if self.baseline is None else self.baseline).resolve()


def compare_runs(options: CompareOptions) -> "ResultTable":
    """Compare runs or scores, write the table in all formats, print it, and return it."""
    from alignattn.reports.writers import FORMS, to_text, write_table
    from alignattn.utils.paths import check_free, unfinished

    folder = Path(options.output_dir)
    check_free(folder, [f"{TABLE}{suffix}" for suffix in (*FORMS, ".png")])
    if options.scores is not None:
        table = table_of_scores(options.scores, options.baseline, lower_is_better=options.lower_is_better)
    else:
        table = table_of_runs(read_entries(options))
    with unfinished(folder):
        write_table(folder, table)
    print(f"{to_text(table)}\nwritten to {folder}")
    return table


# --- a file of scores


def table_of_scores(path: Path, baseline: str | None = None, *, lower_is_better: bool = False) -> "ResultTable":
    """Return the table of a file of scores: each method is compared with one of them, paired by seed.

    Args:
        path: a CSV file with the columns `method`, `seed`, `score` and optionally `task` and `example`. With examples,
            the number of a seed is their mean.
        baseline: the method to compare with; None = the first of the file.
        lower_is_better: whether lower scores are better.

    Raises:
        AlignAttnError: if scores are missing, doubled or no numbers, or methods were scored on different examples.
    """
    import numpy as np

    from alignattn.evaluation.statistics.example_scores import mean_scores
    from alignattn.reports.measures import Measure, UnitName
    from alignattn.reports.table import Cell, ResultTable, compare_cells

    frame = read_scores(path)
    methods, tasks = list(dict.fromkeys(frame["method"])), list(dict.fromkeys(frame["task"]))
    first = methods[0] if baseline is None else baseline
    if first not in methods:
        raise unknown(f"method in {path}", first, methods)
    if len(methods) < 2:
        raise AlignAttnError(f"{path} has the scores of one method, {first}: compare needs at least 2")
    methods = [first, *(method for method in methods if method != first)]
    # Scores of 0 and 1 of single examples are those of a share, such as an accuracy.
    has_examples = bool((frame["example"] != "").all())
    are_shares = has_examples and bool(frame["score"].isin((0, 1)).all())
    unit: UnitName = "percent" if are_shares else "score"
    measure = Measure(label="score", unit=unit, is_better="lower" if lower_is_better else "higher")
    scores = {
        key: {seed: rows.set_index("example")["score"].sort_index() for seed, rows in group.groupby("seed", sort=False)}
        for key, group in frame.groupby(["method", "task"], sort=False)
    }
    constant = {
        key
        for key, by_seed in scores.items()
        if len(by_seed) > 1 and all(one.equals(next(iter(by_seed.values()))) for one in by_seed.values())
    }
    cells, notes = [], []
    for method, task in product(methods, tasks):
        by_seed, theirs = (scores.get((one, task), {}) for one in (method, first))
        common = [seed for seed in theirs if seed in by_seed]
        place = f"{method}, {task}" if task else method
        for seed in common:
            if not by_seed[seed].index.equals(theirs[seed].index):
                raise AlignAttnError(
                    f"{path}: {place}, seed {seed}, has scores of other examples than {first}: score both on the same"
                )
        if (method, task) in constant:
            notes.append(f"{place}: the scores of all seeds are equal: does the program use its seed?")
        # Equal seeds of both methods are one pair of numbers, which a test over seeds would count many times.
        is_one_pair = {(method, task), (first, task)} <= constant
        if common and by_seed.keys() != theirs.keys():
            notes.append(f"{place}: the difference is over the seeds in common ({', '.join(common)}).")
        sizes = set(map(len, by_seed.values()))
        examples = {seed: mean_scores(np.array(one.index), one.to_numpy()) for seed, one in by_seed.items()}
        cells.append(
            Cell(
                row=method,
                column=task,
                measure=measure,
                state="done" if by_seed else "missing",
                values={seed: float(one.mean()) for seed, one in by_seed.items()},
                baseline=None if is_one_pair or method == first else first,
                examples=examples.get if has_examples else lambda seed: None,
                share_rows=sizes.pop() if are_shares and len(sizes) == 1 else None,
            )
        )
    made, problems = compare_cells(cells)
    return ResultTable(
        name=TABLE,
        title=f"{path.name}: {plural(len(methods), 'method')} side by side",
        cells=made,
        notes=[*notes, *problems],
        baseline=first,
    )


def read_scores(path: Path) -> Any:
    """Return the frame of a file of scores, with the text columns method, task, seed and example, and `score`.

    Without the columns `task` and `example` these are empty.
    """
    import numpy as np
    import pandas as pd

    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise AlignAttnError(f"{path} cannot be read as CSV: {' '.join(str(error).split())}") from error
    if not isinstance(frame.index, pd.RangeIndex):
        raise AlignAttnError(f"{path}: a row has more values than the header")
    if missing := [name for name in ("method", "seed", "score") if name not in frame.columns]:
        raise AlignAttnError(
            f"{path} has no column {missing[0]!r} (it has {', '.join(map(str, frame.columns))}): a file of scores has "
            "the columns method, seed, score and optionally task and example"
        )
    keys = [name for name in ("method", "task", "seed", "example") if name in frame.columns]
    for name in keys:
        if (empty := np.flatnonzero(frame[name] == "")).size:
            raise AlignAttnError(f"{path}: row {empty[0] + 1} has no {name}")
    scores = pd.to_numeric(frame["score"], errors="coerce")
    if (wrong := np.flatnonzero(~np.isfinite(scores))).size:
        raise AlignAttnError(
            f"{path}: score {frame['score'].iloc[wrong[0]]!r} of row {wrong[0] + 1} is not a finite number"
        )
    if (doubled := np.flatnonzero(frame.duplicated(keys))).size:
        place = ", ".join(f"{name} {frame[name].iloc[doubled[0]]}" for name in keys)
        hint = "" if "example" in keys else "; scores of single rows need a column example"
        raise AlignAttnError(f"{path}: row {doubled[0] + 1} is a second score of {place}{hint}")
    if frame.empty:
        raise AlignAttnError(f"{path} has no scores")
    return pd.DataFrame({"task": "", "example": "", **{name: frame[name] for name in keys}, "score": scores})


# --- folders of runs


@dataclass(frozen=True)
class EvaluatedRun:
    """A finished run: its folder, options and result."""

    folder: Path
    options: "RunOptions"
    result: "RunResult"

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


def read_entries(options: CompareOptions) -> list[ComparedRuns]:
    """Return the runs of the folders, the baseline first.

    Raises:
        AlignAttnError: if the first run was not evaluated, or another was not evaluated in the same way.
    """
    from alignattn.finetuning.run_folder import short_names

    folders = options.folders
    short = short_names(folders, "RUNS")
    names = options.names or [short[folder] for folder in folders]
    named = sorted(zip(folders, names, strict=True), key=lambda entry: not options.is_baseline(entry[0]))
    entries = [_read_entry(folder, name) for folder, name in named]
    first = entries[0].first
    if not first.measures:
        raise AlignAttnError(f"{first.folder} was not evaluated, so there is nothing to compare: leave it out")
    for run in _runs(entries):
        _check_comparable(first, run)
    for run in _runs(entries):
        _check_same_rows(first, run)
    return entries


def _runs(entries: Sequence[ComparedRuns]) -> Iterator[EvaluatedRun]:
    return (run for entry in entries for run in entry.runs.values())


def _read_entry(folder: Path, name: str) -> ComparedRuns:
    from alignattn.finetuning.results import RESULTS_FILE, read_result
    from alignattn.finetuning.run_folder import check_finished, differences_of_runs, read_run_options, seed_folders

    seeds = seed_folders(folder)
    finished = [seed for seed in seeds if (seed / RESULTS_FILE).is_file()]
    if not finished:
        check_finished(seeds[0] if seeds else folder, "RUNS")
        finished = [folder]
    runs = []
    for one in finished:
        result = read_result(one)
        assert result is not None
        runs.append(EvaluatedRun(one, read_run_options(one), result))
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
    from alignattn.finetuning.examples import read_split

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


def table_of_runs(entries: Sequence[ComparedRuns]) -> "ResultTable":
    """Return the table of entries, each compared with the first, paired by seed."""
    from alignattn.reports.table import ResultTable, compare_cells

    baseline = entries[0]
    undefined = [
        (split, metric)
        for split, metric in baseline.first.measures
        if any(run.result.metrics[split][metric] is None for run in _runs(entries))
    ]
    measures = [measure for measure in baseline.first.measures if measure not in undefined]
    if not measures:
        raise AlignAttnError("every metric is undefined for at least one of these runs: there is nothing to compare")
    cells = [
        cell
        for number, entry in enumerate(entries, start=1)
        for cell in _cells_of(entry, number, measures, None if entry is baseline else baseline)
    ]
    made, problems = compare_cells(cells)
    return ResultTable(
        name=TABLE,
        title=f"{baseline.first.evaluated_on}: {plural(len(entries), 'run')} side by side",
        cells=made,
        runs={run.digest: run for cell in cells for run in cell.runs.values()},
        notes=[
            *_settings(entries),
            *(f"{split} {metric} is undefined for a run and is left out." for split, metric in undefined),
            *_notes(entries),
            *problems,
        ],
        baseline=baseline.name,
    )


def _cells_of(
    entry: ComparedRuns, number: int, measures: Sequence[tuple[str, str]], baseline: ComparedRuns | None
) -> Iterator["Cell"]:
    """Yield the cell of each split and metric of an entry, the `number`-th of the table."""
    from alignattn.finetuning.examples import SHARES, metric_examples, read_split
    from alignattn.finetuning.results import CONFIG_FILE
    from alignattn.reports.measures import Measure
    from alignattn.reports.table import Cell, Run, filled
    from alignattn.tasks.metrics import metric_of
    from alignattn.tasks.names import BY_SEED
    from alignattn.utils.files import read_text
    from alignattn.utils.paths import publishable_text

    runs = {
        seed: Run(
            digest=f"{number}-{seed}",
            title=entry.name if len(entry.runs) == 1 else f"{entry.name}, seed {seed}",
            results=asdict(run.result),
            folder=publishable_text(str(run.folder)),
            facts={"seed": str(seed), "hardware": run.result.device, "versions": _listed(run.result.versions)},
            config=publishable_text(read_text(run.folder / CONFIG_FILE)),
        )
        for seed, run in entry.runs.items()
    }

    def examples(split: str, metric: str, seed: int) -> "ExampleScores | None":
        return metric_examples(metric, read_split(entry.runs[seed].folder, split))

    for split, metric in measures:
        sizes = {run.result.evaluation_rows[split] for run in entry.runs.values()}
        yield filled(
            Cell(
                row=entry.name,
                column=split,
                measure=Measure(
                    label=metric,
                    unit="error" if metric_of(metric).is_error else "percent",
                    is_better="lower" if metric_of(metric).lower_is_better else "higher",
                ),
                runs=runs,
                digests=[run.digest for run in runs.values()],
                baseline=None if baseline is None else baseline.name,
                samples_by_seed=any(one.first.options.data.take == BY_SEED for one in (entry, baseline or entry)),
                examples=partial(examples, split, metric),
                share_rows=sizes.pop() if metric in SHARES and len(sizes) == 1 else None,
            ),
            ("metrics", split, metric),
        )


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _settings(entries: Sequence[ComparedRuns]) -> list[str]:
    """The seeds of each entry, and the options that differ between entries, without paths of this machine."""
    from alignattn.finetuning.run_folder import changed_contents
    from alignattn.utils.paths import publishable

    # A run without the option has the default of its model.
    options: list[dict[str, Any]] = [
        publishable(entry.first.options.to_dict() | {"attention": entry.first.options.attention.name})
        for entry in entries
    ]
    # Options that do not distinguish runs; seeds are listed separately.
    ignored = {"output_dir", "seed", "disable_tqdm", "report_to", "run_name", "resume_from_checkpoint"}
    attentions = [entry.first.options.attention for entry in entries]
    if len({attention.alignment_rows for attention in attentions if attention.alignment is not None}) < 2:
        # Only an alignment draws rows.
        ignored.add("alignment_rows")
    known = sorted({name for one in options for name in one} - ignored)
    differing = [name for name in known if any(one.get(name) != options[0].get(name) for one in options)]

    def plain(value: object) -> str:
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)

    lines = []
    for entry, one in zip(entries, options, strict=True):
        settings = [f"{name} {plain(one.get(name))}" for name in differing]
        # Files of one name, in different folders or changed in between.
        changed = changed_contents(entry.first.folder, entries[0].first.folder)
        settings += [f"another content of {name}" for name in changed if name.partition(" ")[0] not in differing]
        seeds = ", ".join(map(str, entry.runs))
        lines.append(f"{entry.name}: {', '.join(settings) or 'the same options'}; seed {seeds}")
    return lines


def _notes(entries: Sequence[ComparedRuns]) -> list[str]:
    """Notes on pairing, on unfinished runs, and on differences that are not options."""
    from alignattn.finetuning.run_folder import evaluation_digests
    from alignattn.models.packaged import seen_before

    baseline, *others = entries
    lines = []
    for entry in others:
        common = [str(seed) for seed in baseline.runs if seed in entry.runs]
        if common and set(baseline.runs) != set(entry.runs):
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
        "versions": lambda result: _listed(result.versions),
    }
    for what, fact in facts.items():
        if len(set(map(fact, results))) > 1:
            by_entry = [dict.fromkeys(fact(run.result) for run in entry.runs.values()) for entry in entries]
            each = "; ".join(f"{entry.name}: {' and '.join(own)}" for entry, own in zip(entries, by_entry, strict=True))
            lines.append(f"Different {what}: {each}.")
    return lines


COMMAND = Command(
    "compare",
    "compare finished runs, or the scores of any program: paired differences over seeds, tested and corrected",
    CompareOptions,
    run="alignattn.commands.compare:compare_runs",
    examples=(
        "alignattn compare runs/mrpc-soft runs/mrpc-ct --output_dir comparison",
        "alignattn compare runs/*/seed-1 --baseline runs/mrpc-soft/seed-1",
        "alignattn compare scores.csv --baseline plain",
    ),
)
