"""The folder of a finished run of `alignattn finetune`, read back: its options, its rows, its logs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from transformers.utils import CONFIG_NAME
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from alignattn.runs.options import RunOptions, is_seed_folder
from alignattn.runs.results import CONFIG_FILE
from alignattn.runs.rows import load_evaluation_rows, load_run_rows
from alignattn.support.errors import AlignAttnError
from alignattn.support.json_records import parse_json, read_json, read_record
from alignattn.support.options import read_options_file, resolve
from alignattn.support.publishing import distinct_ends
from alignattn.tasks.rows import Rows

OF_A_FILE = frozenset(
    {"architectures", "attn_implementation", "dtype", "problem_type", "transformers_version", "use_cache"}
)
"""Fields of a saved config that tell of how it was trained and saved, and not of the model."""

STATE_FILE = "trainer_state.json"
"""transformers' name of the file that holds what a run logged."""


@dataclass(frozen=True)
class LoggedState:
    """What of that file is read."""

    log_history: list[dict[str, Any]]


def check_run_folder(folder: Path, option: str) -> None:
    """Refuse a folder that is no run's.

    Args:
        folder: that a user gave.
        option: by which it was given, for the message.
    """
    if not (folder / CONFIG_FILE).is_file():
        seeds = sorted(path.parent for path in folder.glob(f"*/{CONFIG_FILE}") if is_seed_folder(path.parent))
        choice = f": give the folder of a seed, such as {seeds[0]}" if seeds else ""
        raise AlignAttnError(
            f"{option} {folder} is no run folder of alignattn finetune, it holds no {CONFIG_FILE}{choice}"
        )


def check_checkpoint(folder: Path, config: PreTrainedConfig | None = None) -> None:
    """Refuse a checkpoint to resume from that is not there, whose records are damaged, or that is of another model.

    Args:
        folder: of the checkpoint.
        config: of the model that is to go on from it, where it is known.
    """
    if not folder.is_dir():
        raise AlignAttnError(f"there is no folder {folder}: give a checkpoint to --resume_from_checkpoint")
    is_of_adapter = (folder / ADAPTER_CONFIG_NAME).is_file()
    for name in (STATE_FILE, ADAPTER_CONFIG_NAME if is_of_adapter else CONFIG_NAME):
        read_json(folder / name)
    if is_of_adapter or config is None:
        return
    theirs, mine = read_json(folder / CONFIG_NAME), parse_json(config.to_json_string(use_diff=False))
    differing = sorted(name for name in theirs.keys() & mine.keys() - OF_A_FILE if theirs[name] != mine[name])
    if differing:
        raise AlignAttnError(
            f"{folder} is a checkpoint of another model (its config differs in {', '.join(differing)}): give another "
            "to --resume_from_checkpoint"
        )


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


def read_run_options(folder: Path) -> RunOptions:
    """Return the options that the run in `folder` was made with.

    Args:
        folder: of a run.
    """
    values = read_options_file(RunOptions, folder / CONFIG_FILE)
    return resolve(RunOptions, values | {"output_dir": folder}, str(folder / CONFIG_FILE))


def load_run_evaluation(options: RunOptions, data_dir: str | None = None) -> Rows[Any]:
    """Return all rows that a run is evaluated on, however many of them it used.

    Args:
        options: of the run.
        data_dir: folder of Parquet files in place of the run's own source of its task.
    """
    data = replace(options.data, max_eval_samples=None)
    if options.task is None or data.train_file is not None:
        # The training file says what the classes of the others are.
        return load_run_rows(replace(options, data=data))
    origin = data.data_dir if data_dir is None else data_dir
    return load_evaluation_rows(options.task, options.model, replace(data, data_dir=origin))


def read_log_history(folder: Path) -> list[dict[str, Any]]:
    """Return what the run in `folder` logged, one entry a time, in order."""
    state = read_record(folder / STATE_FILE, LoggedState, "run")
    if state is None:
        raise AlignAttnError(f"{folder} holds no {STATE_FILE}: its run has not finished, or logged nothing")
    return state.log_history
