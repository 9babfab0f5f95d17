"""Alignment of means and covariances (Dowson & Landau 1982)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from alignattn.attention.alignment.means import PooledAlignment, rounding, share_of_a_point
from alignattn.attention.derivatives import once_differentiable

SHRINKAGE = 1e-3
"""Share of the spread that is added to the variances of queries and keys, equally in every direction."""


class MomentsAlignment(PooledAlignment):
    """The squared 2-Wasserstein distance of the Gaussians with the clouds' means and covariances.

        |μ_q - μ_k|² + tr(Σ_q + Σ_k - 2 (Σ_q^(1/2) Σ_k Σ_q^(1/2))^(1/2)),

    in units of the squared spread s² of both clouds (`PooledAlignment`). Dowson & Landau 1982, "The Fréchet distance
    between multivariate normal distributions", eq. 16. The same multiple of the identity is added to both covariances,
    so that they are regular even with fewer tokens than dimensions, and equal clouds have distance 0.

    Let T be the optimal map from the first centred Gaussian to the second, T Σ_q T = Σ_k. The trace of the root is
    tr(T Σ_q) = tr(T⁻¹ Σ_k), and the second term is

        tr((I - T) Σ_q) + tr((I - T⁻¹) Σ_k),

    where I - T and I - T⁻¹ are also its derivatives with respect to Σ_q and Σ_k, as if T were constant. They are
    computed in float64: in float32 the smallest eigenvalues would be noise.
    """

    def _distances(self, points: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        gap, covariances, rounded = _Moments.apply(points, real)  # type: ignore[no-untyped-call]
        squared_gap = gap.square().sum(dim=-1)  # |μ_q - μ_k|²
        traces = covariances.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        squared_spread = traces.mean(dim=1) + squared_gap / 4 + rounded
        # In units of s² the traces sum to at most 2, which bounds the eigenvalues for `maps_by_products`.
        ridge = SHRINKAGE / self.head_dim
        identity = torch.eye(self.head_dim, dtype=torch.float64, device=points.device)
        sigma = (covariances / squared_spread[:, None, :, None, None]).double() + ridge * identity
        # Without a gradient through T: the equation's derivatives are I - T and I - T⁻¹ as if T were constant.
        with torch.no_grad():
            map_to_key, map_to_query = transport_maps(sigma[:, 0], sigma[:, 1], ridge)  # T and T⁻¹
            to_sigma = identity - torch.stack([map_to_key, map_to_query], dim=1)
        of_means = squared_gap / squared_spread
        # tr((I - T) Σ_q) + tr((I - T⁻¹) Σ_k): tr(A B) of symmetric A, B is the sum of the products of their entries.
        of_covariances = (to_sigma * sigma).sum(dim=(1, 3, 4))
        return of_means + of_covariances.to(of_means.dtype), of_means.detach().sqrt()


def transport_maps(of_query: Tensor, of_key: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Return T with T Σ_q T = Σ_k, and its inverse; NaN for covariances that are not finite.

    Args:
        of_query: Σ_q, `[C, H, d, d]`, float64.
        of_key: Σ_k, likewise. The traces of both sum to at most 2 + 2 d `ridge`.
        ridge: a lower bound of the eigenvalues of both.
    """
    if of_query.device.type == "cpu":  # eigenvalues take a third of the products' time
        return maps_by_eigenvalues(of_query, of_key, ridge)
    # On a GPU eigenvalues are found matrix by matrix, and the host waits.
    return maps_by_products(of_query, of_key, ridge)


