"""The distance of queries and keys while a model trains: on the same rows at every logging step."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from alignattn.attention.distance import sliced_wasserstein
from alignattn.patching import collect, is_patched
from alignattn.support.errors import AlignAttnError
from alignattn.tasks import Task
from alignattn.tasks.kind import EncodedSplit
from alignattn.tasks.kinds import kind_of

DISTANCE_NAME = "query_key_distance"
"""Of the distance in logs."""
DISTANCE_ROWS = 64
"""Rows whose queries and keys are compared: the first of the evaluation rows."""
LABEL_COLUMNS = ("label", "labels")


class DistanceCallback(TrainerCallback):
    """Adds `query_key_distance` to what is logged: before the first step, and wherever the loss is.

    Training is what it would be without: gradients are off, nothing is drawn at random, and the mode of the model is
    restored.

    Args:
        batch: what `query_key_distance` takes.
    """

    def __init__(self, batch: dict[str, Tensor]) -> None:
        self.batch = batch

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log the distance that training starts from; a resumed run has it from before."""
        if state.global_step == 0:
            state.log_history.append({DISTANCE_NAME: self._measure(kwargs["model"]), "epoch": 0.0, "step": 0})

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Log the distance beside the loss, for reporters and in the state."""
        if logs is not None and "loss" in logs:
            logs[DISTANCE_NAME] = state.log_history[-1][DISTANCE_NAME] = self._measure(kwargs["model"])

    def _measure(self, model: PreTrainedModel) -> float:
        was_training = model.training
        try:
            return query_key_distance(model, self.batch)
        finally:
            model.train(was_training)


def log_distance(trainer: Trainer, task: Task, evaluation: Mapping[str, EncodedSplit], processor: Any) -> None:
    """Let a trainer log the distance of queries and keys on the first rows of its first evaluation split."""
    if not evaluation:
        raise AlignAttnError("--log_query_key_distance: there are no evaluation rows: give --validation_file")
    if trainer.model is None or not is_patched(trainer.model):
        raise AlignAttnError("--log_query_key_distance: this model has no attention heads: leave it out")
    callback = DistanceCallback(distance_batch(task, next(iter(evaluation.values())), processor))
    # First of all: what reports the logs must see what this one adds to them.
    trainer.callback_handler.callbacks.insert(0, callback)


def query_key_distance(model: PreTrainedModel, batch: dict[str, Tensor]) -> float:
    """Return the sliced Wasserstein distance of queries and keys, mean over heads and layers.

    Args:
        model: a patched model; it is left in evaluation mode.
        batch: `input_ids`, `attention_mask` and so on, `[B, n]`.
    """
    with torch.no_grad(), collect(model.eval()) as seen:
        model(**{name: tensor.to(model.device) for name, tensor in batch.items()})
    distances = [
        sliced_wasserstein(layer.query, layer.key, layer.mask).mean()
        for layer in seen.layers
        if layer.query is not None and layer.key is not None
    ]
    return float(torch.stack(distances).mean())


def distance_batch(task: Task, split: EncodedSplit, processor: Any) -> dict[str, Tensor]:
    """Return the first `DISTANCE_ROWS` sequences of a split as one batch, padded, without their labels."""
    read = getattr(processor, "model_input_names", set(split.encoded.column_names).difference(LABEL_COLUMNS))
    inputs = [name for name in split.encoded.column_names if name in read]
    labels = [name for name in LABEL_COLUMNS if name in split.encoded.column_names]
    first = split.encoded.select(range(min(DISTANCE_ROWS, len(split.encoded)))).select_columns([*inputs, *labels])
    batch = kind_of(task).collator(processor)(list(first))
    return {name: batch[name] for name in inputs}
