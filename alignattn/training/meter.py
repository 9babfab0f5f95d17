"""Means of the values that a training logs."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from alignattn.training.checkpoints import LOWER, restore
from alignattn.utils.errors import AlignAttnError


class LossMeter(TrainerCallback, ExportableState):
    """Means of the losses and diagnostics over a logging interval and over the run, resumed or not.

    It also stops a run whose loss is no longer finite, before anything is logged, evaluated or saved.
    """

    def __init__(self) -> None:
        self.interval: dict[str, Tensor | float] = {}
        self.interval_steps: float = 0
        self.run_loss: Tensor | float = 0.0
        self.run_steps: float = 0
        self.num_processes = 1

    def add(self, loss: Tensor, parts: dict[str, Tensor | float]) -> None:
        """Add the contribution of one batch to the means of its step: the total loss and the logged parts.

        Args:
            loss: the total loss, a scalar.
            parts: the logged parts, scalars by name.
        """
        self.run_loss = self.run_loss + _addable(loss)
        for name, value in {"loss": loss, **parts}.items():
            self.interval[name] = self.interval.get(name, 0.0) + _addable(value)

    def take_interval(self) -> dict[str, float]:
        """Return the means over the steps since the last call, and reset them."""
        steps = max(self.interval_steps, 1)
        means = {name: float(value) / steps for name, value in self.interval.items()}
        self.interval, self.interval_steps = {}, 0
        return means

    def mean_run_loss(self) -> float:
        """Return the mean total loss of the whole run."""
        return float(self.run_loss) / max(self.run_steps, 1)

    def share(self, mean_over_processes: Callable[[dict[str, float]], dict[str, float]]) -> None:
        """Replace the sums of this process by means over processes: a checkpoint stores those of the first process."""
        self.interval = dict(mean_over_processes({name: float(value) for name, value in self.interval.items()}))
        self.run_loss = mean_over_processes({"run_loss": float(self.run_loss)})["run_loss"]

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        attributes = {
            "interval": {name: float(value) for name, value in self.interval.items()},
            "interval_steps": self.interval_steps,
            "run_loss": float(self.run_loss),
            "run_steps": self.run_steps,
            "num_processes": self.num_processes,
        }
        return {"args": {}, "attributes": attributes}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the state of the checkpoint, or start at zero."""
        restore(self, state, LossMeter())
        self.num_processes = args.world_size

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count the step, and stop at a loss that is not finite before it is written."""
        self.interval_steps += 1
        self.run_steps += 1
        if control.should_log or control.should_save or control.should_evaluate:
            self.check_finite(state.global_step)

    def check_finite(self, step: int) -> None:
        """Check the losses of the run so far.

        Raises:
            AlignAttnError: if a loss was not finite.
        """
        if not math.isfinite(float(self.run_loss)):
            raise AlignAttnError(f"the loss is not finite (at or before step {step}): {LOWER}")


def _addable(value: Tensor | float) -> Tensor | float:
    """A value in float32 at least: a sum in bfloat16 stops growing, 256 + 0.7 is 256."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(torch.promote_types(value.dtype, torch.float32))
