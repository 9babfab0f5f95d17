"""The forward passes of a training step, and the hooks of training methods around them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
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
    for method in methods:
        method.before_forwards(model, inputs)
    losses: list[Tensor] = []
    outputs: list[Any] = []
    last = max((method.forwards for method in methods), default=1) - 1
    for index in range(last + 1):
        with ExitStack() as contexts:
            for method in methods:
                contexts.enter_context(method.around_forward())
            # A loss that reads the labels may remove them from its inputs.
            loss, found = forward(dict(inputs) if last else inputs)
        losses.append(loss)
        outputs.append(found)
        for method in methods if index < last else ():
            method.after_forward(loss)
    extra = ((method, method.extra_loss(model, inputs, outputs)) for method in methods)
    task = torch.stack(losses).mean() if last else losses[0]
    return task, outputs[0], [(method, loss) for method, loss in extra if loss is not None]


class AfterStep(TrainerCallback):
    """Calls `TrainingMethod.after_step` of each method."""

    def __init__(self, methods: Sequence[TrainingMethod]) -> None:
        self.methods = methods

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Pass the model and the step to the methods."""
        for method in self.methods:
            method.after_step(kwargs["model"], state.global_step, state.max_steps)
