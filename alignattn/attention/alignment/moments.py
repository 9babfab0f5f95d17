"""Alignment of means and covariances (Dowson & Landau 1982)."""

import torch
from torch import Tensor

from alignattn.attention.alignment.pooled import PooledAlignment, rounding
from alignattn.attention.choices import HeadReduction

SHRINKAGE = 1e-3
"""Share of the spread that is added to the variances of queries and keys, equally in every direction."""


class MomentsAlignment(PooledAlignment):
    """The squared 2-Wasserstein distance of the Gaussians with the clouds' means and covariances.

        |μ_q - μ_k|² + tr(Σ_q + Σ_k - 2 (Σ_q^(1/2) Σ_k Σ_q^(1/2))^(1/2)),

    in units of the squared spread of both clouds (`StandardizedClouds`). Dowson & Landau 1982, "The Fréchet distance
    between multivariate normal distributions", eq. 16. The same multiple of the identity is added to both covariances,
    so that they are regular even with fewer tokens than dimensions, and equal clouds have distance 0.

    With Σ_q = L Lᵀ the trace of the root is the sum of the square roots of the eigenvalues of Lᵀ Σ_k L, in float64: in
    float32 the smallest would be noise. On a GPU the host checks the eigenvalues, once for each group of layers.
    """

    def __init__(self, head_dim: int, *, num_layers: int = 1, head_reduction: HeadReduction = "sum") -> None:
        super().__init__(head_dim, num_layers=num_layers, head_reduction=head_reduction)

    def _distances(self, points: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        root = weight.sqrt()[..., None, None]
        # Covariances are shift-invariant, and near the origin products keep their precision.
        means = weight[:, :, None] @ points.detach().flatten(3)
        start = means.mean(dim=1, keepdim=True).unflatten(-1, points.shape[3:])
        moved = ((points - start) * root).transpose(2, 3).contiguous()
        means = root.transpose(2, 3).mT @ moved
        covariances = moved.mT @ moved - means.mT @ means
        middle = means.mean(dim=1, keepdim=True)
        from_middle = (means - middle).square().sum(dim=(3, 4))
        traces = covariances.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        spread = (traces + from_middle).mean(dim=1) + rounding(start.squeeze(2) + means.squeeze(3))
        # Both means have the same distance from their middle.
        gap = 4 * from_middle.mean(dim=1) / spread
        units = (covariances / spread[:, None, :, None, None]).double()
        return gap + self._bures(units).to(gap.dtype), gap.detach().sqrt()

    def _bures(self, covariances: Tensor) -> Tensor:
        size = covariances.shape[-1]
        ridge = torch.eye(size, dtype=covariances.dtype, device=covariances.device) * (SHRINKAGE / size)
        of_query, of_key = (covariances + ridge).unbind(1)
        factor = torch.linalg.cholesky_ex(of_query)[0]
        product = factor.mT @ of_key @ factor
        # Of NaN there are no eigenvalues, and torch raises an error that does not say so.
        is_lost = ~product.isfinite().all(dim=-1).all(dim=-1)
        eigenvalues = torch.linalg.eigvalsh(product.masked_fill(is_lost[..., None, None], 0))
        overlap = eigenvalues.clamp_min(0).sqrt().sum(dim=-1).masked_fill(is_lost, torch.nan)
        return (of_query + of_key).diagonal(dim1=-2, dim2=-1).sum(dim=-1) - 2 * overlap
