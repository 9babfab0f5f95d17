"""Which checkpoint a killed run goes on from."""

import json
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR


def last_whole_checkpoint(output_dir: str | Path) -> Path | None:
    """Return the newest checkpoint folder of a run that can be resumed, or None.

    A run killed while it saved leaves a torn folder behind, which `transformers` would pick up and crash on. The state
    file is written last, safetensors and zip archives tell a cut file by their ends.

    Args:
        output_dir: the run's folder, with `checkpoint-<step>` folders in it.
    """
    folders = [
        folder
        for folder in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if folder.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-").isdigit() and _is_whole(folder)
    ]
    return max(folders, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)


def _is_whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_text())
        for weights in checkpoint.glob("*.safetensors"):
            with safe_open(weights, "pt"):
                pass
    except (OSError, ValueError, SafetensorError):
        return False
    archives = [checkpoint / name for name in ("optimizer.pt", "scheduler.pt")]
    has_weights = any(checkpoint.glob("*.safetensors"))
    return has_weights and all(archive.is_file() and zipfile.is_zipfile(archive) for archive in archives)
