"""Distances between the queries and the keys of a head, as distributions over tokens."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from alignattn.attention.basis import Moments, balancing_basis, cloud

NUM_DIRECTIONS = 64
DIRECTIONS_SEED = 0
FRAME_DIRECTIONS = 128
"""Minimum number of directions of `spread_distance`, which rounds it up to whole orthonormal frames."""
HALVES_SEED = 0
HIDDEN = 32
DISCRIMINATOR_STEPS = 150
DISCRIMINATOR_RATE = 1e-2
DISCRIMINATOR_SEED = 0
"""Training of the classifier of `c2st_accuracy`; more steps overfit."""
NO_SPREAD = 1e-12
"""Minimum standard deviation by which a feature is divided; a constant feature is only centred."""


def sliced_wasserstein(
    query: Tensor, key: Tensor, mask: Tensor | None = None, *, num_directions: int = NUM_DIRECTIONS
) -> Tensor:
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
    query, key = (_cloud(features, mask) for features in (query, key))
    generator = torch.Generator().manual_seed(DIRECTIONS_SEED)
    directions = torch.randn(query.shape[-1], num_directions, generator=generator, dtype=torch.float64)
    directions = (directions / directions.norm(dim=0)).to(query)
    gap = (query @ directions).sort(dim=1).values - (key @ directions).sort(dim=1).values
    return (gap.square().mean(dim=(1, 2)) / _mean_square_length(query, key)).sqrt()


def energy_distance(query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the energy distance 2 E|q - k| - E|q - q'| - E|k - k'| of queries and keys, in units of their size.

    Queries and keys of all samples form one cloud each (Székely & Rizzo 2013, "Energy statistics"). The expectations
    are means over all pairs, including a point with itself: the V-statistic, which is never negative. For N points of
    each of two equal distributions, it is about 2 E|q - q'| / N, not 0. As in `sliced_wasserstein`, the result is
    divided by the root mean square length of both clouds. Memory grows with the square of the number of points.

    Args:
        query: `[B, H, n, d]`.
        key: `[B, H, n, d]`.
        mask: `[B, n]` bool, True = a real token; None = all are real.

    Returns:
        `[H]`, a distance for each head: 0 for equal clouds.
    """
    query, key = (_cloud(features, mask) for features in (query, key))
    distance = 2 * _mean_distance(query, key) - _mean_distance(query, query) - _mean_distance(key, key)
    # Rounding may leave a distance of equal clouds just below 0.
    return distance.clamp_min(0) / _mean_square_length(query, key).sqrt()


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
    middle = (query.mean(dim=1, keepdim=True) + key.mean(dim=1, keepdim=True)) / 2
    directions = _frames(query.shape[-1])
    # Around the common mean float32 is precise enough. NumPy sorts float32 30 times as fast as torch.
    along_query, along_key = (
        np.sort((directions.mT @ (points - middle).mT).float().numpy(), axis=-1) for points in (query, key)
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


def measure_c2st(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Return the accuracies of `c2st_accuracy` for queries and keys as they are, and balanced; each `[H]` float64.

    The half of the tokens that the classifier learns from gives the moments of the balanced basis.

    Args:
        query: `[H, N, d]`.
        key: `[H, N, d]`.
    """
    basis = balancing_basis(Moments.of(halves(query)[0]), Moments.of(halves(key)[0]))
    return c2st_accuracy(query, key), c2st_accuracy(basis.of_queries(query), basis.of_keys(key))


def c2st_accuracy(query: Tensor, key: Tensor) -> Tensor:
    """Return the accuracy of a classifier two-sample test on held-out queries and keys: 0.5 is chance.

    Lopez-Paz & Oquab 2017, "Revisiting Classifier Two-Sample Tests". For each head a network with one hidden layer
    learns from one half of the tokens (`halves`), in a fixed number of steps from a fixed start; the accuracy is
    measured on the other half.

    Args:
        query: `[H, N, d]`.
        key: `[H, N, d]`.

    Returns:
        `[H]` float64.
    """
    query, key = (points.detach().to("cpu", torch.float64) for points in (query, key))
    learned, held_out = (torch.cat(part, dim=1) for part in zip(halves(query), halves(key), strict=True))
    middle, spread = learned.mean(dim=1, keepdim=True), learned.std(dim=1, correction=0, keepdim=True)
    learned, held_out = (((part - middle) / spread.clamp_min(NO_SPREAD)).float() for part in (learned, held_out))
    is_query = (torch.arange(learned.shape[1]) < learned.shape[1] // 2).expand(learned.shape[:2])
    network = _Discriminators(*learned.shape[::2])
    optimizer = torch.optim.Adam(network.parameters(), DISCRIMINATOR_RATE)
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        for _ in range(DISCRIMINATOR_STEPS):
            optimizer.zero_grad()
            losses = functional.binary_cross_entropy_with_logits(network(learned), is_query.float(), reduction="none")
            torch.autograd.backward(losses.mean(dim=1).sum())
            optimizer.step()
    with torch.no_grad():
        return ((network(held_out) > 0) == is_query).double().mean(dim=1)


class _Discriminators(nn.Module):
    """A network for each of H heads, `[H, N, d]` to `[H, N]`."""

    def __init__(self, heads: int, size: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(DISCRIMINATOR_SEED)
        self.inner = nn.Parameter(torch.randn(heads, size, HIDDEN, generator=generator) / size**0.5)
        self.outer = nn.Parameter(torch.randn(heads, HIDDEN, 1, generator=generator) / HIDDEN**0.5)
        self.inner_bias = nn.Parameter(torch.zeros(heads, 1, HIDDEN))
        self.outer_bias = nn.Parameter(torch.zeros(heads, 1))

    def forward(self, points: Tensor) -> Tensor:
        hidden = functional.relu(torch.baddbmm(self.inner_bias, points, self.inner))
        return (hidden @ self.outer)[..., 0] + self.outer_bias


def equal_counts(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return clouds `[H, N, d]` and `[H, M, d]` with equally many points: the larger one is sampled."""
    count = min(first.shape[1], second.shape[1])
    return _drawn(first, count), _drawn(second, count)


def _drawn(points: Tensor, count: int) -> Tensor:
    if points.shape[1] == count:
        return points
    order = torch.randperm(points.shape[1], generator=torch.Generator().manual_seed(HALVES_SEED))
    return points[:, order[:count].sort().values.to(points.device)]


def halves(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return two halves of points `[H, N, d]`, the same for every cloud of N points; a single point is both halves."""
    order = torch.randperm(points.shape[1], generator=torch.Generator().manual_seed(HALVES_SEED))
    half = max(len(order) // 2, 1)
    return points[:, order[:half].to(points.device)], points[:, order[-half:].to(points.device)]


def _frames(size: int) -> Tensor:
    """Return directions as the columns of random orthogonal matrices, `[d, K]`."""
    generator = torch.Generator().manual_seed(DIRECTIONS_SEED)
    count = -(-FRAME_DIRECTIONS // size)
    frames = torch.linalg.qr(torch.randn(count, size, size, generator=generator, dtype=torch.float64)).Q
    return frames.transpose(0, 1).flatten(1)


def _mean_distance(first: Tensor, second: Tensor) -> Tensor:
    # Matrix products would lose the digits of close points.
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist").mean(dim=(1, 2))


def _mean_square_length(query: Tensor, key: Tensor) -> Tensor:
    return (query.square().sum(dim=-1).mean(dim=1) + key.square().sum(dim=-1).mean(dim=1)) / 2


def _cloud(features: Tensor, mask: Tensor | None) -> Tensor:
    return cloud(features, mask).float()
