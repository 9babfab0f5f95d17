"""Checkpoints: saved completely and with finite weights or not at all, and the one from which a killed run resumes."""

import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from alignattn.patching import CHILD_NAME
from alignattn.utils.errors import AlignAttnError, free_space, in_megabytes, one_line

_PREFIX = f"{PREFIX_CHECKPOINT_DIR}-"
_ARCHIVES = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "pytorch_model_fsdp.bin")
_WEIGHTS = "*.safetensors"

_RESUMED_FROM = (
    (_WEIGHTS, "optimizer.pt", "scheduler.pt"),
    ("pytorch_model_fsdp.bin", "optimizer.bin", "scheduler.pt"),
    ("global_step*", "latest"),
)
"""Files from which a Trainer resumes: without sharding, with FSDP's `FULL_STATE_DICT`, and with DeepSpeed."""

MODEL_FILES = (
    *("config.json", "adapter_config.json", "*.safetensors", "*.safetensors.index.json"),
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt"),
    *("*.model", "*.spm", "bpe.codes", "dict.txt", "vocab-src.json", "vocab-tgt.json", "target_vocab.json"),
    *("entity_vocab.json", "word_shape.json", "word_pronunciation.json", "emoji.json", "byte_maps.json"),
    *("prophetnet.tokenizer", "normalizer.json"),
    *("chat_template.jinja", "preprocessor_config.json", "processor_config.json"),
)
"""Files of a saved model and its tokenizer or processor: also the vocabularies of every tokenizer of transformers."""

LOWER = (
    "lower --learning_rate, or with an alignment --alignment_learning_rate or its weight; earlier checkpoints are "
    "untouched"
)
"""Advice for a run that diverges."""

_WRITTEN = (
    *(*_ARCHIVES, "scaler.pt", "rng_state*.pth", "trainer_state.json", "training_args.bin", "README.md"),
    *("pytorch_model_fsdp_*", "optimizer_*", "global_step*", "zero_to_fp32.py", "latest"),
    *MODEL_FILES,
)
"""Files that a Trainer writes to a checkpoint."""


def last_whole_checkpoint(output_dir: str | Path) -> Path | None:
    """Return the newest checkpoint folder from which a run can be resumed, or None.

    A run that is killed while it saves leaves an incomplete folder, on which `transformers` would crash. The state file
    is written last; a truncated safetensors file or zip archive is recognised by its end.

    Args:
        output_dir: the run's folder, with `checkpoint-<step>` folders in it.
    """
    whole = filter(_is_complete, Path(output_dir).glob(f"{_PREFIX}*"))
    return max(whole, key=lambda folder: step_of(folder) or 0, default=None)


def step_of(checkpoint: Path) -> int | None:
    """Return the step in the name of a checkpoint's folder, or None if there is none."""
    step = checkpoint.name.removeprefix(_PREFIX)
    return int(step) if checkpoint.name.startswith(_PREFIX) and step.isdecimal() else None


def remove_checkpoints(output_dir: str | Path) -> None:
    """Remove the checkpoints of a finished run, but not other files in their folders.

    If the run's folder has no weights, the checkpoints are kept: a backend that shards may have saved the model nowhere
    else.

    Args:
        output_dir: as for `last_whole_checkpoint`.
    """
    if not any(Path(output_dir).glob(_WEIGHTS)):
        return
    for checkpoint in Path(output_dir).glob(f"{_PREFIX}*"):
        if step_of(checkpoint) is None or checkpoint.is_symlink():
            continue
        # Another process of the same run may remove them at the same time.
        with suppress(FileNotFoundError):
            for entry in list(checkpoint.iterdir()):
                if not any(fnmatch(entry.name, pattern) for pattern in _WRITTEN):
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)
            if not any(checkpoint.iterdir()):
                checkpoint.rmdir()


