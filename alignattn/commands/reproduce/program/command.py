"""Run a user's program on the rows of a run, and score its predictions."""

import os
import platform
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
import psutil

from alignattn.commands.reproduce.folder import COSTS
from alignattn.commands.reproduce.program import (
    GIVEN,
    LOG_FILE,
    OUTPUT_FOLDER,
    PROCESS_FILE,
    TEST_ROWS,
    TRAIN_ROWS,
    ProgramOptions,
    call_words,
    run_digest,
)
from alignattn.commands.reproduce.program.predictions import ID, read_predictions
from alignattn.commands.reproduce.program.result_reader import ProgramResult, reason_unsupported
from alignattn.finetuning.examples import write_predictions
from alignattn.finetuning.results import RESULTS_FILE
from alignattn.finetuning.rows import load_run_rows
from alignattn.finetuning.run_files import DATA_FILE, TASK_FILE
from alignattn.finetuning.run_folder import data_digests
from alignattn.tasks.definitions import write_definition
from alignattn.utils.errors import AlignAttnError, reason_of
from alignattn.utils.files import write_json
from alignattn.utils.json_records import to_json
from alignattn.utils.processes import end_process

LAST_BYTES, LAST_CHARACTERS = 4096, 300
"""Bytes of a log's end that are read, and characters that are quoted."""


def check_programs(programs: Iterable[ProgramOptions]) -> None:
    """Check before the first run that each command exists and each function can be imported."""
    for run, options in {program.run: program for program in programs}.items():
        if not options.is_function:
            if shutil.which(run[0]) is None:
                raise AlignAttnError(f"run `{options.text}`: there is no executable program {run[0]!r}")
            continue
        check = [*call_words(run[0]), *GIVEN]
        done = subprocess.run(check, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603  # no shell, and the function's place is one word
        if done.returncode:
            raise AlignAttnError(f"run {run[0]!r} cannot be called: {_last_line(done.stderr) or 'it ends on import'}")


def run_program(options: ProgramOptions) -> ProgramResult:
    """Write the rows, run the program, and write its predictions and their scores in the format of other runs."""
    rows = load_run_rows(options.rows)
    if reason := reason_unsupported(rows.task):
        raise AlignAttnError(reason)
    if options.run_sha256 not in (None, run_digest(options.run[0] if options.is_function else options.run)):
        raise AlignAttnError("a file of the program has changed since the table was started: start it again")
    folder = Path(options.output_dir)
    write_json(folder / DATA_FILE, data_digests(options.rows))
    if options.rows.task is not None and options.rows.keeps_task:
        write_definition(folder / TASK_FILE, options.rows.task)
    assert rows.train is not None
    _write_rows(folder / TRAIN_ROWS, rows.train)
    unlabelled = [split.remove_columns(rows.task.label_column) for split in rows.evaluation.values()]
    test = datasets.concatenate_datasets(unlabelled)
    if ID in test.column_names:
        raise AlignAttnError(f"a program gets a column {ID!r} of row numbers, but the rows have one already: rename it")
    _write_rows(folder / TEST_ROWS, ({ID: number, **row} for number, row in enumerate(test)))
    (folder / OUTPUT_FOLDER).mkdir(exist_ok=True)
    start, used = time.monotonic(), os.times()
    said = _run(options.words, folder / LOG_FILE)
    # The program's own time, without that of this process.
    spent = os.times()
    processor = spent.children_user + spent.children_system - used.children_user - used.children_system
    cost = dict(zip(COSTS, (time.monotonic() - start, processor), strict=True))
    found = read_predictions(folder / OUTPUT_FOLDER, rows, said)
    write_predictions(folder, [split.table for split in found.values()])
    result = ProgramResult.of(options.seed, rows, found, cost, platform.machine())
    write_json(folder / RESULTS_FILE, asdict(result))
    for name in (TRAIN_ROWS, TEST_ROWS):
        (folder / name).unlink()
    return result


def _write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{to_json(row, ensure_ascii=False)}\n" for row in rows)


def _run(words: list[str], log: Path) -> str:
    """Run a command with its output in the log, and return its last output as the end of a message.

    Raises:
        AlignAttnError: if it cannot be run, or its exit code is not 0.
    """
    with log.open("ab") as file:
        file.write(f"$ {shlex.join(words)}\n".encode(errors="surrogateescape"))
        file.flush()
        start = file.tell()
        try:
            process = psutil.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        except OSError as error:
            raise AlignAttnError(f"the program cannot be run: {reason_of(error)}") from error
        try:
            write_json(log.with_name(PROCESS_FILE), {"pid": process.pid, "started": process.create_time()})
            code = process.wait()
        finally:
            end_process(process)
            log.with_name(PROCESS_FILE).unlink(missing_ok=True)
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - LAST_BYTES))
        line = _last_line(file.read())
    said = f", its last output {line!r}" if line else ", without any output"
    if not code:
        return said
    end = f"ended with exit code {code}"
    if code < 0:
        end = f"was killed by signal {-code}"
        with suppress(ValueError):
            end += f" ({signal.Signals(-code).name})"
    raise AlignAttnError(f"the program {end}{said}; see {log}")


def _last_line(output: bytes) -> str:
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    return next((line[-LAST_CHARACTERS:] for line in reversed(lines) if line), "")
