"""Alignment of means."""

from typing import Any

import torch
from torch import Tensor

from alignattn.attention.alignment.pooled import PooledAlignment, rounding, share_of_a_point
from alignattn.attention.derivatives import once_differentiable


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
