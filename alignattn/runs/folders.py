"""The folder of a finished run of `alignattn finetune`, read back: its rows, its logs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alignattn.runs.options import RunOptions
from alignattn.runs.results import read_result
from alignattn.runs.rows import load_evaluation_rows, load_run_rows
from alignattn.support.errors import AlignAttnError
from alignattn.support.json_records import read_record
from alignattn.support.publishing import distinct_ends
from alignattn.tasks.rows import Rows

STATE_FILE = "trainer_state.json"
"""transformers' name of the file that holds what a run logged."""


@dataclass(frozen=True)
class LoggedState:
    """What of that file is read."""

    log_history: list[dict[str, Any]]


def short_names(folders: Sequence[Path], option: str) -> Mapping[Path, str]:
    """Return a short name for each folder that no other has: as many of its last parts as it takes.

    Args:
        folders: one or more.
        option: by which they were given, for the message.
    """
    names = ["-".join(end) for end in distinct_ends(folders)]
    if len(set(names)) < len(names):
        raise AlignAttnError(f"{option} names a folder twice: {' '.join(map(str, folders))}")
    return dict(zip(folders, names, strict=True))


def load_run_evaluation(options: RunOptions, data_dir: str | None = None) -> Rows[Any]:
    """Return all rows that a run is evaluated on, however many of them it used.

    Args:
        options: of the run.
        data_dir: folder of Parquet files in place of the run's own source of its task.
    """
    data = replace(options.data, max_eval_samples=None)
    if options.task is None or data.train_file is not None:
        # The training file says what the classes of the others are.
        rows = load_run_rows(replace(options, data=data))
        made = read_result(options.output_dir)
        # The name that the task of a file had when the run was made.
        return rows if made is None else replace(rows, task=replace(rows.task, name=made.task))
    origin = data.data_dir if data_dir is None else data_dir
    return load_evaluation_rows(options.task, options.model, replace(data, data_dir=origin))


def read_log_history(folder: Path) -> list[dict[str, Any]]:
    """Return what the run in `folder` logged, one entry a time, in order."""
    state = read_record(folder / STATE_FILE, LoggedState, "run")
    if state is None:
        raise AlignAttnError(f"{folder} holds no {STATE_FILE}: its run has not finished, or logged nothing")
    return state.log_history
