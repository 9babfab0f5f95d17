"""Early stopping that a killed run goes on with."""

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
        for name, value in (saved or self.state())["attributes"].items():
            setattr(self, name, value)
        control.should_training_stop = self.has_stopped

    @property
    def has_stopped(self) -> bool:
        """Whether it has ended the training."""
        return self.early_stopping_patience_counter >= self.early_stopping_patience