def maps_by_eigenvalues(of_query: Tensor, of_key: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Return T and T⁻¹ by the eigenvalues of Lᵀ Σ_k L with Σ_q = L Lᵀ; arguments as for `transport_maps`.

    With Lᵀ Σ_k L = V diag(λ) Vᵀ, T is L⁻ᵀ V diag(√λ) Vᵀ L⁻¹: then T Σ_q T = L⁻ᵀ V diag(λ) Vᵀ L⁻¹ = Σ_k.
    """
    factor = torch.linalg.cholesky_ex(of_query)[0]
    product = factor.mT @ of_key @ factor
    # Of NaN there are no eigenvalues, and torch raises an error that does not say so.
    is_lost = ~product.isfinite().flatten(2).all(dim=-1)[..., None]
    values, vectors = torch.linalg.eigh(product.masked_fill(is_lost[..., None], 0))
    # Each λ is the product of two eigenvalues of at least `ridge`; rounding may leave it below.
    roots = values.clamp_min(ridge**2).sqrt().masked_fill(is_lost, torch.nan)[..., None, :]
    of_map = torch.linalg.solve_triangular(factor.mT, vectors, upper=True)  # L⁻ᵀ V
    of_inverse = factor @ vectors  # L V
    return of_map * roots @ of_map.mT, of_inverse / roots @ of_inverse.mT


def maps_by_products(of_query: Tensor, of_key: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Return T and T⁻¹ by products of matrices alone; arguments as for `transport_maps`.

    The coupled Newton-Schulz iteration (Higham 2008, "Functions of Matrices", chapter 6) starts at Y = Σ_q and Z = Σ_k:
    with P = a I - b Z Y, Y becomes Y P and Z becomes P Z. The eigenvalues of Z Y are at first those of Σ_k Σ_q, the
    squares of positive numbers x, and each step makes a x - b x³ of x. When all x are 1, Z is T and Y is T⁻¹.

    All x lie between `ridge` and 1 + `ridge`: the eigenvalues of Σ_q and Σ_k are at least `ridge`; the largest
    exceed their traces before the ridge was added by at most `ridge`, and two numbers that sum to 2 + 2 `ridge` have a
    product of at most (1 + `ridge`)². A larger upper bound leaves room for rounding.
    """
    y, z = of_query.flatten(0, 1), of_key.flatten(0, 1)
    identity = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
    for linear, cubic in newton_schulz_steps(ridge, 1 + SHRINKAGE):
        p = torch.baddbmm(identity, z, y, beta=linear, alpha=-cubic)
        # In this order rounding does not grow from step to step.
        y, z = y @ p, p @ z
    return z.view_as(of_key), y.view_as(of_query)


def newton_schulz_steps(low: float, high: float) -> Iterator[tuple[float, float]]:
    """Yield the coefficients a, b of steps a x - b x³ that bring all x from `low` to `high` to 1, in float64.

    Each is the cubic that is nearest to 1 on the interval, where it has equal values at both ends and exceeds 1 at its
    maximum by as much as it misses 1 there (Chen & Chow 2014, "A stable scaling of Newton-Schulz for improving the sign
    function computation of a Hermitian matrix"). At a condition of 4e9, the bound for 64 dimensions, there are 16.
    """
    while high - low > 1e-15:
        ratio = low**2 + low * high + high**2  # a / b
        at_ends, at_maximum = low * (ratio - low**2), 2 * (ratio / 3) ** 1.5
        cubic = 2 / (at_ends + at_maximum)
        yield cubic * ratio, cubic
        low, high = cubic * at_ends, cubic * at_maximum


class _Moments(torch.autograd.Function):
    """μ_q - μ_k, the covariances of queries and keys, and the squared spread that rounding may leave."""

    @staticmethod
    def forward(ctx: Any, points: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return `[C, H, d]`, `[C, 2, H, d, d]` and `[C, H]`; arguments as for `PooledAlignment._distances`."""
        share = share_of_a_point(real)
        mean = (real[:, :, None] @ points.flatten(3)).unflatten(-1, points.shape[3:]).transpose(2, 3) * share
        centred = points.transpose(2, 3).clone(memory_format=torch.contiguous_format).sub_(mean)
        # A mean far from the origin is rounded, so the points are centred twice: the remaining mean is near it.
        remaining_mean = real[:, :, None, None] @ centred * share
        centred.sub_(remaining_mean).mul_(real[:, :, None, :, None])
        # A product Xᵀ X has no negative eigenvalues. With a mean's square subtracted it would have some by rounding,
        # and the iteration would diverge.
        covariances = centred.mT @ centred * share
        ctx.save_for_backward(centred, real, share)
        difference = (mean[:, 0] - mean[:, 1]) + (remaining_mean[:, 0] - remaining_mean[:, 1])
        rounded = rounding(mean.squeeze(3))
        ctx.mark_non_differentiable(rounded)
        return difference.squeeze(2), covariances, rounded

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_difference: Tensor, to_covariances: Tensor, _: Tensor) -> tuple[Tensor, None]:
        """Return the gradient with respect to the points, w ((G + Gᵀ) (x - μ) ± g).

        w is the share of a real point, G and g are the gradients with respect to Σ and to μ_q - μ_k.
        """
        centred, real, share = ctx.saved_tensors
        slope = (to_covariances + to_covariances.mT) * share
        offset = torch.stack([to_difference, -to_difference], dim=1)[:, :, :, None] * share
        gradient = torch.baddbmm(offset.flatten(0, 2), centred.flatten(0, 2), slope.flatten(0, 2)).view_as(centred)
        return gradient.mul_(real[:, :, None, :, None]).transpose(2, 3), None
