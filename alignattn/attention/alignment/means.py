"""Alignments of the clouds of all tokens in a batch, without an adversary, and the simplest: that of their means."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from alignattn.attention.alignment.base import Alignment
from alignattn.attention.alignment.calls import TokenMeasure
from alignattn.attention.alignment.networks import NORM_EPSILON
from alignattn.attention.choices import HeadReduction
from alignattn.attention.derivatives import once_differentiable


class PooledAlignment(Alignment):
    """A distance between the clouds of queries and keys of all real tokens in a batch, for each head.

    It has no networks. It is in units of s², the mean squared distance of the points of both clouds from their joint
    mean, and so invariant to a common scale and shift:

        s² = (tr Σ_q + tr Σ_k) / 2 + |μ_q - μ_k|² / 4.

    A cloud covers a whole batch, so the mean of the distances of two half batches is not the distance of the whole:
    with gradient accumulation or several processes, gradients depend on the split.

    Diagnostic: `mean_gap`, |μ_q - μ_k| / s, mean over heads: 0 for equal means, 2 for two distant points.
    """

    diagnostic = "mean_gap"

    def __init__(self, head_dim: int, *, num_layers: int = 1, head_reduction: HeadReduction = "sum") -> None:
        super().__init__(head_dim, num_layers=num_layers, head_reduction=head_reduction)

    def compute(self, features: Tensor, tokens: TokenMeasure, layers: slice) -> tuple[Tensor, Tensor]:
        """Return the distances of the clouds and of their means."""
        if features.numel() == 0:
            nothing = features.sum(dim=(1, 2, 3, 4, 5))
            return nothing, nothing.detach()
        points = features.flatten(2, 3)
        if tokens.mask is None:
            real = points.new_ones(1, 1, points.shape[2])
        else:
            real = tokens.mask.flatten(2).to(points.dtype)
        distances, gaps = self._distances(points, real)
        # Without a real token there is no cloud.
        return (distances * real.any(dim=-1).all(dim=-1, keepdim=True)).sum(dim=1), gaps.mean(dim=1)

    @abstractmethod
    def _distances(self, points: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distance and the gap of the means of each head, both `[C, H]`.

        Args:
            points: `[C, 2, P, H, d]`.
            real: `[1 or C, 1 or 2, P]`, 1 at real points, 0 at padding; for both clouds, or for each. A sum over real
                points divided by their number has no rounding of weights, which TF32 would round to three digits.
        """


def share_of_a_point(real: Tensor) -> Tensor:
    """Return 1 over the number of real points, `[1 or C, 1 or 2, 1, 1, 1]`."""
    return (1 / real.sum(dim=-1).clamp(min=1))[..., None, None, None]


def rounding(means: Tensor) -> Tensor:
    """Return the squared spread that rounding may leave between equal points, `[C, H]`, for means `[C, 2, H, d]`."""
    return (means.detach().square().sum(dim=-1).mean(dim=1) + 1) * NORM_EPSILON**2


class MeansAlignment(PooledAlignment):
    """The squared distance of the clouds' means, |μ_q - μ_k|² / s², in units of both clouds' squared spread.

    `PooledAlignment` defines s². It is the first term of `MomentsAlignment`. The gradient passes through s², too.
    """

    def _distances(self, points: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        difference, variances, rounded = _MeansAndVariances.apply(points, real)  # type: ignore[no-untyped-call]
        squared_gap = difference.square().sum(dim=-1)
        distances = squared_gap / (variances.mean(dim=1) + squared_gap / 4 + rounded)
        return distances, distances.detach().sqrt()


class _MeansAndVariances(torch.autograd.Function):
    """μ_q - μ_k, tr Σ_q and tr Σ_k, and the squared spread that rounding may leave.

    The gradient with respect to a point is affine in it, so backward needs the points and the means alone.
    """

    @staticmethod
    def forward(ctx: Any, points: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `[C, H, d]`, `[C, 2, H]` and `[C, H]`; arguments as for `PooledAlignment._distances`."""
        share = share_of_a_point(real)
        # Near the origin sums keep their precision, and any real point is near enough to the mean.
        origin = points.take_along_dim(real.argmax(dim=-1)[..., None, None, None], dim=2)
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
        """Return the gradient with respect to the points, w (2 v (x - μ) ± g).

        w is the share of a real point, v and g are the gradients with respect to the variance and to μ_q - μ_k.
        """
        points, mean, real, share = ctx.saved_tensors
        # Contiguous, so that an elementwise loop runs over all heads of a token at once.
        slope = (2 * to_variances[:, :, None, :, None] * share).expand_as(mean).contiguous()
        offset = torch.stack([to_difference, -to_difference], dim=1)[:, :, None] * share - slope * mean
        return torch.addcmul(offset, points, slope).mul_(real[..., None, None]), None
