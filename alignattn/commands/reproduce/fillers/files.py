"""What the files of a run's folder hold, for the commands that leave them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from alignattn.runs.folders import STATE_FILE, read_log_history
from alignattn.runs.results import CONFIG_FILE, PREDICTIONS_FILE
from alignattn.support.options import options_of


def config(folder: Path) -> str:
    """Return the options of a run, YAML."""
    return (folder / CONFIG_FILE).read_text(encoding="utf-8")


def log_history(folder: Path) -> Sequence[Mapping[str, Any]]:
    """Return what a run's training logged; nothing where it kept nothing."""
    return read_log_history(folder) if (folder / STATE_FILE).is_file() else []


def predictions(folder: Path, split: str) -> Any:
    """Return the predictions of a split, a table."""
    return pq.read_table(folder / PREDICTIONS_FILE, filters=[("split", "==", split)])


def probabilities(folder: Path, split: str | None) -> tuple[Any, Any] | None:
    """Return the probabilities `[N, C]` of a split and its labels `[N]`; None where there are none."""
    if split is None or "probabilities" not in pq.read_schema(folder / PREDICTIONS_FILE).names:
        return None
    rows = predictions(folder, split)
    return np.stack(rows["probabilities"].to_numpy()), rows["label"].to_numpy()


def option_names(*groups: Any) -> frozenset[str]:
    """Return the names of the options of some dataclasses."""
    return frozenset(name for group in groups for name in options_of(group))


def listed(versions: Mapping[str, str]) -> str:
    """Return versions in one line."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def percent(value: float) -> str:
    """Return a fraction as a percentage."""
    return f"{100 * value:.2f} %"
