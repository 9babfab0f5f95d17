"""The task's loss with class weights."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.training.weights import num_labels


def weighted_loss(
    outputs: Any,
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    *,
    weights: Tensor,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the class-weighted loss of a batch, a scalar, as a `compute_loss_func` of `Trainer`.

    It is Σ w_y · loss / number of labels. PyTorch's weighted mean divides by Σ w_y of the batch instead: a batch
    without a rare class would count as much as one with it, so that the weight would have little effect in small
    batches, and the loss would depend on how a step is split into batches. If the mean weight of the training labels is
    1, both are the same over all training rows.

    Args:
        outputs: the model's outputs, with `logits` `[..., C]`.
        labels: class numbers `[...]`, -100 for none; or, with several labels per row, floating-point 0 and 1,
            `[..., C]`.
        num_items_in_batch: the number of labels that the loss is a mean over; those of the batch if None.
        weights: `[C]`, one per class; with several labels per row, the weights of positive labels (`pos_weight`).
        label_smoothing: as for `torch.nn.functional.cross_entropy`: every class has its own weight.
    """
    logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    weights = weights.to(logits)
    if labels.is_floating_point():
        loss = F.binary_cross_entropy_with_logits(logits, labels.to(logits), pos_weight=weights, reduction="sum")
    else:
        loss = F.cross_entropy(
            logits.flatten(0, -2), labels.flatten(), weights, label_smoothing=label_smoothing, reduction="sum"
        )
    if num_items_in_batch is None:
        num_items_in_batch = num_labels(labels).clamp(min=1)
    return loss / num_items_in_batch
