"""What is compared, read from its folders: runs, their options and results, and whether they are of the same rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignattn.commands.compare import CompareOptions
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import RESULTS_FILE, RunResult, read_result
from alignattn.finetuning.run_folder import check_finished, read_run_options, seed_folders, short_names
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.publishing import publishable

SAY_NOTHING = frozenset({"output_dir", "seed", "disable_tqdm", "report_to", "run_name", "resume_from_checkpoint"})
"""Options by which no two runs differ, but their seeds, which stand beside them."""


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    options: RunOptions
    result: RunResult

    @property
    def evaluated_on(self) -> str:
        """Where its evaluation rows come from: the name of its task, or of the user's own file."""
        data = self.options.data
        own = data.validation_file or data.train_file
        return self.result.task if self.options.task is not None or own is None else Path(own).name


@dataclass(frozen=True)
class Entry:
    """What one folder holds: a run, or a run a seed.

    Attributes:
        name: in the table.
        runs: by seed, at least one.
        unfinished: folders of seeds without a result.
    """

    name: str
    runs: Mapping[int, Run]
    unfinished: Sequence[Path]

    @property
    def first(self) -> Run:
        """The first of its runs."""
        return next(iter(self.runs.values()))

    @property
    def seeds(self) -> list[int]:
        """Of its runs."""
        return list(self.runs)


def read_entries(options: CompareOptions) -> list[Entry]:
    """Return what the folders hold, the baseline first; refuses runs that were evaluated by other measures."""
    folders = options.folders
    short = short_names(folders, "RUNS")
    names = options.names or [short[folder] for folder in folders]
    entries = [_read_entry(folder, name) for folder, name in zip(folders, names, strict=True)]
    first = entries[0].first
    if not any(first.result.metrics.values()):
        raise AlignAttnError(f"{first.folder} was not evaluated, so there is nothing to compare: leave it out")
    for run in _runs(entries):
        _check_comparable(first, run)
    return entries


def differing_options(entries: Sequence[Entry]) -> dict[str, dict[str, Any]]:
    """Return for each entry, by name, the options in which the entries differ, without the paths of this machine."""
    # Without the option of it a run has what is the default of its model.
    options = [
        publishable(entry.first.options.to_dict() | {"attention": entry.first.options.attention.name})
        for entry in entries
    ]
    known = dict.fromkeys(name for one in options for name in one if name not in SAY_NOTHING)
    differing = [name for name in known if any(one.get(name) != options[0].get(name) for one in options)]
    return {
        entry.name: {name: one.get(name) for name in sorted(differing)}
        for entry, one in zip(entries, options, strict=True)
    }


def check_same_rows(entries: Sequence[Entry]) -> None:
    """Refuse runs whose evaluation rows are not those of the baseline, by their numbers and labels."""
    # Reads tables, which the other checks do not wait for.
    from alignattn.finetuning.examples import read_split

    first = entries[0].first
    for split in first.result.metrics:
        expected = read_split(first.folder, split).select(["row", "label"])
        for run in _runs(entries):
            found = read_split(run.folder, split).select(["row", "label"])
            if found.num_rows != expected.num_rows:
                raise AlignAttnError(
                    f"{run.folder} was evaluated on {found.num_rows} rows of {split}, and {first.folder} on "
                    f"{expected.num_rows}: compare runs that were evaluated on the same"
                )
            if found != expected:
                raise AlignAttnError(
                    f"{run.folder} was evaluated on other rows of {split} than {first.folder}: compare runs that were "
                    "evaluated on the same"
                )


def _read_entry(folder: Path, name: str) -> Entry:
    is_one = not (seeds := seed_folders(folder))
    if is_one:
        check_finished(folder, "RUNS")
        finished = [folder]
    else:
        finished = [seed for seed in seeds if (seed / RESULTS_FILE).is_file()]
        if not finished:
            check_finished(seeds[0], "RUNS")
    runs = [_read_run(one) for one in finished]
    by_seed = {run.result.seed: run for run in runs}
    if len(by_seed) < len(runs):
        raise AlignAttnError(f"{folder} holds two runs of one seed: give their folders one by one")
    return Entry(name, by_seed, [seed for seed in seeds if seed not in finished])


def _read_run(folder: Path) -> Run:
    result = read_result(folder)
    assert result is not None
    return Run(folder, read_run_options(folder), result)


def _runs(entries: Sequence[Entry]) -> Iterator[Run]:
    return (run for entry in entries for run in entry.runs.values())


def _check_comparable(first: Run, run: Run) -> None:
    if run.evaluated_on != first.evaluated_on:
        raise AlignAttnError(
            f"{run.folder} is of {run.evaluated_on}, and {first.folder} of {first.evaluated_on}: compare runs of one "
            "task"
        )
    if run.result.labels != first.result.labels:
        raise AlignAttnError(
            f"{run.folder} tells {', '.join(run.result.labels) or 'scores'}, and {first.folder} "
            f"{', '.join(first.result.labels) or 'scores'}: compare runs of the same labels"
        )
    measures = [{(split, name) for split, by in one.result.metrics.items() for name in by} for one in (run, first)]
    if measures[0] != measures[1]:
        words = [", ".join(sorted(" ".join(one) for one in of)) or "nothing" for of in measures]
        raise AlignAttnError(
            f"{run.folder} measured {words[0]}, and {first.folder} {words[1]}: compare runs of one task"
        )
