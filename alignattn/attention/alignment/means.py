"""Alignment of means."""

from typing import Any

import torch
from torch import Tensor

from alignattn.attention.alignment.pooled import PooledAlignment, rounding, shares
from alignattn.attention.choices import HeadReduction
from alignattn.attention.derivatives import once_differentiable


class MeansAlignment(PooledAlignment):
    """The squared distance of the clouds' means, in units of the squared spread of both clouds.

        |μ_q - μ_k|² / s²,    s² = (E|q - μ_q|² + E|k - μ_k|²) / 2 + |μ_q - μ_k|² / 4,

    where s² is the mean squared distance of all points from the joint mean (`StandardizedClouds`). It is the first term
    of `MomentsAlignment`. The gradient passes through s², too.
    """

    def __init__(self, head_dim: int, *, num_layers: int = 1, head_reduction: HeadReduction = "sum") -> None:
        super().__init__(head_dim, num_layers=num_layers, head_reduction=head_reduction)

    def _distances(self, points: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        difference, variances, rounded = _MeansAndVariances.apply(points, weight)  # type: ignore[no-untyped-call]
        squared_gap = difference.square().sum(dim=-1)
        distances = squared_gap / (variances.mean(dim=1) + squared_gap / 4 + rounded)
        return distances, distances.detach().sqrt()


class _MeansAndVariances(torch.autograd.Function):
    """μ_q - μ_k, E|q - μ_q|² and E|k - μ_k|², and the squared spread that rounding may leave.

    The gradient with respect to a point is affine in it.
    """

    @staticmethod
    def forward(ctx: Any, points: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `[C, H, d]`, `[C, 2, H]` and `[C, H]`; arguments as for `PooledAlignment._distances`."""
        real, share = shares(weight)
        # Near the origin sums keep their precision, and any real point is near enough to the mean.
        origin = points.take_along_dim(weight.argmax(dim=-1)[..., None, None, None], dim=2)
        near = points - origin
        mean = (real[:, :, None] @ near.flatten(3)).view_as(origin) * share
        squares = (real[:, :, None] @ near.square_().flatten(3)).view_as(origin) * share
        variances = (squares - mean.square()).sum(dim=(2, 4))
        difference = (origin[:, 0] - origin[:, 1]) + (mean[:, 0] - mean[:, 1])
        mean += origin
        rounded = rounding(mean.squeeze(2))
        ctx.save_for_backward(points, mean, real, share)
        ctx.mark_non_differentiable(rounded)
        return difference.squeeze(1), variances, rounded

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_difference: Tensor, to_variances: Tensor, _: Tensor) -> tuple[Tensor, None]:
        """Return the gradient with respect to the points, w (2 v (x - μ) ± g)."""
        points, mean, real, share = ctx.saved_tensors
        # Contiguous, so that an elementwise loop runs over all heads of a token at once.
        slope = (2 * to_variances[:, :, None, :, None] * share).expand_as(mean).contiguous()
        offset = torch.stack([to_difference, -to_difference], dim=1)[:, :, None] * share - slope * mean
        return torch.addcmul(offset, points, slope).mul_(real[..., None, None]), None
