"""Early stopping whose state survives a resumption."""

import math
from collections.abc import Mapping
from typing import Any

from transformers import EarlyStoppingCallback, TrainerControl, TrainerState, TrainingArguments

from alignattn.training.checkpoints import restore


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
