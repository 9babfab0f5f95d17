"""The basis of a head in which queries and keys have equal means and covariances, from their moments in closed form.

A shift-invariant normalizer needs q · k only up to a constant per query. So for any invertible A and any vector c of a
head, q' = Aᵀ q and k' = A⁻¹ k + c give the same attention as q and k (van Nierop 2024, arXiv 2412.14543). Let
S = Σ_q^(-1/2) (Σ_q^(1/2) Σ_k Σ_q^(1/2))^(1/2) Σ_q^(-1/2), the Monge map between two Gaussians, A = S^(1/2), which is
symmetric, and c = A μ_q - A⁻¹ μ_k. Then q' and k' have equal means and equal covariances, A Σ_q A = A⁻¹ Σ_k A⁻¹,
because S Σ_q S = Σ_k.
"""

from dataclasses import dataclass
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
        values = values.sqrt()
        is_bounded = values.amax(dim=1) > CONDITION_BOUND * values.amin(dim=1)
        # The eigenvalues are clipped around their geometric mean.
        geometric_mean, reach = values.log().mean(dim=1, keepdim=True).exp(), CONDITION_BOUND**0.5
        clipped = torch.minimum(torch.maximum(values, geometric_mean / reach), geometric_mean * reach)
        values = torch.where(is_bounded[:, None], clipped, values)
        matrix, inverse = (_symmetric(vectors * part[:, None] @ vectors.mT) for part in (values, 1 / values))
        condition, shrinkage = values[:, -1] / values[:, 0], torch.maximum(first, second)
        is_bounded = is_bounded | is_point
    shift = torch.zeros_like(query.total)
    if form != "uncentred":
        # The means of A q and A⁻¹ k + c are then equal.
        shift = (matrix @ query.mean[..., None] - inverse @ key.mean[..., None])[..., 0]
    return Basis(matrix, inverse, shift, condition, shrinkage, is_bounded)


def _power(matrix: Tensor, exponent: float) -> Tensor:
    """Return a power of symmetric matrices `[H, d, d]`; rounding may leave an eigenvalue just below 0."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp_min(0).pow(exponent)[:, None] @ vectors.mT


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
