"""The forward passes of a training step, and the losses that training methods add to them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from alignattn.training.methods import Inputs, TrainingMethod


def step_losses(
    methods: Sequence[TrainingMethod],
    forward: Callable[[Inputs], tuple[Tensor, Any]],
    model: nn.Module,
    inputs: Inputs,
) -> tuple[Tensor, Any, list[tuple[TrainingMethod, Tensor]]]:
    """Run the forward passes of a batch that training methods ask for.

    Args:
        methods: the training methods; at most one of them makes several forward passes.
        forward: maps a batch to the task's loss, a scalar, and the model's outputs.
        model: the model that `forward` calls.
        inputs: the batch; with several forward passes it is not changed.

    Returns:
        The mean task loss of the forward passes, a scalar; the outputs of the first one; and the extra loss of each
        method that adds one.
    """
    forwards = max((method.forwards for method in methods), default=1)
    # A loss that reads the labels may remove them from its inputs.
    passes = [forward(dict(inputs) if forwards > 1 else inputs) for _ in range(forwards)]
    losses, outputs = [loss for loss, _ in passes], [found for _, found in passes]
    extra = ((method, method.extra_loss(model, inputs, outputs)) for method in methods)
    task_loss = torch.stack(losses).mean() if forwards > 1 else losses[0]
    return task_loss, outputs[0], [(method, loss) for method, loss in extra if loss is not None]


class AfterStep(TrainerCallback):
    """Calls `TrainingMethod.after_step` of each method."""

    def __init__(self, methods: Sequence[TrainingMethod]) -> None:
        self.methods = methods

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Pass the model and the step to the methods."""
        for method in self.methods:
            method.after_step(kwargs["model"], state.global_step, state.max_steps)
