"""Early stopping that a killed run goes on with."""

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from transformers import EarlyStoppingCallback, TrainerControl, TrainerState, TrainingArguments


class EarlyStopping(EarlyStoppingCallback):
    """transformers' early stopping, which forgets at a kill how long it has waited; this one takes it up.

    Args:
        early_stopping_patience: evaluations without a better metric, after which training ends.
        early_stopping_threshold: what a metric must be better by.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take up what the checkpoint kept, or start at zero; a run that had stopped stays so."""
        callbacks: Any = state.stateful_callbacks or {}
        saved = callbacks.get(type(self).__name__) if state.global_step else None
        self.early_stopping_patience_counter = 0
        # A copy: the state of the training is written again, with what the checkpoint kept.
        for name, value in deepcopy((saved or self.state())["attributes"]).items():
            setattr(self, name, value)
        control.should_training_stop = self.has_stopped

    @property
    def has_stopped(self) -> bool:
        """Whether it has ended the training."""
        return self.early_stopping_patience_counter >= self.early_stopping_patience


class JointBest(EarlyStopping):
    """Early stopping by several metrics: it waits while any is as good as ever, and the best step has all so.

    So does the code of Veličković et al. 2018, with validation loss and accuracy. It chooses the best step for a
    trainer that asks it, whether it also ends the training or not.

    Args:
        early_stopping_patience: evaluations in which no metric is as good as its best, after which training ends.
        metrics: by name, whether more is better.
    """

    def __init__(self, early_stopping_patience: float = math.inf, metrics: Mapping[str, bool] | None = None) -> None:
        super().__init__(early_stopping_patience)  # type: ignore[arg-type]
        self.metrics = dict(metrics or {})
        self.best: dict[str, float] = {}
        self.is_best = False

    def on_evaluate(  # type: ignore[override]  # EarlyStoppingCallback's own is not that of its base either.
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Any,
        **kwargs: Any,
    ) -> None:
        """Count the evaluations since one of the metrics was at its best."""
        if not self.metrics.keys() <= metrics.keys():
            # Of another split.
            return
        # One that is undefined is as good as none, and nothing would be as good as it.
        measured = {name: value for name in self.metrics if not math.isnan(value := metrics[name])}
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
        """Return what a checkpoint keeps."""
        counter = self.early_stopping_patience_counter
        return {"args": {}, "attributes": {"early_stopping_patience_counter": counter, "best": dict(self.best)}}
