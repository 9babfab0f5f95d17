"""Distances between the queries and the keys of a head, as distributions over tokens."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from alignattn.attention.basis import Moments, balancing_basis, cloud

SEED = 0
"""Seed of directions, halves and samples, so that equal clouds have equal distances."""


def sliced_wasserstein(query: Tensor, key: Tensor, mask: Tensor | None = None, *, num_directions: int = 64) -> Tensor:
    """Return the sliced 2-Wasserstein distance between queries and keys, in units of their size.

    Queries and keys of all samples form one cloud each. The distance (Bonneel et al. 2015, eq. 8; the root of the mean
    over random directions of the squared one-dimensional distance) is divided by the root mean square length of both
    clouds, so that smaller queries and keys do not count as better aligned.

    Args:
        query: `[B, H, n, d]`.
        key: `[B, H, n, d]`.
        mask: `[B, n]` bool, True = a real token; None = all are real.
        num_directions: number of directions, drawn with a fixed seed.

    Returns:
        `[H]`, a distance for each head: 0 for equal clouds, about sqrt(2 / d) for two distant points of equal length.
    """
    query, key = (cloud(features, mask).float() for features in (query, key))
    generator = torch.Generator().manual_seed(SEED)
    directions = torch.randn(query.shape[-1], num_directions, generator=generator, dtype=torch.float64)
    directions = (directions / directions.norm(dim=0)).to(query)
    gap = (query @ directions).sort(dim=1).values - (key @ directions).sort(dim=1).values
    square_length = sum(points.square().sum(dim=-1).mean(dim=1) for points in (query, key)) / 2
    return (gap.square().mean(dim=(1, 2)) / square_length).sqrt()


@dataclass(frozen=True)
class Distances:
    """`spread_distance` of queries and keys, as they are and balanced, and its floor; each `[H]` float64.

    All three compare equally many points. Half of the points give A and c of the balanced basis; `as_is` and `balanced`
    use the other half, and `floor` compares the two halves.

    Attributes:
        as_is: as attention receives them.
        balanced: in the basis in which their means and covariances are equal.
        floor: between two halves of one cloud, averaged over queries and keys: what equal distributions would give.
    """

    as_is: Tensor
    balanced: Tensor
    floor: Tensor


def spread_distance(query: Tensor, key: Tensor) -> Tensor:
    """Return the sliced 2-Wasserstein distance of two clouds with equally many points, in units of their spread.

    Unlike `sliced_wasserstein`, it divides by the root mean square distance of the points from their cloud's mean,
    which is invariant to shifts, and averages over whole orthonormal frames of directions, which makes the contribution
    of the means exact.

    Args:
        query: `[H, N, d]`.
        key: `[H, N, d]`.

    Returns:
        `[H]` float64: 0 for equal clouds, infinite for two different points.
    """
    query, key = (points.to("cpu", torch.float64) for points in (query, key))
    common_mean = (query.mean(dim=1, keepdim=True) + key.mean(dim=1, keepdim=True)) / 2
    # At least 128 directions, the columns of random orthogonal matrices: whole frames.
    size, generator = query.shape[-1], torch.Generator().manual_seed(SEED)
    frames = torch.linalg.qr(torch.randn(-(-128 // size), size, size, generator=generator, dtype=torch.float64)).Q
    directions = frames.transpose(0, 1).flatten(1)
    # Around the common mean float32 is precise enough. NumPy sorts float32 30 times as fast as torch.
    along_query, along_key = (
        np.sort((directions.mT @ (points - common_mean).mT).float().numpy(), axis=-1) for points in (query, key)
    )
    gap = torch.from_numpy(along_query - along_key).double().square().mean(dim=(1, 2))
    spread = torch.stack([points.var(dim=1, correction=0).sum(dim=-1) for points in (query, key)]).mean(dim=0)
    return torch.where(gap == 0, 0, gap / spread).sqrt()


def measure_distances(query: Tensor, key: Tensor) -> Distances:
    """Return the distance of queries and keys as they are and balanced, and its floor.

    The tokens of all samples are pooled and halved at random, with a fixed seed: one half gives the moments, the other
    is measured.

    Args:
        query: `[H, N, d]`.
        key: `[H, N, d]`.
    """
    (query, other_query), (key, other_key) = halves(query), halves(key)
    basis = balancing_basis(Moments.of(other_query), Moments.of(other_key))
    balanced = spread_distance(basis.of_queries(query), basis.of_keys(key))
    floor = (spread_distance(query, other_query) + spread_distance(key, other_key)) / 2
    return Distances(spread_distance(query, key), balanced, floor)


def equal_counts(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return clouds `[H, N, d]` and `[H, M, d]` with equally many points: the larger one is sampled."""
    count = min(first.shape[1], second.shape[1])
    return _drawn(first, count), _drawn(second, count)


def _drawn(points: Tensor, count: int) -> Tensor:
    if points.shape[1] == count:
        return points
    order = torch.randperm(points.shape[1], generator=torch.Generator().manual_seed(SEED))
    return points[:, order[:count].sort().values.to(points.device)]


def halves(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return two halves of points `[H, N, d]`, the same for every cloud of N points; a single point is both halves."""
    order = torch.randperm(points.shape[1], generator=torch.Generator().manual_seed(SEED))
    half = max(len(order) // 2, 1)
    return points[:, order[:half].to(points.device)], points[:, order[-half:].to(points.device)]
