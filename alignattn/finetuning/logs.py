"""What a run logged, read back from its folder without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignattn.utils.errors import AlignAttnError
from alignattn.utils.json_records import read_record

STATE_FILE = "trainer_state.json"
"""transformers' name of the file that holds what a run logged."""

DISTANCE_NAME = "query_key_distance"
"""Of the distance in logs, in units of the size of queries and keys."""
AS_IS_NAME, BALANCED_NAME, FLOOR_NAME = (f"{DISTANCE_NAME}_{name}" for name in ("as_is", "balanced", "floor"))
"""Of those in units of their spread: as is, in the basis where their moments agree, and of two halves of one cloud."""


@dataclass(frozen=True)
class LoggedState:
    """What of that file is read."""

    log_history: list[dict[str, Any]]


def read_log_history(folder: Path) -> list[dict[str, Any]]:
    """Return what the run in `folder` logged, one entry a time, in order."""
    state = read_record(folder / STATE_FILE, LoggedState, "run")
    if state is None:
        raise AlignAttnError(f"{folder} holds no {STATE_FILE}: its run has not finished, or logged nothing")
    return state.log_history
