"""The one door of checkpoints that a training goes on from: what is damaged, or of another model, is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers.utils import CONFIG_NAME
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from alignattn.finetuning.logs import STATE_FILE
from alignattn.patching import CHILD_NAME
from alignattn.patching.adapter_files import CONFIG_FIELD, adapter_contents
from alignattn.training.checkpoints import damaged_file, last_whole_checkpoint, step_of
from alignattn.training.saved_state import SavedAlignmentState, SavedState
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.json_records import parse_json, read_json, read_record
from alignattn.utils.saved_config import restored_fields

OF_A_FILE = frozenset(
    {"architectures", "attn_implementation", "dtype", "problem_type", "transformers_version", "use_cache"}
)
"""Fields of a saved config that tell of how it was trained and saved, and not of the model."""

OF_AN_ADAPTER_FILE = frozenset({"auto_mapping", "inference_mode", "peft_version", "revision", "runtime_config"})
"""The same of an adapter's."""


def check_checkpoint(folder: Path, model: Any = None, record: type[SavedState] = SavedAlignmentState) -> None:
    """Refuse a checkpoint to resume from that is not there, that is damaged, or that is of another model.

    Args:
        folder: of the checkpoint.
        model: that is to go on from it, with its adapters if it has some; None where nobody doubts that it is its own.
        record: what the state of its Trainer must hold.
    """
    if not folder.is_dir():
        raise AlignAttnError(f"there is no folder {folder}: give a checkpoint to --resume_from_checkpoint")
    is_of_adapter = (folder / ADAPTER_CONFIG_NAME).is_file()
    _check_state(folder, record)
    saved = restored_fields(read_json(folder / (ADAPTER_CONFIG_NAME if is_of_adapter else CONFIG_NAME)))
    torn = damaged_file(folder)
    if torn is not None:
        raise AlignAttnError(f"{torn} is damaged: give another checkpoint to --resume_from_checkpoint")
    if model is None:
        return
    if is_of_adapter != hasattr(model, "peft_config"):
        kinds = ("a whole model", "an adapter (--lora_r)")
        reason = f"it is of {kinds[is_of_adapter]}, and this run trains {kinds[not is_of_adapter]}"
    else:
        names = _differences_of_adapters(folder, saved, model) if is_of_adapter else _differences(saved, model)
        what = "adapter" if is_of_adapter else "config"
        reason = f"its {what} differs in {', '.join(names)}" if names else ""
    if reason:
        raise AlignAttnError(
            f"{folder} is a checkpoint of another model ({reason}): give another to --resume_from_checkpoint"
        )


@contextmanager
def resume_hint(folder: Path) -> Iterator[None]:
    """Have Ctrl-C say what a run leaves in its folder, and what the same command will do with that."""
    try:
        yield
    except KeyboardInterrupt as stop:
        newest = last_whole_checkpoint(folder)
        after = "begins anew" if newest is None else f"goes on from its {newest.name}"
        raise KeyboardInterrupt(f"{folder} holds no finished model, and the same command {after}") from stop


def _check_state(folder: Path, record: type[SavedState]) -> None:
    state = read_record(folder / STATE_FILE, record, "train")
    if state is None:
        raise AlignAttnError(f"{folder} holds no {STATE_FILE} and is no checkpoint: give another")
    best, step = state.best_model_checkpoint, step_of(folder)
    is_of_folder = step is None or step == state.global_step
    if not is_of_folder or (best is not None and step_of(Path(best)) != state.best_global_step):
        raise AlignAttnError(f"{folder / STATE_FILE} names other steps than its folder does: give another checkpoint")


def _differences(theirs: dict[str, Any], model: Any) -> list[str]:
    mine = parse_json(model.config.to_json_string(use_diff=False))
    return sorted(name for name in theirs.keys() & mine.keys() - OF_A_FILE if theirs[name] != mine[name])


def _differences_of_adapters(folder: Path, theirs: dict[str, Any], model: Any) -> list[str]:
    (config,) = model.peft_config.values()
    mine = config.to_dict()
    mine[CHILD_NAME] = getattr(model.config, CHILD_NAME, None)
    _, description = adapter_contents(str(folder), {})
    theirs[CHILD_NAME] = description.get("attention")
    theirs |= {"task_type": description["task_type"]} if description else {}
    return sorted(
        name
        for name in theirs.keys() & mine.keys() - OF_AN_ADAPTER_FILE
        if _comparable(name, theirs[name]) != _comparable(name, mine[name])
    )


def _comparable(name: str, value: Any) -> Any:
    if name == CONFIG_FIELD:  # a model may have moved with its run
        return Path(str(value)).name
    # Names of modules are in no order.
    return sorted(map(str, value)) if isinstance(value, list | set) else value
