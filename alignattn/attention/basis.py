"""The basis of a head in which queries and keys have equal means and covariances, from their moments in closed form.

A shift-invariant normalizer needs q · k only up to a constant per query. So for any invertible A and any vector c of a
head, q' = Aᵀ q and k' = A⁻¹ k + c give the same attention as q and k (van Nierop 2024, arXiv 2412.14543). Let
S = Σ_q^(-1/2) (Σ_q^(1/2) Σ_k Σ_q^(1/2))^(1/2) Σ_q^(-1/2), the Monge map between two Gaussians, A = S^(1/2), which is
symmetric, and c = A μ_q - A⁻¹ μ_k. Then q' and k' have equal means and equal covariances, A Σ_q A = A⁻¹ Σ_k A⁻¹,
because S Σ_q S = Σ_k.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

Form = Literal["full", "centre", "uncentred"]
"""The moments that become equal: means and covariances; means alone, A = I; or uncentred second moments, c = 0."""

CONDITION_BOUND = 100.0
"""Maximum ratio of A's eigenvalues: float32 then keeps four digits of the products."""
MIN_VARIANCE = 1e-4
"""Minimum variance along a direction, as a share of the mean variance; covariances with a smaller one are shrunk."""
CONSTANT = 1e-12
"""Variance of points that differ by rounding only, relative to their mean square length."""


