"""What the runs of a call leave in its folder, and where: names."""

from pathlib import Path

from alignattn.utils.files import entries

SEED_FOLDER_PREFIX, TRIAL_FOLDER_PREFIX = "seed-", "trial-"

CONFIG_FILE = "config.yaml"
"""Of the options of a run."""

TASK_FILE = "task.json"
"""Of the task of a run that the user's own file defines."""

DATA_FILE = "data.json"
"""Of the digests of a run's files."""

RUN_FOLDER = "run"
"""Name of the folder of a run below that of what a command made of it."""


def is_seed_folder(folder: Path) -> bool:
    """Return whether a folder's own name says no more than a seed."""
    return folder.resolve().name.removeprefix(SEED_FOLDER_PREFIX).isdecimal()


def is_begun(folder: Path) -> bool:
    """Return whether a folder of a run holds more than a run leaves that failed before its first checkpoint."""
    return not entries(folder) <= {CONFIG_FILE, TASK_FILE, DATA_FILE}
