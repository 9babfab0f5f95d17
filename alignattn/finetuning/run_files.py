"""What the runs of a call leave in its folder, and where: names, and what is read before there are options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alignattn.models import AT_RANDOM, BY_LENGTH, SAMPLING_OPTION
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import entries, read_yaml

SEED_FOLDER_PREFIX, TRIAL_FOLDER_PREFIX = "seed-", "trial-"

CONFIG_FILE = "config.yaml"
"""Of the options of a run."""

TASK_FILE = "task.json"
"""Of the task of a run that the user's own file defines."""

DATA_FILE = "data.json"
"""Of the digests of a run's files; the run of a version before has none."""

RUN_FOLDER = "run"
"""Name of the folder of a run below that of what a command made of it."""

FOLDERS_OF_A_CALL = ("", f"{SEED_FOLDER_PREFIX}*/", f"{TRIAL_FOLDER_PREFIX}*/")
"""Where the runs of a call stand in its folder, or in a `RUN_FOLDER` there."""


def is_seed_folder(folder: Path) -> bool:
    """Return whether a folder's own name says no more than a seed."""
    return folder.resolve().name.removeprefix(SEED_FOLDER_PREFIX).isdecimal()


def is_begun(folder: Path) -> bool:
    """Return whether a folder of a run holds more than a run leaves that failed before its first checkpoint."""
    return not entries(folder) <= {CONFIG_FILE, TASK_FILE, DATA_FILE}


def order_begun(values: Mapping[str, Any]) -> str:
    """Return the order in which a call goes on: that of a run in its folder, or of its checkpoint; empty where none is.

    Raises:
        AlignAttnError: if a checkpoint lies apart from its run, and the order is not given either.
    """
    output_dir, checkpoint = values.get("output_dir"), values.get("resume_from_checkpoint")
    folders = [] if output_dir is None else _folders_of_a_call(Path(output_dir))
    # It names none where it asks for the newest.
    if isinstance(checkpoint, str | Path) and Path(checkpoint).is_dir():
        of_checkpoint = Path(checkpoint).absolute().parent
        if not (of_checkpoint / CONFIG_FILE).is_file() and values.get(SAMPLING_OPTION) is None:
            raise AlignAttnError(
                f"--resume_from_checkpoint {checkpoint}: no {CONFIG_FILE} beside it says in which order rows come: "
                f"give --{SAMPLING_OPTION} {AT_RANDOM} or {BY_LENGTH}, as the run did"
            )
        folders.append(of_checkpoint)
    for folder in folders:
        config = folder / CONFIG_FILE
        if not (config.is_file() and is_begun(folder)):
            continue
        try:
            return str(read_yaml(config).get(SAMPLING_OPTION, AT_RANDOM))
        except AlignAttnError:
            # Whoever goes on with the run says what is wrong with its files.
            continue
    return ""


def _folders_of_a_call(output_dir: Path) -> list[Path]:
    """Where its runs may be; those of a seed's folder have the seeds beside it."""
    calls = [output_dir, output_dir.absolute().parent] if is_seed_folder(output_dir) else [output_dir]
    patterns = [f"{runs}{inner}{CONFIG_FILE}" for runs in FOLDERS_OF_A_CALL for inner in ("", f"{RUN_FOLDER}/")]
    return [path.parent for call in calls for pattern in patterns for path in sorted(call.glob(pattern))]
