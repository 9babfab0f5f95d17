"""`alignattn reproduce`: execute the missing runs of a paper's table, and write it next to the published numbers."""

import math
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from alignattn.commands.reproduce import NUM_SEEDS, ReproduceOptions
from alignattn.commands.reproduce.experiment import DATA_OPTION, SEED_OPTION, Experiment
from alignattn.commands.reproduce.folder import LOG_FILE, OF_THE_MACHINE, SETTLED, KeptRuns, RunFolder, folders_of
from alignattn.commands.reproduce.launchers.local import LocalLauncher
from alignattn.commands.reproduce.launchers.ray import RayLauncher
from alignattn.commands.reproduce.launchers.worker import BUSY
from alignattn.commands.reproduce.results import read_table
from alignattn.reports.table import ResultTable
from alignattn.reports.writers import to_text, write_table
from alignattn.utils.console import progress, render_table
from alignattn.utils.errors import AlignAttnError, plural


def reproduce(arguments: ReproduceOptions) -> None:
    """List the runs of a table, execute the missing ones, and write the table."""
    table = arguments.selected_table
    results = Path(arguments.output_dir)
    # Runs are continued wherever their rows lie now; a table of finished ones also takes those of other machines.
    kept = KeptRuns(results, OF_THE_MACHINE if table.kept else {DATA_OPTION})
    seeds = arguments.seeds or range(1, (arguments.num_seeds or table.seeds or NUM_SEEDS) + 1)
    cells = list(table.cells(seeds, kept))
    folders = folders_of(results, cells, kept=table.kept)
    for folder in folders.values() if not table.kept else ():
        # Errors in the options of any run are reported before the first run starts.
        _ = folder.options
    print(list_runs(list(folders.values())))
    if arguments.dry_run:
        return
    if not arguments.finished_only:
        launcher: LocalLauncher | RayLauncher = (
            RayLauncher(arguments.processes, arguments.ray_address, arguments.gpu_share)
            if arguments.launcher == "ray"
            else LocalLauncher(arguments.processes)
        )
        run_missing(launcher, folders.values())
    measured = read_table(table, cells, folders)
    if arguments.note is not None:
        measured = replace(measured, notes=[*measured.notes, arguments.note])
    written = write_table(results / table.name, measured)
    print(f"{to_text(measured)}\nwritten to {', '.join(map(str, written))}")
    _check_all_done(measured, may_miss=arguments.finished_only)


def list_runs(folders: Sequence[RunFolder]) -> str:
    """Return a line per run with its state and time, measured or estimated from finished ones, and a summary."""

    def kinds(experiment: Experiment) -> list[str]:
        """Return keys of runs that take similar time, the most specific first."""
        options = {name: value for name, value in experiment.all_options.items() if name != SEED_OPTION}
        names = ("model", "pair", "task", "recipes", "attention")
        parts = [*(str(options.get(name)) for name in names), str(sorted(options.items(), key=str))]
        return [str((experiment.command, parts[:count])) for count in range(len(parts), 0, -1)]

    states = [folder.status().state for folder in folders]
    known: dict[str, list[float]] = {}
    for folder, state in zip(folders, states, strict=True):
        if state == "done" and not math.isnan(folder.seconds):
            for kind in kinds(folder.experiment):
                known.setdefault(kind, []).append(folder.seconds)
    lines, missing = [], []
    for folder, state in zip(folders, states, strict=True):
        alike = next((known[kind] for kind in kinds(folder.experiment) if kind in known), [math.nan])
        seconds = folder.seconds if state == "done" else statistics.median(alike)
        if state not in SETTLED:
            missing.append(seconds)
        took = "unknown" if math.isnan(seconds) else f"{'' if state == 'done' else 'about '}{seconds / 60:.1f} min"
        lines.append([folder.experiment.title, folder.experiment.digest, state, "" if state == "unfit" else took])
    summary = f"{states.count('done')} of {len(folders)} runs are done"
    if unfit := {folder.reason_unsupported for folder in folders} - {""}:
        summary += f" ({states.count('unfit')} not supported: {'; '.join(sorted(unfit))})"
    if estimated := [seconds for seconds in missing if not math.isnan(seconds)]:
        summary += f"; the others take about {sum(estimated) / 60:.0f} min one after another"
    if unknown := len(missing) - len(estimated):
        summary += f"; {unknown} cannot be estimated: nothing like them has finished yet"
    return f"{render_table(['run', 'folder', 'state', 'time'], lines)}\n{summary}"


def run_missing(launcher: LocalLauncher | RayLauncher, folders: Iterable[RunFolder]) -> None:
    """Execute the unfinished runs, and wait for those of other processes; a refused folder is not touched."""
    unfinished = (folder for folder in folders if folder.status().state not in SETTLED)
    missing = {folder.path: folder for folder in unfinished if not folder.refusal}
    for folder in missing.values():
        folder.prepare()
    # The launcher executes a run's needed run just before it.
    needed = {folder.needed.path for folder in missing.values() if folder.needed is not None}
    waiting = {path: folder for path, folder in missing.items() if path not in needed}
    with progress("reproduce", len(missing), "run") as bar:
        while waiting:
            busy = {}
            for path, code in launcher.launch(list(waiting)):
                if code == BUSY:
                    busy[path] = waiting[path]
                    continue
                for folder in filter(None, (waiting[path].needed, waiting[path])):
                    if missing.pop(folder.path, None) is not None:
                        bar.write(_outcome(folder, code), file=sys.stderr)
                        bar.update()
            waiting = busy
            if busy:
                print(f"waiting for {plural(len(busy), 'run')} of other processes", file=sys.stderr)
            while busy and all(folder.is_locked() for folder in busy.values()):
                time.sleep(2)


def _outcome(folder: RunFolder, code: int) -> str:
    """Return a line on a run that has ended, with the exit code of its worker."""
    status = folder.status()
    line = f"{status.state}: {folder.experiment.title}"
    if status.state == "done":
        return line
    return f"{line} ({status.reason or f'exit code {code}, see {folder.path / LOG_FILE}'})"


def _check_all_done(table: ResultTable, *, may_miss: bool) -> None:
    fine = {*SETTLED, "missing"} if may_miss else SETTLED
    if failed := [run for run in table.runs.values() if run.state not in fine]:
        reason = failed[0].reason or f"the run left no result; see {failed[0].folder}"
        raise AlignAttnError(f"{len(failed)} of {len(table.runs)} runs failed, the first: {failed[0].title}: {reason}")
    if empty := [cell for cell in table.cells if cell.failure is not None]:
        raise AlignAttnError(
            f"{len(empty)} of {len(table.cells)} cells failed, the first: {empty[0].row}, {empty[0].heading}: "
            f"{empty[0].failure}"
        )
