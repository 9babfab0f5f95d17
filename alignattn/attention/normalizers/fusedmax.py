"""Fusedmax: a sparse distribution over segments of neighbours that share one weight."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
    return normalize(lambda shifted, attendable: _fusedmax(shifted, attendable, weight), scores, mask)


def _check_weight(weight: object) -> None:
    if not is_number(weight) or weight <= 0:
        raise invalid("fusedmax", "weight", weight, "a number above 0 (for 0, choose sparsemax)")


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _fusedmax(scores: Tensor, mask: Tensor | None, weight: float) -> Tensor:
    # Which operations follow depends on the data: a compiled model breaks its graph here.
    if mask is None:
        return _apply(scores, None, weight)
    counts = mask.sum(dim=-1)
    if not (mask[..., 1:] & ~mask[..., :-1]).any():
        return _apply(scores, counts, weight)
    order = (~mask).byte().argsort(dim=-1, stable=True)
    weights = _apply(scores.gather(-1, order), counts, weight)
    return torch.zeros_like(weights).scatter(-1, order, weights)


def _apply(scores: Tensor, counts: Tensor | None, weight: float) -> Tensor:
    result: Tensor = _Fusedmax.apply(scores, counts, weight)  # type: ignore[no-untyped-call]
    return result


class _Fusedmax(torch.autograd.Function):
    """Fusedmax of scores `[..., m]` whose first `counts[...]` positions are real (all of them, where None)."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, counts: Tensor | None, weight: float) -> Tensor:
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
        ctx.save_for_backward(weights, is_fused.T, order)
        return _in_former_order(weights, order).view(scores.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        weights, is_fused, order = ctx.saved_tensors
        gradient = grad_outputs[0].reshape(weights.shape)
        if order is not None:
            gradient = gradient[order]
        in_support = weights > 0
        on_support = torch.where(in_support, gradient, 0)
        mean = on_support.sum(dim=-1, keepdim=True) / in_support.sum(dim=-1, keepdim=True)
        to_denoised = torch.where(in_support, gradient - mean, 0)
        # The support is a union of fused groups, and a group's value is the mean of its scores plus a constant.
        group = (~is_fused).flatten().cumsum(dim=0) - 1
        sizes = torch.bincount(group)
        sums = to_denoised.new_zeros(len(sizes)).index_add_(0, group, to_denoised.flatten())
        to_scores = (sums / sizes)[group].view(weights.shape)
        return _in_former_order(to_scores, order).view(grad_outputs[0].shape), None, None


def _in_former_order(rows: Tensor, order: Tensor | None) -> Tensor:
    return rows if order is None else torch.empty_like(rows).index_copy_(0, order, rows)


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
        return _fusedmax(scores, mask, self.weight)
