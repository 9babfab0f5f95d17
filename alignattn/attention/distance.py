"""How far apart the queries and the keys of a head lie, as distributions over tokens."""

import torch
from torch import Tensor

NUM_DIRECTIONS = 64
DIRECTIONS_SEED = 0


def sliced_wasserstein(
    query: Tensor, key: Tensor, mask: Tensor | None = None, *, num_directions: int = NUM_DIRECTIONS
) -> Tensor:
    """Return the sliced 2-Wasserstein distance between queries and keys, in units of their size.

    Queries and keys of all samples form one cloud each. The distance (Bonneel et al. 2015, eq. 8; the root of the mean
    over random directions of the squared one-dimensional distance) is divided by the root mean square length of
    both clouds: a model that only shrinks its queries and keys does not come out as better aligned.

    Args:
        query: `[B, H, n, d]`.
        key: `[B, H, n, d]`.
        mask: `[B, n]` bool, True = a real token; None = all are real.
        num_directions: how many directions; they are drawn with a fixed seed.

    Returns:
        `[H]`, one distance a head: 0 for equal clouds, about sqrt(2 / d) for two far-off points of equal length.
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
    are means over all pairs, those of a point with itself included: the V-statistic. It is never negative; N points
    each of equal distributions give about 2 E|q - q'| / N, not 0. As in `sliced_wasserstein`, the result is divided by
    the root mean square length of both clouds. Memory grows with the square of the number of points.

    Args:
        query: `[B, H, n, d]`.
        key: `[B, H, n, d]`.
        mask: `[B, n]` bool, True = a real token; None = all are real.

    Returns:
        `[H]`, one distance a head: 0 for equal clouds.
    """
    query, key = (_cloud(features, mask) for features in (query, key))
    distance = 2 * _mean_distance(query, key) - _mean_distance(query, query) - _mean_distance(key, key)
    # Rounding may leave a distance of equal clouds just below 0.
    return distance.clamp_min(0) / _mean_square_length(query, key).sqrt()


def _mean_distance(first: Tensor, second: Tensor) -> Tensor:
    # Products of matrices would lose the digits of close points.
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist").mean(dim=(1, 2))


def _mean_square_length(query: Tensor, key: Tensor) -> Tensor:
    return (query.square().sum(dim=-1).mean(dim=1) + key.square().sum(dim=-1).mean(dim=1)) / 2


def _cloud(features: Tensor, mask: Tensor | None) -> Tensor:
    """Return the real tokens of all samples, `[H, N, d]`."""
    by_token = features.detach().float().transpose(1, 2)
    flat = by_token.flatten(0, 1) if mask is None else by_token[mask]
    return flat.transpose(0, 1)
