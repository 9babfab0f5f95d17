"""Which checkpoint a killed run goes on from, and what other libraries leave out when they load one."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from alignattn.patching import CHILD_NAME
from alignattn.support.json_records import parse_json


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
        parse_json((checkpoint / "trainer_state.json").read_bytes())
        for weights in checkpoint.glob("*.safetensors"):
            with safe_open(weights, "pt"):
                pass
    except (OSError, ValueError, SafetensorError):
        return False
    archives = [checkpoint / name for name in ("optimizer.pt", "scheduler.pt")]
    has_weights = any(checkpoint.glob("*.safetensors"))
    return has_weights and all(archive.is_file() and zipfile.is_zipfile(archive) for archive in archives)


@contextmanager
def own_parameters_from(checkpoint: str | Path, model: nn.Module) -> Iterator[None]:
    """While the context lasts, complete each state dict that the model loads by what a checkpoint has of its patches.

    sentence-transformers loads a checkpoint into a model without them, and then that model's state dict into this one.

    Args:
        checkpoint: a folder with `*.safetensors` in it or in its folders, which name parameters from the part that
            was patched on.
        model: with patched parts.
    """

    def complete(_model: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
        names = [prefix + name for name in model.state_dict() if f".{CHILD_NAME}." in f".{name}"]
        lacking = [name for name in names if name not in state_dict]
        for weights in Path(checkpoint).rglob("*.safetensors") if lacking else ():
            with safe_open(weights, "pt") as saved:
                for key in saved.keys():  # noqa: SIM118
                    state_dict.update(
                        {name: saved.get_tensor(key) for name in lacking if f".{name}".endswith(f".{key}")}
                    )

    hook = model.register_load_state_dict_pre_hook(complete)
    try:
        yield
    finally:
        hook.remove()
