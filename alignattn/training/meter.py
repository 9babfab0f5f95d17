"""Means of what a training logs."""

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from alignattn.training.saving import LOWER
from alignattn.utils.errors import AlignAttnError


class LossMeter(TrainerCallback, ExportableState):
    """Means of the losses and diagnostics over a logging interval and over the run, a checkpoint's past included.

    It also stops a run whose loss is no longer finite before anything of it is logged, evaluated or saved.
    """

    def __init__(self) -> None:
        self.interval: dict[str, Tensor | float] = {}
        self.interval_steps: float = 0
        self.run_loss: Tensor | float = 0.0
        self.run_steps: float = 0

    def add(self, loss: Tensor, parts: dict[str, Tensor | float]) -> None:
        """Add what one batch contributes to the means of its step: the total loss and the parts to be logged.

        Args:
            loss: scalar.
            parts: scalars by name.
        """
        self.run_loss = self.run_loss + loss.detach()
        for name, value in parts.items():
            value = value.detach() if isinstance(value, Tensor) else value
            self.interval[name] = self.interval.get(name, 0.0) + value

    def take_interval(self) -> dict[str, float]:
        """Return the means over the steps since the last call, and start anew."""
        steps = max(self.interval_steps, 1)
        means = {name: float(value) / steps for name, value in self.interval.items()}
        self.interval, self.interval_steps = {}, 0
        return means

    def mean_run_loss(self) -> float:
        """Return the mean total loss of the whole run."""
        return float(self.run_loss) / max(self.run_steps, 1)

    def share(self, mean_over_processes: Callable[[dict[str, float]], dict[str, float]]) -> None:
        """Put the means over processes in the place of what this one summed: a checkpoint keeps the first one's."""
        self.interval = dict(mean_over_processes({name: float(value) for name, value in self.interval.items()}))
        self.run_loss = mean_over_processes({"run_loss": float(self.run_loss)})["run_loss"]

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        attributes = {
            "interval": {name: float(value) for name, value in self.interval.items()},
            "interval_steps": self.interval_steps,
            "run_loss": float(self.run_loss),
            "run_steps": self.run_steps,
        }
        return {"args": {}, "attributes": attributes}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take up what the checkpoint kept, or start at zero."""
        callbacks: Any = state.stateful_callbacks or {}
        saved = callbacks.get(type(self).__name__) if state.global_step else None
        attributes = (saved or LossMeter().state())["attributes"]
        # A copy: the state of the training is written again, with what the checkpoint kept.
        for name, value in deepcopy(attributes).items():
            setattr(self, name, value)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Count the step, and stop at a loss that is not finite where it would be written anywhere."""
        self.interval_steps += 1
        self.run_steps += 1
        if control.should_log or control.should_save or control.should_evaluate:
            self.check_finite(state.global_step)

    def check_finite(self, step: int) -> None:
        """Raise if a loss of the run so far was not finite.

        Raises:
            AlignAttnError: if so.
        """
        if not math.isfinite(float(self.run_loss)):
            raise AlignAttnError(f"the loss is no longer finite (at or before step {step}): {LOWER}")
