"""Saving a checkpoint completely and with finite weights, or not at all."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from alignattn.training.checkpoints import last_whole_checkpoint
from alignattn.utils.errors import AlignAttnError, free_space, in_megabytes, one_line

if TYPE_CHECKING:
    _Trainer = Trainer
else:
    _Trainer = object

TORCH_CANNOT_WRITE = ("PytorchStreamWriter", "inline_container", "unexpected pos")
"""Parts of `torch.save`'s errors on a full disk, which do not mention the disk."""

TORN_WEIGHTS = re.compile(r".*/\.tmp[A-Za-z0-9]{6}")
"""Pattern of the names of safetensors' temporary files."""

LOWER = (
    "lower --learning_rate, or with an alignment --alignment_learning_rate or its weight; earlier checkpoints are "
    "untouched"
)
"""Advice for a run that diverges."""


class SavingMixin(_Trainer):
    """Makes a Trainer refuse to save weights that are not finite, and report a full disk in one line.

    It must come before `transformers.Trainer` or a subclass of it among the bases.

    Raises:
        AlignAttnError: if weights are not finite, or a checkpoint, the model or the state cannot be written.
    """

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the model as the Trainer does, if its weights are finite."""
        assert self.model is not None
        check_finite_weights(self.model, self.state.global_step)
        with self._explain_disk_errors("the model"):
            super().save_model(*args, **kwargs)

    def _save(self, *args: Any, **kwargs: Any) -> None:
        """Save as the Trainer does, and the tokenizer without the truncation and padding of its last call."""
        backend = getattr(self.processing_class, "backend_tokenizer", None)
        if backend is not None:
            backend.no_truncation()
            backend.no_padding()
        super()._save(*args, **kwargs)

    def save_state(self) -> None:
        """Save the state as the Trainer does."""
        with self._explain_disk_errors("the log history"):
            super().save_state()

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        folder = Path(str(self.args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        was_there = folder.exists()
        try:
            with self._explain_disk_errors("a checkpoint"):
                super()._save_checkpoint(*args, **kwargs)
        except AlignAttnError:
            # An incomplete checkpoint is useless, and takes up the space that the report of the failure needs.
            if not was_there and self.args.should_save:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    @contextmanager
    def _explain_disk_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not any(words in str(error) for words in TORCH_CANNOT_WRITE):
                raise
            folder = Path(str(self.args.output_dir))
            whole = last_whole_checkpoint(folder)
            kept = "nothing was saved before" if whole is None else f"the last whole checkpoint, {whole.name}, is kept"
            raise AlignAttnError(
                f"cannot write {what} to {folder} ({one_line(error)}), where {in_megabytes(free_space(folder))} are "
                f"free; {kept}: free some space and run the same command again"
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
