"""Alignment by the maximum mean discrepancy with the energy kernel (Székely & Rizzo 2013; Sejdinovic et al. 2013)."""

from typing import Any

import torch
from torch import Tensor

from alignattn.attention.alignment.calls import Call
from alignattn.attention.alignment.pooled import PooledAlignment, StandardizedClouds
from alignattn.attention.choices import HeadReduction
from alignattn.attention.derivatives import once_differentiable

POINTS = 256
SMOOTHING = 1e-3
"""Added in quadrature to a distance, in units of the spread: the gradient at coinciding points stays finite."""


class MMDAlignment(PooledAlignment):
    """The energy distance 2 E|q - k| - E|q - q'| - E|k - k'|, in units of the clouds' spread (`StandardizedClouds`).

    Twice the squared maximum mean discrepancy of the kernel -|x - y| (Sejdinovic et al. 2013, "Equivalence of
    distance-based and RKHS-based statistics in hypothesis testing", theorem 22), which has no bandwidth to choose; 0
    if and only if the clouds are equal. The expectations are means over all pairs, including a point with itself: -wᵀ D
    w with weights w of 1/P at queries and -1/P at keys, and D the distances within the union of both.

    The other arguments are those of `Alignment`.

    Args:
        points: maximum number of points of a cloud; time and memory grow with its square.
    """

    def __init__(
        self, head_dim: int, *, num_layers: int = 1, points: int = POINTS, head_reduction: HeadReduction = "sum"
    ) -> None:
        super().__init__(head_dim, num_layers=num_layers, points=points, head_reduction=head_reduction)

    def _elements(self, call: Call) -> int:
        return max(super()._elements(call), call.heads * (2 * self._points_of(call)) ** 2)

    def _distances(self, points: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        clouds = StandardizedClouds.of(points, weight)
        union = clouds.points.transpose(1, 2).flatten(2, 3)
        signed = torch.cat((weight[:, 0], -weight[:, -1]), dim=-1)[:, None, :, None]
        distances: Tensor = SmoothEnergy.apply(union, signed)  # type: ignore[no-untyped-call]
        return distances, clouds.gap


class SmoothEnergy(torch.autograd.Function):
    """-Σ_ij w_i w_j D_ij with D_ij = (|z_i - z_j|² + δ²)^(1/2), of points z `[..., P, d]` and weights w `[..., P, 1]`.

    With R = 1 / D one product of R with w, w |z|² and w z gives the value and its gradient,
    -2 w_i Σ_j w_j (z_i - z_j) / D_ij: no P × P tensor is kept for backward.
    """

    @staticmethod
    def forward(ctx: Any, points: Tensor, weight: Tensor) -> Tensor:
        """Return the values, `[...]`."""
        squares = points.square().sum(dim=-1, keepdim=True)
        weight = weight.expand_as(squares)
        distances = (points @ points.mT).mul_(-2).add_(squares + SMOOTHING**2).add_(squares.mT)
        inverse = distances.clamp_min_(SMOOTHING**2).rsqrt_()
        product = inverse @ torch.cat((weight, weight * squares, weight * points), dim=-1)
        of_one, of_squares, of_points = product.split((1, 1, points.shape[-1]), dim=-1)
        total = (squares + SMOOTHING**2) * of_one + of_squares - 2 * (points * of_points).sum(dim=-1, keepdim=True)
        ctx.save_for_backward(-2 * weight * (of_one * points - of_points))
        return -(weight * total).sum(dim=(-2, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        """Return the gradient with respect to the points."""
        (slope,) = ctx.saved_tensors
        return slope * upstream[..., None, None], None
