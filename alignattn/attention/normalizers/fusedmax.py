"""Fusedmax: a sparse distribution over segments of neighbours that share one weight."""

from typing import Any

import torch
from torch import Tensor

from alignattn.attention.derivatives import check_reverse_mode
from alignattn.attention.normalizers.base import Normalizer, invalid, is_number, normalize
from alignattn.attention.normalizers.sparse import sparsemax_rule
from alignattn.attention.normalizers.total_variation import denoise

DEFAULT_WEIGHT = 0.1
SPARSEMAX_REACH = 1.0
"""Sparsemax gives zero to what lies this far, or farther, below the largest value of its row."""


def fusedmax(scores: Tensor, weight: float = DEFAULT_WEIGHT, mask: Tensor | None = None) -> Tensor:
    """Return argmin over the simplex of ½‖p - s‖² + λ Σ|p_i - p_(i-1)|.

    Niculae & Blondel 2017, "A Regularized Framework for Sparse and Structured Neural Attention": the
    proximal operator of total variation, then sparsemax. Masked positions are taken out before it is judged which
    positions are neighbours. The result and its Jacobian are exact.

    Args:
        scores: `[..., m]`.
        weight: λ, above 0.
        mask: bool, broadcastable to the scores, True = may be attended; None = every position may.

    Returns:
        `[..., m]`, see `normalize`.

    Raises:
        AlignAttnError: if the weight is not above 0, or the shapes do not fit.
    """
    _check_weight(weight)
    return normalize(lambda shifted, attendable: _weights(shifted, attendable, weight), scores, mask)


def _weights(scores: Tensor, mask: Tensor | None, weight: float) -> Tensor:
    check_reverse_mode("fusedmax", scores)
    weights: Tensor = _fused(scores, mask, weight)[0]
    return weights


def _check_weight(weight: object) -> None:
    if not is_number(weight) or weight <= 0:
        raise invalid("fusedmax", "weight", weight, "a number above 0 (for 0, choose sparsemax)")


@torch.library.custom_op("alignattn::fusedmax", mutates_args=())
def _fused(scores: Tensor, mask: Tensor | None, weight: float) -> tuple[Tensor, Tensor]:
    """Fusedmax of scores `[..., m]`, and for each position the first of those in its row it is fused with, int32.

    Which operations it takes depends on the data: to the compiler it is one.
    """
    if mask is None:
        return _of_first(scores, None, weight)
    counts = mask.sum(dim=-1)
    if not (mask[..., 1:] & ~mask[..., :-1]).any():
        return _of_first(scores, counts, weight)
    order = (~mask).byte().argsort(dim=-1, stable=True)
    weights, group = _of_first(scores.gather(-1, order), counts, weight)
    return torch.zeros_like(weights).scatter_(-1, order, weights), torch.zeros_like(group).scatter_(-1, order, group)


def _of_first(scores: Tensor, counts: Tensor | None, weight: float) -> tuple[Tensor, Tensor]:
    # Of rows whose first `counts[...]` positions are real (all of them, where None).
    rows = scores.reshape(-1, scores.shape[-1])
    order = None
    if counts is not None:
        counts, order = counts.flatten().sort()
        rows = rows[order]
    # Total variation moves a score by 2λ at most, so what lies 1 + 2λ below the largest gets no weight, and of
    # what lies 2λ further below, its neighbours see only that it is low: to lift it changes no weight.
    floor = -(SPARSEMAX_REACH + 4 * weight)
    denoised, is_fused = denoise(rows.T.clamp(min=floor), counts, weight)
    weights = sparsemax_rule(denoised.T.contiguous(), None)
    position = torch.arange(len(is_fused), dtype=torch.int32, device=scores.device)[:, None]
    group = torch.where(is_fused, 0, position).cummax(dim=0).values.T
    return _in_former_order(weights, order).view(scores.shape), _in_former_order(group, order).view(scores.shape)


def _in_former_order(rows: Tensor, order: Tensor | None) -> Tensor:
    return rows.contiguous() if order is None else rows.new_empty(rows.shape).index_copy_(0, order, rows)


@_fused.register_fake
def _(scores: Tensor, mask: Tensor | None, weight: float) -> tuple[Tensor, Tensor]:
    weights = torch.empty_like(scores, memory_format=torch.contiguous_format)
    return weights, torch.empty_like(weights, dtype=torch.int32)


def _keep_for_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output)


def _gradient(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor, None, None]:
    weights, group = ctx.saved_tensors
    in_support = weights > 0
    on_support = torch.where(in_support, gradient, 0)
    mean = on_support.sum(dim=-1, keepdim=True) / in_support.sum(dim=-1, keepdim=True)
    to_denoised = torch.where(in_support, gradient - mean, 0)
    # The support is a union of fused groups, and a group's value is the mean of its scores plus a constant.
    group = group.long()
    sizes = torch.zeros_like(weights).scatter_add(-1, group, torch.ones_like(weights))
    sums = torch.zeros_like(weights).scatter_add(-1, group, to_denoised)
    return (sums / sizes.clamp(min=1)).gather(-1, group), None, None


_fused.register_autograd(_gradient, setup_context=_keep_for_gradient)


class Fusedmax(Normalizer):
    """`fusedmax` as a module.

    Args:
        head_dim: size d of a head's query.
        num_heads: H.
        weight: λ, above 0.

    Raises:
        AlignAttnError: if the weight is not above 0.
    """

    def __init__(self, head_dim: int, num_heads: int, *, weight: float = DEFAULT_WEIGHT) -> None:
        super().__init__(head_dim, num_heads)
        _check_weight(weight)
        self.weight = weight

    def _weights(self, scores: Tensor, mask: Tensor | None, query: Tensor | None) -> Tensor:
        return _weights(scores, mask, self.weight)
