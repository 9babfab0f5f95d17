"""Compatibility with older versions of transformers: one function per difference, with the version that ends it."""

from typing import Any

from torch import Tensor
from transformers import Trainer


def loss_is_scaled(trainer: Any) -> bool:
    """Return `Trainer.loss_is_scaled_for_ga`, which exists since transformers 5.19; before, no loss is scaled."""
    return bool(getattr(trainer, "loss_is_scaled_for_ga", None))


def division_after_loss(trainer: Any, num_items_in_batch: Tensor | int | None) -> int:
    """Return the number by which `training_step` divides a loss that is already scaled.

    Since transformers 5.19, `loss_is_scaled_for_ga` declares such a loss, and it is not divided. Before, a loss counts
    as scaled only if the model or a `compute_loss_func` accepts the number of items.

    Args:
        trainer: the trainer, within its `training_step`.
        num_items_in_batch: as `training_step` passes it to `compute_loss`.
    """
    if hasattr(Trainer, "loss_is_scaled_for_ga"):
        return 1
    takes_items = trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
    if takes_items or trainer.compute_loss_func is not None:
        return 1
    steps: int = trainer.current_gradient_accumulation_steps
    return steps
