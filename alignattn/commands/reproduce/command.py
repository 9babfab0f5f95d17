"""A table of a paper with one command: what is missing of it is run, and it is written beside the published figures."""

import math
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from alignattn.commands.reproduce import ReproduceOptions
from alignattn.commands.reproduce.experiment import SEED_OPTION, Experiment
from alignattn.commands.reproduce.folder import LOG_FILE, RunFolder, folders_of
from alignattn.commands.reproduce.formats import to_text, write_table
from alignattn.commands.reproduce.launchers.local import LocalLauncher
from alignattn.commands.reproduce.launchers.ray import RayLauncher
from alignattn.commands.reproduce.launchers.worker import BUSY
from alignattn.commands.reproduce.result import read_table
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.progress import progress
from alignattn.utils.text_tables import render_table

SETTLED = frozenset({"done", "unfit"})
"""States of a run for which there is nothing to do."""

RUNS_POLL_SECONDS = 2.0
"""Between two looks at a run that another process makes."""

SECONDS_A_MINUTE = 60


def reproduce(arguments: ReproduceOptions) -> None:
    """List the runs of a table, run those that are missing, and write the table."""
    table = arguments.asked_table
    results = Path(arguments.output_dir)
    cells = list(table.cells(arguments.cell_seeds))
    folders = folders_of(results, cells)
    for folder in folders.values():
        # What no run of them could be made with is to be said before the first is made.
        _ = folder.options
    waves = _waves(folders)
    print(list_runs(waves))
    if arguments.dry_run:
        return
    if not arguments.finished_only:
        launcher: LocalLauncher | RayLauncher = (
            RayLauncher(arguments.processes, arguments.ray_address, arguments.gpu_share)
            if arguments.launcher == "ray"
            else LocalLauncher(arguments.processes)
        )
        for wave in waves:
            run_missing(launcher, wave)
    result = read_table(table, cells, folders)
    if arguments.note is not None:
        result = replace(result, notes=[*result.notes, arguments.note])
    written = write_table(results / table.name, result)
    print(f"{to_text(result)}\nwritten to {', '.join(map(str, written))}")
    fine = SETTLED | {"missing"} if arguments.finished_only else SETTLED
    failed = [run for run in result.runs.values() if run.state not in fine]
    if failed:
        reason = failed[0].reason or f"there is no result; see {failed[0].folder}"
        raise AlignAttnError(f"{len(failed)} of {len(result.runs)} runs failed, the first: {failed[0].title}: {reason}")
    if empty := [cell for cell in result.cells if cell.failure is not None]:
        first = empty[0]
        raise AlignAttnError(
            f"{len(empty)} of {len(result.cells)} cells failed, the first: {first.row.label}, {first.heading}: "
            f"{first.failure}"
        )


def run_missing(launcher: LocalLauncher | RayLauncher, folders: Iterable[RunFolder]) -> None:
    """Run the runs that have not finished; those that another process runs are waited for."""
    missing = {folder.path: folder for folder in folders if folder.status().state not in SETTLED}
    for folder in missing.values():
        folder.prepare()
    with progress("reproduce", len(missing), "run") as bar:
        while missing:
            busy = {}
            for path, code in launcher.launch(list(missing)):
                if code == BUSY:
                    busy[path] = missing[path]
                    continue
                status = missing[path].status()
                reason = f" ({status.reason or f'exit code {code}, see {path / LOG_FILE}'})" if code else ""
                bar.write(f"{status.state}: {missing[path].experiment.title}{reason}", file=sys.stderr)
                bar.update()
            missing = busy
            _wait_for_one(busy.values())


def list_runs(waves: Sequence[Sequence[RunFolder]]) -> str:
    """Return the runs, their state, and how long those that are missing will take, by those that are not."""
    folders = [folder for wave in waves for folder in wave]
    states = {folder.path: folder.status() for folder in folders}
    known = _seconds_by_kind(folders)
    lines, missing = [], []
    for folder in folders:
        state = states[folder.path].state
        seconds = folder.seconds if state == "done" else _estimate(folder.experiment, known)
        if state not in SETTLED:
            missing.append(seconds)
        about = "" if state == "done" else "about "
        time_ = (
            ""
            if state == "unfit"
            else "unknown"
            if math.isnan(seconds)
            else f"{about}{seconds / SECONDS_A_MINUTE:.1f} min"
        )
        lines.append([folder.experiment.title, folder.experiment.digest, state, time_])
    estimated = [seconds for seconds in missing if not math.isnan(seconds)]
    unfit = {folder.reason_unsupported for folder in folders if states[folder.path].state == "unfit"}
    done = sum(status.state == "done" for status in states.values())
    summary = f"{done} of {len(folders)} runs are done"
    summary += f" ({len(folders) - done - len(missing)} cannot be: {'; '.join(sorted(unfit))})" if unfit else ""
    if missing:
        total = sum(estimated) / SECONDS_A_MINUTE
        unknown = len(missing) - len(estimated)
        summary += f"; the others take about {total:.0f} min one after another" if estimated else ""
        summary += f"; {unknown} cannot be estimated: nothing like them has run yet" if unknown else ""
    return f"{render_table(['run', 'folder', 'state', 'time'], lines)}\n{summary}"


def _waves(folders: Mapping[str, RunFolder]) -> list[list[RunFolder]]:
    """The folders of the runs: first those that others work on, then the others."""
    needed = {folder.experiment.needs.digest for folder in folders.values() if folder.experiment.needs is not None}
    waves = [[folder for digest, folder in folders.items() if (digest in needed) is first] for first in (True, False)]
    return [wave for wave in waves if wave]


def _wait_for_one(busy: Iterable[RunFolder]) -> None:
    """Wait until another process lets go of one of the runs, or return at once where there is none."""
    folders = list(busy)
    if folders:
        print(f"waiting for {len(folders)} run(s) that another process makes", file=sys.stderr)
    while folders and all(folder.is_locked() for folder in folders):
        time.sleep(RUNS_POLL_SECONDS)


def _kinds(experiment: Experiment) -> list[tuple[str, ...]]:
    """What makes two runs alike in time, the most like first."""
    whole = experiment.all_options
    parts = [str(whole.get(name)) for name in ("model", "pair", "task", "recipes", "attention")]
    # What else it is given may take forwards of its own, as R-Drop does.
    parts.append(str(sorted((name, value) for name, value in whole.items() if name != SEED_OPTION)))
    return [(experiment.command, *parts[:count]) for count in range(len(parts), 0, -1)]


def _seconds_by_kind(folders: Iterable[RunFolder]) -> dict[tuple[str, ...], list[float]]:
    known: dict[tuple[str, ...], list[float]] = {}
    for folder in folders:
        if not math.isnan(folder.seconds):
            for kind in _kinds(folder.experiment):
                known.setdefault(kind, []).append(folder.seconds)
    return known


def _estimate(experiment: Experiment, known: Mapping[tuple[str, ...], Sequence[float]]) -> float:
    return next((statistics.median(known[kind]) for kind in _kinds(experiment) if kind in known), math.nan)
