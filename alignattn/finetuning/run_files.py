"""Names of the files in a run's folder."""

from pathlib import Path

from alignattn.utils.paths import entries

SEED_FOLDER_PREFIX = "seed-"

CONFIG_FILE = "config.yaml"
"""File with the options of a run."""

TASK_FILE = "task.json"
"""File with the task of a run, if a user's file defines it."""

DATA_FILE = "data.json"
"""File with the digests of a run's files."""

CALIBRATION_FOLDER = "calibration"
"""Folder of a run's calibration (`alignattn calibrate --run`)."""

CALIBRATION_ROWS_FILE = "rows.parquet"
"""File of that folder with the calibrated probabilities and the labels of the calibration rows, and the temperature."""

RUN_FOLDER = "run"
"""Name of a run's folder inside the folder of a command that made it."""


def is_seed_folder(folder: Path) -> bool:
    """Return whether a folder's name is only a seed, such as `seed-1`."""
    return folder.resolve().name.removeprefix(SEED_FOLDER_PREFIX).isdecimal()


def is_begun(folder: Path) -> bool:
    """Return whether a run's folder has more files than those written before the first checkpoint."""
    return not entries(folder) <= {CONFIG_FILE, TASK_FILE, DATA_FILE}
