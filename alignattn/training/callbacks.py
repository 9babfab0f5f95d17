"""Callbacks of a training: the means that it logs, its methods, its checkpoints, and when it stops early."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from alignattn.training.checkpoints import LOWER, restore
from alignattn.training.methods import TrainingMethod
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


class AfterStep(TrainerCallback):
    """Calls `TrainingMethod.after_step` of each method."""

    def __init__(self, methods: Sequence[TrainingMethod]) -> None:
        self.methods = methods

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Pass the model and the step to the methods."""
        for method in self.methods:
            method.after_step(kwargs["model"], state.global_step, state.max_steps)


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


class EarlyStopping(EarlyStoppingCallback):
    """transformers' early stopping, whose patience counter survives a resumption.

    Args:
        early_stopping_patience: number of evaluations without improvement after which training ends.
        early_stopping_threshold: the minimum improvement.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the state of the checkpoint, or start at zero; a run that had stopped stays stopped."""
        self.early_stopping_patience_counter = 0
        restore(self, state, self)
        control.should_training_stop = self.has_stopped

    @property
    def has_stopped(self) -> bool:
        """Whether it has ended training."""
        return self.early_stopping_patience_counter >= self.early_stopping_patience


class JointBest(EarlyStopping):
    """Early stopping with several metrics: the patience resets if any is at its best; at the best step, all are.

    As in the code of Veličković et al. 2018, with validation loss and accuracy. A trainer may ask it for the best step
    even if it does not end training.

    Args:
        early_stopping_patience: number of evaluations with no metric at its best after which training ends.
        metrics: for each name, whether greater is better.
    """

    def __init__(self, early_stopping_patience: float = math.inf, metrics: Mapping[str, bool] | None = None) -> None:
        super().__init__(early_stopping_patience)  # type: ignore[arg-type]
        self.metrics = dict(metrics or {})
        self.best: dict[str, float] = {}
        self.is_best = False
        self._of_splits: dict[str, float] = {}

    def on_evaluate(  # type: ignore[override]  # EarlyStoppingCallback differs from its base likewise.
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Any,
        **kwargs: Any,
    ) -> None:
        """Count the evaluations since one of the metrics was at its best."""
        # Each split is evaluated by itself, and the metrics may be of several.
        self._of_splits |= {name: metrics[name] for name in self.metrics.keys() & metrics.keys()}
        if self._of_splits.keys() != self.metrics.keys():
            return
        of_splits, self._of_splits = self._of_splits, {}
        # An undefined metric is never the best, because no other value would reach it.
        measured = {name: value for name in self.metrics if not math.isnan(value := of_splits[name])}
        is_good = [
            name not in self.best or (value >= self.best[name] if self.metrics[name] else value <= self.best[name])
            for name, value in measured.items()
        ]
        self.is_best = len(measured) == len(self.metrics) and all(is_good)
        for name, value in measured.items():
            choose = max if self.metrics[name] else min
            self.best[name] = choose(value, self.best.get(name, value))
        self.early_stopping_patience_counter = 0 if any(is_good) else self.early_stopping_patience_counter + 1
        if self.has_stopped:
            control.should_training_stop = True

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        counter = self.early_stopping_patience_counter
        return {"args": {}, "attributes": {"early_stopping_patience_counter": counter, "best": dict(self.best)}}
