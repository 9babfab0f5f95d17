"""How far the function of a model is from another's, such as that of the same seed's plain training, on the same texts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.function_change import attention_change, product_change, total_variation
from alignattn.finetuning.heads import RecordedModel
from alignattn.patching.heads import BalancedHeads, balanced_heads
from alignattn.utils.errors import AlignAttnError

MULTI_LABEL = "multi_label_classification"
"""A `problem_type` of a model's config."""


@dataclass(frozen=True)
class FunctionChange:
    """How far a model is from a reference.

    Attributes:
        attention: `[L, H]`, total variation of the attention weights, mean over the real queries of a text and over texts.
        products: `[L, H]`, relative change of W_Qᵀ W_K; NaN where scores are no products of plain projections.
        predictions: total variation of what is predicted, mean over texts (words, of tags); None without a common head
            that predicts classes.
        differing: share of the predictions whose class differs; None likewise.
        num_texts: that were compared on.
    """

    attention: Tensor
    products: Tensor
    predictions: float | None
    differing: float | None
    num_texts: int


def measure_change(
    model: RecordedModel, reference: RecordedModel, batches: Iterable[Mapping[str, Tensor]]
) -> FunctionChange:
    """Return how far a model is from a reference of the same shape and vocabulary.

    Args:
        model: whose change is measured.
        reference: what it is compared with.
        batches: what both read, padded or not.
    """
    moved, variations, differing = [], [], []
    for batch in batches:
        (outputs, layers), (of_reference, reference_layers) = model.forward(batch), reference.forward(batch)
        moved.append(
            torch.stack(
                [
                    attention_change(layer.weights, other.weights, layer.mask)
                    for layer, other in zip(layers, reference_layers, strict=True)
                ],
                dim=1,
            )
        )
        predicted = [_distributions(one, batch, model.model.config) for one in (outputs, of_reference)]
        for own, other in zip(*predicted, strict=False):
            if own.shape == other.shape:
                variations.append(total_variation(own, other))
                differing.append(own.argmax(dim=-1) != other.argmax(dim=-1))
    by_text = torch.cat(moved)
    return FunctionChange(
        attention=by_text.mean(dim=0),
        products=_product_changes(model, reference, by_text.shape[1:]),
        predictions=float(torch.cat(variations).mean()) if variations else None,
        differing=float(torch.cat(differing).double().mean()) if differing else None,
        num_texts=len(by_text),
    )


def _distributions(outputs: Mapping[str, Any], batch: Mapping[str, Tensor], config: Any) -> list[Tensor]:
    """Return the distributions that a head predicts, `[N, C]` each; none of one that predicts scores, or of no head."""
    real = batch["attention_mask"].bool()
    if outputs.get("start_logits") is not None:
        ends = (outputs["start_logits"], outputs["end_logits"])
        return [logits.double().masked_fill(~real, -torch.inf).softmax(dim=-1) for logits in ends]
    logits = outputs.get("logits")
    if logits is None or logits.shape[-1] == 1:
        return []
    if getattr(config, "problem_type", None) == MULTI_LABEL:
        holds = logits.double().sigmoid().flatten()
        return [torch.stack([1 - holds, holds], dim=-1)]
    return [F.softmax((logits[real] if logits.ndim > 2 else logits).double(), dim=-1)]


def _product_changes(model: RecordedModel, reference: RecordedModel, shape: torch.Size) -> Tensor:
    unknown = torch.full(shape, torch.nan, dtype=torch.float64)
    try:
        found = [_in_order(balanced_heads(one.model)) for one in (model, reference)]
    except AlignAttnError:
        return unknown
    if not (len(found[0]) == len(found[1]) and len(found[0]) in (1, len(unknown))):
        return unknown
    changes = [
        product_change(own.query[0], own.key[0], other.query[0], other.key[0])
        for own, other in zip(*found, strict=True)
    ]
    # A module that several layers share has one product.
    return torch.stack(changes).expand(shape)


def _in_order(heads: list[BalancedHeads]) -> list[BalancedHeads]:
    return sorted(heads, key=lambda part: part.slots.layer)