def cloud(features: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the real tokens of all samples.

    Args:
        features: `[B, H, n, d]`.
        mask: `[B, n]` bool, True = a real token; None = all are real.

    Returns:
        `[H, N, d]`.
    """
    by_token = features.detach().transpose(1, 2)
    flat = by_token.flatten(0, 1) if mask is None else by_token[mask]
    return flat.transpose(0, 1)


@dataclass(frozen=True)
class Moments:
    """The sums over the points of each head that give means and covariances, in float64.

    Attributes:
        count: number N of points, a scalar.
        total: sum of the points, `[H, d]`.
        outer: sum of their outer products, `[H, d, d]`.
    """

    count: Tensor
    total: Tensor
    outer: Tensor

    @classmethod
    def of(cls, points: Tensor) -> "Moments":
        """Return the moments of points `[H, N, d]`."""
        # Not every device has float64.
        points = points.detach().to("cpu" if points.device.type == "mps" else points.device, torch.float64)
        count = torch.tensor(float(points.shape[1]), dtype=torch.float64, device=points.device)
        return cls(count, points.sum(dim=1), points.mT @ points)

    @classmethod
    def none(cls, num_heads: int, size: int) -> "Moments":
        """Return the moments of no points, for H heads of size d."""
        return cls.of(torch.zeros(num_heads, 0, size))

    def cpu(self) -> "Moments":
        """Return the moments on the CPU."""
        return Moments(self.count.cpu(), self.total.cpu(), self.outer.cpu())

    def packed(self) -> Tensor:
        """Return all sums as one vector; such vectors can be added."""
        return torch.cat([self.count[None], self.total.flatten(), self.outer.flatten()])

    def unpacked(self, vector: Tensor) -> "Moments":
        """Return the moments from a vector of `packed`, in the shapes of these moments."""
        total, outer = vector[1:].split([self.total.numel(), self.outer.numel()])
        return Moments(vector[0], total.view_as(self.total), outer.view_as(self.outer))

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(self.count + other.count, self.total + other.total, self.outer + other.outer)

    @property
    def mean(self) -> Tensor:
        """μ, `[H, d]`."""
        return self.total / self.count

    @property
    def second(self) -> Tensor:
        """Mean outer product, uncentred, `[H, d, d]`."""
        return self.outer / self.count

    @property
    def covariance(self) -> Tensor:
        """Σ, `[H, d, d]`; zero if the points differ by rounding only."""
        covariance = self.second - self.mean[:, :, None] * self.mean[:, None, :]
        is_constant = _trace(covariance) <= CONSTANT * _trace(self.second)
        return covariance.masked_fill(is_constant[:, None, None], 0)


@dataclass(frozen=True)
class Basis:
    """A change of basis of each head, q' = A q and k' = A⁻¹ k + c, that keeps its attention; on the CPU, in float64.

    Attributes:
        matrix: A, symmetric, `[H, d, d]`.
        inverse: A⁻¹, `[H, d, d]`.
        shift: c, `[H, d]`.
        condition: condition number of A, `[H]`.
        shrinkage: share of the identity in the shrunk covariances, the larger of the queries' and the keys', `[H]`.
        is_bounded: whether A was limited: its condition number would exceed the bound, or one of the clouds is a point,
            `[H]` bool.
    """

    matrix: Tensor
    inverse: Tensor
    shift: Tensor
    condition: Tensor
    shrinkage: Tensor
    is_bounded: Tensor

    @classmethod
    def of_logarithm(cls, log_matrix: Tensor, query_mean: Tensor, key_mean: Tensor) -> "Basis":
        """Return the basis with A = exp(B) that makes these means equal.

        Args:
            log_matrix: B, symmetric, `[H, d, d]` float64 on the CPU.
            query_mean: μ_q, `[H, d]`.
            key_mean: μ_k, `[H, d]`.
        """
        matrix, inverse = torch.stack([log_matrix, -log_matrix]).matrix_exp()
        values = torch.linalg.eigvalsh(log_matrix)
        condition = (values[:, -1] - values[:, 0]).exp()
        is_bounded = torch.zeros_like(condition, dtype=torch.bool)
        shift = _shift(matrix, inverse, query_mean, key_mean)
        return cls(matrix, inverse, shift, condition, torch.zeros_like(condition), is_bounded)

    def of_queries(self, query: Tensor) -> Tensor:
        """Return A q of points `[H, N, d]`, in float64."""
        return query.to("cpu", torch.float64) @ self.matrix

    def of_keys(self, key: Tensor) -> Tensor:
        """Return A⁻¹ k + c of points `[H, N, d]`, in float64."""
        return key.to("cpu", torch.float64) @ self.inverse + self.shift[:, None]


def shrunk(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return (1 - ρ) Σ + ρ m I, m the mean variance, with the smallest ρ that gives every direction `MIN_VARIANCE`.

    Args:
        covariance: Σ, `[H, d, d]`.

    Returns:
        The covariances, and ρ `[H]`: 0 where the smallest variance is `MIN_VARIANCE` times the mean or more.
    """
    mean = _trace(covariance) / covariance.shape[-1]
    smallest = torch.linalg.eigvalsh(covariance)[:, 0]
    lacking = (MIN_VARIANCE * mean - smallest).clamp_min(0)
    share = torch.where(lacking > 0, lacking / (mean - smallest), 0)
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    return torch.lerp(covariance, mean[:, None, None] * identity, share[:, None, None]), share


def monge_map(source: Tensor, target: Tensor) -> Tensor:
    """Return S, symmetric and positive, with S Σ_1 S = Σ_2: the optimal transport of one centred Gaussian to another.

    Args:
        source: Σ_1, `[H, d, d]`, not singular.
        target: Σ_2, `[H, d, d]`.

    Returns:
        `[H, d, d]` (Peyré & Cuturi 2019, "Computational Optimal Transport", eq. 2.40).
    """
    root, inverse_root = _power(source, 0.5), _power(source, -0.5)
    return _symmetric(inverse_root @ _power(_symmetric(root @ target @ root), 0.5) @ inverse_root)


def balancing_basis(query: Moments, key: Moments, form: Form = "full") -> Basis:
    """Return the basis in which queries and keys have equal moments.

    Args:
        query: the moments of the queries.
        key: the moments of the keys of the same heads.
        form: the moments that become equal.
    """
    query, key = query.cpu(), key.cpu()
    num_heads, size = query.total.shape
    matrix = torch.eye(size, dtype=torch.float64).repeat(num_heads, 1, 1)
    inverse, condition = matrix, torch.ones(num_heads, dtype=torch.float64)
    shrinkage, is_bounded = torch.zeros_like(condition), torch.zeros(num_heads, dtype=torch.bool)
    if form != "centre":
        spreads = [moments.second if form == "uncentred" else moments.covariance for moments in (query, key)]
        is_point = torch.stack([_trace(spread) == 0 for spread in spreads]).any(dim=0)
        # A point has no spread to scale by: its head keeps A = I.
        spreads = [torch.where(is_point[:, None, None], matrix, spread) for spread in spreads]
        (from_query, first), (from_key, second) = (shrunk(spread) for spread in spreads)
        values, vectors = torch.linalg.eigh(monge_map(from_query, from_key))
        values, is_bounded = _bounded(values.sqrt())
        matrix, inverse = (_symmetric(vectors * part[:, None] @ vectors.mT) for part in (values, 1 / values))
        condition, shrinkage = values[:, -1] / values[:, 0], torch.maximum(first, second)
        is_bounded = is_bounded | is_point
    shift = _shift(matrix, inverse, query.mean, key.mean)
    return Basis(
        matrix, inverse, torch.zeros_like(shift) if form == "uncentred" else shift, condition, shrinkage, is_bounded
    )


def rotary_basis(query: Moments, key: Moments, pairs: int) -> Basis:
    """Return the basis in which queries and keys that are rotated by position have equal mean squares per frequency.

    A rotation by position commutes with scaling and rotating each pair of features that it rotates. Rotating both sides
    does not change their distance, so only one factor per frequency can be chosen.

    Args:
        query: the moments of the queries, rotated or not.
        key: the moments of the keys of the same heads.
        pairs: number p of frequencies; features i and i + p are rotated together, those from 2 p on are not rotated.
    """
    squares = torch.stack([moments.cpu().second.diagonal(dim1=-2, dim2=-1) for moments in (query, key)])
    turned = squares[..., :pairs] + squares[..., pairs : 2 * pairs]
    squares = torch.cat([turned, turned, squares[..., 2 * pairs :]], dim=-1)
    is_point = (squares == 0).any(dim=0)
    values = torch.where(is_point, 1, squares[1] / squares[0].where(~is_point, 1)).pow(1 / 4)
    values, is_bounded = _bounded(values)
    condition = values.amax(dim=-1) / values.amin(dim=-1)
    return Basis(
        matrix=torch.diag_embed(values),
        inverse=torch.diag_embed(1 / values),
        shift=torch.zeros_like(values),
        condition=condition,
        shrinkage=torch.zeros_like(condition),
        is_bounded=is_bounded | is_point.any(dim=-1),
    )


def random_basis(balancing: Basis, query: Moments, key: Moments, form: Form, generator: torch.Generator) -> Basis:
    """Return the control for a balancing basis: A with the same eigenvalues and random eigenvectors, and equal means.

    Attention is the same in both bases; training with Adam and weight decay is not. The comparison therefore shows the
    effect of equal moments.

    Args:
        balancing: the result of `balancing_basis` for the same moments.
        query: as for `balancing_basis`.
        key: as for `balancing_basis`.
        form: `full`, or `uncentred`, whose c is 0.
        generator: draws the eigenvectors, uniform over the rotations (Mezzadri 2007, section 5).
    """
    values = torch.linalg.eigvalsh(balancing.matrix)
    orthogonal, triangular = torch.linalg.qr(torch.randn(balancing.matrix.shape, generator=generator).double())
    vectors = orthogonal * triangular.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    matrix, inverse = (_symmetric(vectors * part[:, None] @ vectors.mT) for part in (values, 1 / values))
    shift = _shift(matrix, inverse, query.cpu().mean, key.cpu().mean)
    shift = torch.zeros_like(shift) if form == "uncentred" else shift
    return replace(balancing, matrix=matrix, inverse=inverse, shift=shift)


def _shift(matrix: Tensor, inverse: Tensor, query_mean: Tensor, key_mean: Tensor) -> Tensor:
    """Return c, for which the means of A q and A⁻¹ k + c are equal."""
    return _times(matrix, query_mean) - _times(inverse, key_mean)


def _bounded(values: Tensor) -> tuple[Tensor, Tensor]:
    """Clip eigenvalues `[H, d]` around their geometric mean where the ratio of two exceeds the bound."""
    exceeds = values.amax(dim=1) > CONDITION_BOUND * values.amin(dim=1)
    middle, reach = values.log().mean(dim=1, keepdim=True).exp(), CONDITION_BOUND**0.5
    clipped = torch.minimum(torch.maximum(values, middle / reach), middle * reach)
    return torch.where(exceeds[:, None], clipped, values), exceeds


def _power(matrix: Tensor, exponent: float) -> Tensor:
    """Return a power of symmetric matrices `[H, d, d]`; rounding may leave an eigenvalue just below 0."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp_min(0).pow(exponent)[:, None] @ vectors.mT


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector[:, :, None])[:, :, 0]


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