def damaged_file(checkpoint: Path) -> Path | None:
    """Return a truncated file of the weights or the optimizer in a checkpoint's folder, or None."""
    for weights in checkpoint.glob(_WEIGHTS):
        try:
            with safe_open(weights, "pt"):
                pass
        except (OSError, SafetensorError):
            return weights
    archives = filter(Path.is_file, (checkpoint / name for name in _ARCHIVES))
    return next((archive for archive in archives if not zipfile.is_zipfile(archive)), None)


def read_state(checkpoint: Path) -> TrainerState:
    """Return the Trainer's state in a checkpoint.

    Raises:
        AlignAttnError: if there is none, or it is damaged.
    """
    path = checkpoint / TRAINER_STATE_NAME
    if not path.is_file():
        raise AlignAttnError(f"{checkpoint} has no {TRAINER_STATE_NAME} and is not a checkpoint: give another")
    try:
        return TrainerState.load_from_json(str(path))
    # As damage goes: no JSON, nested too deeply, not an object, or other fields than those of a state.
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise AlignAttnError(f"{path} is damaged ({one_line(error)}): give another checkpoint") from error


def restore(callback: ExportableState, state: TrainerState, initial: ExportableState) -> None:
    """Give a callback the state that a checkpoint saved of it, or that of `initial` when training starts anew."""
    callbacks: Any = state.stateful_callbacks or {}
    saved = callbacks.get(type(callback).__name__) if state.global_step else None
    # A copy, because the Trainer writes the state of the checkpoint again.
    for name, value in deepcopy((saved or initial.state())["attributes"]).items():
        setattr(callback, name, value)


def _is_complete(checkpoint: Path) -> bool:
    if step_of(checkpoint) is None:
        return False
    try:
        read_state(checkpoint)
    except AlignAttnError:
        return False
    return has_state(checkpoint) and damaged_file(checkpoint) is None


def has_state(checkpoint: Path) -> bool:
    """Return whether a checkpoint has, beside its weights, the state of the optimizer and of its schedule."""
    return any(all(any(checkpoint.glob(pattern)) for pattern in files) for files in _RESUMED_FROM)


@contextmanager
def own_parameters_from(checkpoint: str | Path, model: nn.Module) -> Iterator[None]:
    """Within the context, add the patches' parts from a checkpoint to each state dict that a model loads.

    sentence-transformers loads a checkpoint into an unpatched model, and then that model's state dict into this one.

    Args:
        checkpoint: a folder with `*.safetensors` in it or in its subfolders; parameter names start at the patched part.
        model: a model with patched parts.
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


@contextmanager
def explain_disk_errors(what: str, output_dir: Any) -> Iterator[None]:
    """Turn an error of writing to the run's folder, such as a full disk, into one line that names what is written."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        # On a full disk, errors of `torch.save` do not mention the disk.
        of_disk = ("PytorchStreamWriter", "inline_container", "unexpected pos")
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in of_disk):
            raise
        folder = Path(str(output_dir))
        whole = last_whole_checkpoint(folder)
        kept = "nothing was saved before" if whole is None else f"the last whole checkpoint, {whole.name}, is kept"
        raise AlignAttnError(
            f"cannot write {what} to {folder} ({one_line(error)}), where {in_megabytes(free_space(folder))} are free; "
            f"{kept}: free some space and run the same command again"
        ) from error


def remove_torn_weights(folder: Path) -> None:
    """Remove the incomplete files that a killed run left in its folder and checkpoints; safetensors uses no lock.

    Args:
        folder: the run's folder; no other process may write to it.
    """
    for part in (folder, *folder.glob(f"{_PREFIX}*")):
        for torn in part.glob(".tmp" + 6 * "[A-Za-z0-9]"):
            torn.unlink(missing_ok=True)


def check_finite_weights(model: nn.Module, step: int) -> None:
    """Refuse to save a model with a parameter that is not finite; the message names the training step."""
    for name, parameter in model.named_parameters():
        if not parameter.detach().isfinite().all():
            raise AlignAttnError(f"the weights are not finite (step {step}, {name}) and are not saved: {LOWER}")
