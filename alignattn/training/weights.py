"""The weight of a batch in its step, from the number of rows or labels over which its losses are averaged.

With batches b of P processes, whose losses are means over n_b rows (or labels), the loss of a step is

    L = Σ_b n_b L_b / N,    N = Σ_b n_b,

the same for any split into batches and processes. Gradients are means over processes, so a batch weighs P n_b / N.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import getsource
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.loss.loss_utils import ForCausalLMLoss

from alignattn.patching.masks import packing_of_batch
from alignattn.tasks.names import WINDOW_COUNTS

IGNORED_LABEL = -100
"""The label of tokens that a loss ignores, in PyTorch and transformers."""


@dataclass(frozen=True)
class BatchSize:
    """The counts over which the losses of a batch are averaged.

    Attributes:
        samples: the number of rows, or of windows of rows, for the alignment loss.
        labels: the number of labels that are not ignored, for the task's loss; None if the batch has no labels, or the
            loss is a mean over rows.
    """

    samples: int
    labels: Tensor | None

    @property
    def items(self) -> Tensor | int:
        """The count over which the task's loss is averaged."""
        return self.samples if self.labels is None else self.labels

    @classmethod
    def of(cls, batch: Any, model: Any = None, *, is_shifted: bool = False) -> "BatchSize":
        """Count the rows and labels of a batch.

        Args:
            batch: a batch of a data loader. If its rows cannot be counted, it counts as one row.
            model: the model, which says how it separates the samples of a row by positions (`packing_of_batch`), and
                what its loss is a mean over; None for one that separates them wherever transformers can, and whose loss
                is a mean over labels.
            is_shifted: whether the loss predicts the next token, so that the first token's label is never used.
        """
        if not isinstance(batch, Mapping):
            return cls(1, None)
        labels: Any = batch.get("labels")
        if loss_is_of_rows(model) or not _is_column(labels):
            counted = None
        else:
            # `semantic_loss_ignore_index` of its config is the label of pixels that a model's loss ignores.
            ignored = getattr(getattr(model, "config", None), "semantic_loss_ignore_index", None)
            ignored = ignored if isinstance(ignored, int) else IGNORED_LABEL
            counted = num_labels(labels[..., 1:] if is_shifted else labels, ignored)
        # The sample bounds of a packed batch, `[samples + 1]`, as in `DataCollatorWithFlattening`.
        bounds = batch.get("cu_seq_lens_q")
        if _is_column(bounds):
            return cls(len(bounds) - 1, counted)
        if WINDOW_COUNTS in batch:
            return cls(len(batch["input_ids"]), counted)
        if packing := packing_of_batch(model, batch):
            return cls(len(packing.tokens), counted)
        if counted is not None:
            return cls(len(labels), counted)
        columns = [value for value in batch.values() if isinstance(value, list) or _is_column(value)]
        return cls(len(columns[0]) if columns else 1, None)


def num_labels(labels: Tensor, ignored_pixel: int = IGNORED_LABEL) -> Tensor:
    """Return the number of labels that a loss does not ignore, a scalar: of class numbers, or of scores, all of them.

    Args:
        labels: class numbers, -100 for none; or floating-point scores, of which -100 is one like any other.
        ignored_pixel: the label of pixels that the loss ignores.
    """
    if labels.is_floating_point():
        return torch.full((), labels.numel(), device=labels.device)
    is_counted = labels.ne(IGNORED_LABEL)
    if labels.dim() == 3:  # of pixels, `[B, height, width]`
        is_counted = is_counted & labels.ne(ignored_pixel)
    return is_counted.sum()


def loss_is_of_rows(model: Any) -> bool:
    """Tell whether a model's loss is a mean over rows, not over labels.

    It is if the model's attribute `loss_is_of_rows` says so, and for a mean of CTC losses, each divided by its length.
    """
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    is_mean = getattr(getattr(model, "config", None), "ctc_loss_reduction", None) == "mean"
    return bool(getattr(model, "loss_is_of_rows", False)) or (is_mean and "ForCTC" in type(model).__name__)


def shifts_labels(model: Any) -> bool:
    """Tell whether a model whose class names no loss predicts the next token by transformers' default loss.

    `GPT2LMHeadModel` is one: `Trainer` does not know that no first token's label is used.
    """
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    if getattr(model, "loss_type", None) is not None:
        return False
    try:
        is_called = "self.loss_function(" in getsource(type(model).forward)
    except (OSError, TypeError):
        return False
    return is_called and model.loss_function is ForCausalLMLoss


def _is_column(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.dim() > 0


@dataclass(frozen=True)
class StepSize:
    """The counts over which the losses of a whole optimizer step are averaged.

    Attributes:
        samples: the number of rows of all its batches and processes.
        items: the number of rows or labels for the task's loss, likewise.
        processes: the number of processes; gradients are a mean over them.
    """

    samples: Tensor | int
    items: Tensor | int
    processes: int = 1

    @classmethod
    def of(
        cls, batches: Iterable[BatchSize], processes: int, sum_over_processes: Callable[[list[Tensor | int]], Tensor]
    ) -> "StepSize | None":
        """Return the size of a step with these batches on each process; None if the step is a single batch."""
        sizes = list(batches)
        samples, items = sum(size.samples for size in sizes), sum(size.items for size in sizes)
        if processes > 1:
            of_all = sum_over_processes([samples, items])
            return cls(of_all[0], of_all[1], processes)
        return cls(samples, items) if len(sizes) > 1 else None

    def weights_of(self, batch: BatchSize) -> tuple[Tensor | float, Tensor | float]:
        """Return the weights of a batch's task loss and alignment loss; a step's sum to P over all P processes."""
        items, samples = (
            total.clamp(min=1) if isinstance(total, Tensor) else max(total, 1) for total in (self.items, self.samples)
        )
        return self.processes * batch.items / items, self.processes * batch.samples / samples  # P n_b / N


def without_labels(batch: Any) -> Any:
    """Return a batch in which a loss ignores all labels, for counting them."""
    if not isinstance(batch, Mapping):
        return batch
    ignored = {
        name: torch.full_like(batch[name], IGNORED_LABEL)
        for name in ("labels", "shift_labels")
        if _is_column(batch.get(name))
    }
    return {**batch, **ignored}


def weighted(loss: Tensor, weight: Tensor | float) -> Tensor:
    """Return the loss times its weight; 0 where the weight is 0, because a mean over nothing is NaN."""
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, loss * weight.to(loss.device), 0.0)
    return loss if weight == 1.0 else loss * weight if weight > 0 else loss.nan_to_num() * 0.0


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
