"""Saving a checkpoint completely and with finite weights, or not at all."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from alignattn.training.checkpoints import last_whole_checkpoint
from alignattn.utils.errors import AlignAttnError, free_space, in_megabytes, one_line

TORCH_CANNOT_WRITE = ("PytorchStreamWriter", "inline_container", "unexpected pos")
"""Parts of `torch.save`'s errors on a full disk, which do not mention the disk."""

TORN_WEIGHTS = re.compile(r".*/\.tmp[A-Za-z0-9]{6}")
"""Pattern of the names of safetensors' temporary files."""

LOWER = (
    "lower --learning_rate, or with an alignment --alignment_learning_rate or its weight; earlier checkpoints are "
    "untouched"
)
"""Advice for a run that diverges."""


@contextmanager
def explain_disk_errors(what: str, output_dir: Any) -> Iterator[None]:
    """Turn an error of writing, such as a full disk, into one line.

    Args:
        what: what is written.
        output_dir: the run's folder.

    Raises:
        AlignAttnError: if it cannot be written.
    """
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not any(words in str(error) for words in TORCH_CANNOT_WRITE):
            raise
        folder = Path(str(output_dir))
        whole = last_whole_checkpoint(folder)
        kept = "nothing was saved before" if whole is None else f"the last whole checkpoint, {whole.name}, is kept"
        raise AlignAttnError(
            f"cannot write {what} to {folder} ({one_line(error)}), where {in_megabytes(free_space(folder))} are free; "
            f"{kept}: free some space and run the same command again"
        ) from error


class SaveAfterEpoch(TrainerCallback):
    """Saves the checkpoint of an epoch's last step after the epoch's log and evaluation, which it would lack."""

    def __init__(self) -> None:
        self.is_due = False

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Postpone a save at the end of an epoch."""
        self.is_due = control.should_save and state.epoch is not None and state.epoch % 1 == 0
        control.should_save = control.should_save and not self.is_due

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save what is due."""
        control.should_save = control.should_save or self.is_due


def remove_torn_weights(folder: Path) -> None:
    """Remove the incomplete files that a killed run left in its folder and checkpoints; safetensors uses no lock.

    Args:
        folder: the run's folder; no other process may write to it.
    """
    for part in (folder, *folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*")):
        for torn in filter(TORN_WEIGHTS.fullmatch, map(str, part.glob(".tmp*"))):
            Path(torn).unlink(missing_ok=True)


def check_finite_weights(model: nn.Module, step: int) -> None:
    """Check the parameters of a model.

    Args:
        model: the model to save.
        step: its training step, for the message.

    Raises:
        AlignAttnError: if a parameter is not finite.
    """
    for name, parameter in model.named_parameters():
        if not parameter.detach().isfinite().all():
            raise AlignAttnError(f"the weights are not finite (step {step}, {name}) and are not saved: {LOWER}")
