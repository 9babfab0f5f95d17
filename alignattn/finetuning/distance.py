"""The distance of queries and keys while a model trains: on the same rows at every logging step."""

from collections.abc import Iterator, Mapping, Sequence
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

from alignattn.attention.basis import cloud
from alignattn.attention.distance import as_many, measure_distances, sliced_wasserstein
from alignattn.finetuning.logs import AS_IS_NAME, BALANCED_NAME, DISTANCE_NAME, FLOOR_NAME
from alignattn.finetuning.rows import input_batches
from alignattn.patching import collect, is_patched
from alignattn.patching.balance import balance_obstacle
from alignattn.patching.recording import LayerRecord
from alignattn.tasks import Task
from alignattn.tasks.processor import EncodedSplit
from alignattn.utils.errors import AlignAttnError

DISTANCE_ROWS = 64
"""Rows whose queries and keys are compared: the first of the evaluation rows."""


class DistanceCallback(TrainerCallback):
    """Adds what `query_key_distances` measures to what is logged: before the first step, and wherever the loss is.

    Training is what it would be without: gradients are off, nothing is drawn at random, and the mode of the model is
    restored.

    Args:
        batch: what `query_key_distances` takes.
        balances: likewise.
    """

    def __init__(self, batch: dict[str, Tensor], *, balances: bool) -> None:
        self.batch = batch
        self.balances = balances

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log the distance that training starts from; a resumed run has it from before."""
        if state.global_step == 0:
            state.log_history.append(self._measure(kwargs["model"]) | {"epoch": 0.0, "step": 0})

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
            measured = self._measure(kwargs["model"])
            logs.update(measured)
            state.log_history[-1].update(measured)

    def _measure(self, model: PreTrainedModel) -> dict[str, float]:
        was_training = model.training
        try:
            return query_key_distances(model, self.batch, balances=self.balances)
        finally:
            model.train(was_training)


def log_distance(trainer: Trainer, task: Task, evaluation: Mapping[str, EncodedSplit], processor: Any) -> None:
    """Let a trainer log the distance of queries and keys on the first rows of its first evaluation split."""
    if not evaluation:
        raise AlignAttnError("--log_query_key_distance: there are no evaluation rows: give --validation_file")
    if trainer.model is None or not is_patched(trainer.model):
        raise AlignAttnError("--log_query_key_distance: this model has no attention heads: leave it out")
    batch = distance_batch(task, next(iter(evaluation.values())), processor)
    callback = DistanceCallback(batch, balances=balance_obstacle(trainer.model) is None)
    # First of all: what reports the logs must see what this one adds to them.
    trainer.callback_handler.callbacks.insert(0, callback)


def query_key_distance(model: PreTrainedModel, batch: dict[str, Tensor]) -> float:
    """Return the sliced Wasserstein distance of queries and keys, mean over heads and layers.

    Args:
        model: a patched model; it is left in evaluation mode.
        batch: `input_ids`, `attention_mask` and so on, `[B, n]`.
    """
    return _distance_by_size(_recorded(model, batch))


def query_key_distances(model: PreTrainedModel, batch: dict[str, Tensor], *, balances: bool = True) -> dict[str, float]:
    """Return the distances of queries and keys, means over heads and layers, by the name that they have in logs.

    Beside `query_key_distance` those in units of the spread, of the batch's tokens as one cloud: the moments of the
    balanced basis are of one half of them, the distances of the other (`measure_distances`).

    Args:
        model: as for `query_key_distance`.
        batch: likewise.
        balances: whether the attention of the model leaves the basis open; otherwise there is no balanced distance.
    """
    layers = _recorded(model, batch)
    measured = [measure_distances(*clouds) for clouds in _clouds(layers)]
    named = {AS_IS_NAME: "as_is", BALANCED_NAME: "balanced", FLOOR_NAME: "floor"}
    means = {
        name: float(torch.stack([getattr(distances, field).mean() for distances in measured]).mean())
        for name, field in named.items()
        if balances or field != "balanced"
    }
    return {DISTANCE_NAME: _distance_by_size(layers)} | means


def _recorded(model: PreTrainedModel, batch: dict[str, Tensor]) -> list[LayerRecord]:
    with torch.no_grad(), collect(model.eval()) as seen:
        model(**{name: tensor.to(model.device) for name, tensor in batch.items()})
    return seen.layers


def _distance_by_size(layers: Sequence[LayerRecord]) -> float:
    distances = [sliced_wasserstein(query[None], key[None]).mean() for query, key in _clouds(layers)]
    return float(torch.stack(distances).mean())


def _clouds(layers: Sequence[LayerRecord]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the real tokens' queries and keys of each layer, `[H, N, d]`."""
    for layer in layers:
        if layer.query is not None and layer.key is not None:
            yield as_many(cloud(layer.query, layer.mask), cloud(layer.key, layer.key_mask))


def distance_batch(task: Task, split: EncodedSplit, processor: Any) -> dict[str, Tensor]:
    """Return the first `DISTANCE_ROWS` sequences of a split as one batch, padded, without their labels."""
    return next(input_batches(task, split, processor, range(min(DISTANCE_ROWS, len(split.encoded))), DISTANCE_ROWS))
