"""`alignattn reproduce`: execute the missing runs of a paper's table, and write it next to the published numbers."""

import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from alignattn.commands.reproduce import ReproduceOptions
from alignattn.commands.reproduce.estimate import list_runs
from alignattn.commands.reproduce.folder import LOG_FILE, SETTLED, RunFolder, folders_of
from alignattn.commands.reproduce.launchers.local import LocalLauncher
from alignattn.commands.reproduce.launchers.ray import RayLauncher
from alignattn.commands.reproduce.launchers.worker import BUSY
from alignattn.commands.reproduce.program import PROGRAM
from alignattn.commands.reproduce.program.command import check_programs
from alignattn.commands.reproduce.results import read_table
from alignattn.reports.result_table import ResultTable
from alignattn.reports.writers import to_text, write_table
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.progress import progress

RUNS_POLL_SECONDS = 2.0
"""Seconds between two checks of a run of another process."""


def reproduce(arguments: ReproduceOptions) -> None:
    """List the runs of a table, execute the missing ones, and write the table."""
    table = arguments.selected_table
    results = Path(arguments.output_dir)
    cells = list(table.cells(arguments.cell_seeds))
    folders = folders_of(results, cells)
    for folder in folders.values():
        # Errors in the options of any run are reported before the first run starts.
        _ = folder.options
    # Runs whose results other runs need come first.
    needed = {one.experiment.needs.digest for one in folders.values() if one.experiment.needs is not None}
    first = [folder for digest, folder in folders.items() if digest in needed]
    rest = [folder for digest, folder in folders.items() if digest not in needed]
    print(list_runs([*first, *rest]))
    if arguments.dry_run:
        return
    if not arguments.finished_only:
        unfinished = [folder for folder in folders.values() if folder.status().state not in SETTLED]
        if arguments.ray_address is None:
            for folder in unfinished:
                folder.command.check_packages()
        check_programs(folder.options for folder in unfinished if folder.experiment.command == PROGRAM)
        launcher: LocalLauncher | RayLauncher = (
            RayLauncher(arguments.processes, arguments.ray_address, arguments.gpu_share)
            if arguments.launcher == "ray"
            else LocalLauncher(arguments.processes)
        )
        for wave in filter(None, (first, rest)):
            run_missing(launcher, wave)
    measured = read_table(table, cells, folders)
    if arguments.note is not None:
        measured = replace(measured, notes=[*measured.notes, arguments.note])
    written = write_table(results / table.name, measured)
    print(f"{to_text(measured)}\nwritten to {', '.join(map(str, written))}")
    _check_all_done(measured, may_miss=arguments.finished_only)


def run_missing(launcher: LocalLauncher | RayLauncher, folders: Iterable[RunFolder]) -> None:
    """Execute the unfinished runs, and wait for those of other processes."""
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
            if busy:
                print(f"waiting for {len(busy)} run(s) of other processes", file=sys.stderr)
            while busy and all(folder.is_locked() for folder in busy.values()):
                time.sleep(RUNS_POLL_SECONDS)


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
