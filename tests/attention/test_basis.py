"""The basis in which the moments of queries and keys agree, against independent constructions."""

import numpy as np
import ot
import pytest
import scipy.linalg
import torch

from alignattn.attention.basis import CONDITION_BOUND, Moments, balancing_basis, monge_map, shrunk
from alignattn.attention.distance import (
    Distances,
    measure_distances,
    spread_distance,
)

HEADS, SIZE = 3, 6


def cloud(points=400, heads=HEADS, size=SIZE, seed=0):
    """Correlated points with a mean, `[H, N, d]` float64."""
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(heads, size, size, generator=generator, dtype=torch.float64)).Q
    mix = torch.linspace(0.3, 3, size, dtype=torch.float64) * turn
    mean = 3 * torch.randn(heads, 1, size, generator=generator, dtype=torch.float64)
    return torch.randn(heads, points, size, generator=generator, dtype=torch.float64) @ mix + mean


def basis_of(query, key, form="full"):
    return balancing_basis(Moments.of(query), Moments.of(key), form)


def scores_up_to_a_row(query, key):
    scores = query @ key.mT
    return scores - scores.mean(dim=-1, keepdim=True)


def test_moments_of_parts_sum_to_those_of_the_whole():
    points = cloud()
    parts = Moments.none(HEADS, SIZE) + Moments.of(points[:, :7]) + Moments.of(points[:, 7:])
    for head, of_head in enumerate(points.numpy()):
        np.testing.assert_allclose(parts.mean[head], of_head.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(parts.covariance[head], np.cov(of_head.T, bias=True), rtol=1e-10, atol=1e-12)


def test_the_map_matches_matrix_square_roots():
    query, key = cloud(seed=1), cloud(seed=2)
    basis = basis_of(query, key)
    for head in range(HEADS):
        first, second = (np.cov(points[head].numpy().T, bias=True) for points in (query, key))
        root = scipy.linalg.sqrtm(first)
        middle = scipy.linalg.sqrtm(root @ second @ root)
        inverse = np.linalg.inv(root)
        matrix = scipy.linalg.sqrtm(inverse @ middle @ inverse)
        np.testing.assert_allclose(basis.matrix[head], matrix, rtol=1e-7, atol=1e-9)
        shift = matrix @ query[head].numpy().mean(axis=0) - np.linalg.solve(matrix, key[head].numpy().mean(axis=0))
        np.testing.assert_allclose(basis.shift[head], shift, rtol=1e-7, atol=1e-8)
    spreads = [Moments.of(points).covariance for points in (query, key)]
    carried = monge_map(*spreads)
    torch.testing.assert_close(carried @ spreads[0] @ carried, spreads[1])


@pytest.mark.parametrize("form", ["full", "centre", "uncentred"])
def test_a_basis_keeps_the_products_and_makes_the_moments_equal(form):
    query, key = cloud(seed=3), cloud(seed=4)
    basis = basis_of(query, key, form)
    new_query, new_key = basis.of_queries(query), basis.of_keys(key)
    before, after = scores_up_to_a_row(query, key), scores_up_to_a_row(new_query, new_key)
    torch.testing.assert_close(after, before, rtol=1e-10, atol=1e-10)
    ours, theirs = Moments.of(new_query), Moments.of(new_key)
    if form == "uncentred":
        torch.testing.assert_close(new_query @ new_key.mT, query @ key.mT, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(ours.second, theirs.second)
        return
    torch.testing.assert_close(ours.mean, theirs.mean)
    assert torch.allclose(ours.covariance, theirs.covariance) == (form == "full")


def test_balanced_moments_get_the_identity():
    query, key = cloud(seed=5), cloud(seed=6)
    basis = basis_of(query, key)
    again = basis_of(basis.of_queries(query), basis.of_keys(key))
    identity = torch.eye(SIZE, dtype=torch.float64).expand(HEADS, -1, -1)
    torch.testing.assert_close(again.matrix, identity, rtol=0, atol=1e-8)
    torch.testing.assert_close(again.shift, torch.zeros_like(again.shift), rtol=0, atol=1e-8)


def on_a_line(points):
    return torch.randn(HEADS, points, 1, dtype=torch.float64) * torch.ones(SIZE, dtype=torch.float64) + 2


STRANGE = {
    "queries on a line": (on_a_line(50), cloud(50)),
    "both on a line": (on_a_line(50), on_a_line(50)),
    "constant keys": (cloud(50), torch.full((HEADS, 50, SIZE), 0.3, dtype=torch.float64)),
    "all zero": (torch.zeros(HEADS, 5, SIZE), torch.zeros(HEADS, 5, SIZE)),
    "one token": (cloud(1, seed=1), cloud(1, seed=2)),
    "fewer tokens than the size": (cloud(4, seed=1), cloud(4, seed=2)),
    "of very different size": (1e4 * cloud(seed=1), 1e-4 * cloud(seed=2)),
    "float32": (cloud(seed=1).float(), cloud(seed=2).float()),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_clouds_give_a_bounded_basis_that_keeps_the_products(name):
    query, key = STRANGE[name]
    basis = basis_of(query, key)
    assert all(part.isfinite().all() for part in (basis.matrix, basis.inverse, basis.shift))
    assert (basis.condition <= CONDITION_BOUND * (1 + 1e-9)).all()
    new_query, new_key = basis.of_queries(query), basis.of_keys(key)
    torch.testing.assert_close(new_query.mean(dim=1), new_key.mean(dim=1), rtol=1e-8, atol=1e-8)
    expected = scores_up_to_a_row(query.double(), key.double())
    torch.testing.assert_close(scores_up_to_a_row(new_query, new_key), expected, rtol=1e-8, atol=1e-8)


def test_a_basis_reports_bounded_and_shrunk_heads():
    basis = basis_of(*STRANGE["constant keys"])
    assert basis.is_bounded.all()
    assert (basis.condition == 1).all()
    assert (basis_of(*STRANGE["fewer tokens than the size"]).shrinkage > 0).all()
    plain = basis_of(cloud(seed=1), cloud(seed=2))
    assert not plain.is_bounded.any()
    assert (plain.shrinkage == 0).all()


def test_shrinkage_lifts_the_least_variance_and_keeps_the_sum():
    thin = Moments.of(on_a_line(50)).covariance
    lifted, share = shrunk(thin)
    values = torch.linalg.eigvalsh(lifted)
    mean = values.mean(dim=1)
    torch.testing.assert_close(values[:, 0] / mean, torch.full_like(mean, 1e-4), rtol=1e-6, atol=0)
    torch.testing.assert_close(mean * SIZE, thin.diagonal(dim1=1, dim2=2).sum(dim=1))
    assert ((share > 0) & (share < 1e-3)).all()


def test_each_of_a_thousand_heads_gets_the_basis_that_it_gets_alone():
    query, key = cloud(30, heads=1000, size=4, seed=1), cloud(30, heads=1000, size=4, seed=2)
    whole, alone = basis_of(query, key), basis_of(query[500:501], key[500:501])
    torch.testing.assert_close(whole.matrix[500:501], alone.matrix)
    torch.testing.assert_close(whole.shift[500:501], alone.shift)


def test_distance_in_units_of_spread():
    points = cloud(heads=1)
    assert spread_distance(points, points).item() == 0
    spread = points.var(dim=1, correction=0).sum().sqrt()
    step = torch.randn(SIZE, dtype=torch.float64)
    # For a pure shift, the mean over directions is exact: |step|² / d.
    torch.testing.assert_close(
        spread_distance(points, points + step), (step.norm() / SIZE**0.5 / spread)[None], rtol=1e-5, atol=0
    )
    other = cloud(heads=1, seed=1)
    # The origin and the unit do not matter, and a rotation hardly does.
    torch.testing.assert_close(
        spread_distance(1e3 * points + 5e3, 1e3 * other + 5e3), spread_distance(points, other), rtol=1e-4, atol=0
    )
    rotation = torch.linalg.qr(torch.randn(SIZE, SIZE, dtype=torch.float64)).Q
    torch.testing.assert_close(
        spread_distance(points @ rotation, other @ rotation), spread_distance(points, other), rtol=0.03, atol=0
    )
    constant = torch.zeros(1, 5, SIZE)
    assert spread_distance(constant, constant).item() == 0
    assert spread_distance(constant, constant + 1).item() == float("inf")


def test_the_balanced_distance_is_the_same_in_every_basis():
    query, key = cloud(points=1000, seed=1), cloud(points=1000, seed=2) ** 3 / 10
    turned = torch.linalg.qr(torch.randn(HEADS, SIZE, SIZE, dtype=torch.float64)).Q
    matrix = turned * torch.linspace(0.5, 2, SIZE, dtype=torch.float64)
    shift = 10 * torch.randn(HEADS, 1, SIZE, dtype=torch.float64)
    other_query, other_key = query @ matrix, key @ torch.linalg.inv(matrix).mT + shift
    torch.testing.assert_close(
        scores_up_to_a_row(other_query, other_key), scores_up_to_a_row(query, key), rtol=1e-8, atol=1e-8
    )
    first, second = measure_distances(query, key), measure_distances(other_query, other_key)
    # It is the same up to a rotation, to which a finite number of directions is slightly sensitive.
    torch.testing.assert_close(first.balanced, second.balanced, rtol=0.1, atol=0)
    assert ((first.as_is - second.as_is).abs() > 0.2 * first.as_is).any()


def wasserstein(query, key):
    """Return the squared 2-Wasserstein distance of clouds `[N, d]` by POT's linear program, and their spread."""
    cost = ot.dist(query.numpy(), key.numpy())
    spread = sum(float((points - points.mean(dim=0)).square().sum(dim=1).mean()) for points in (query, key))
    return float(ot.emd2([], [], cost)), spread


def test_the_balanced_basis_has_the_least_wasserstein_distance():
    query, key = cloud(points=60, heads=1, seed=1), cloud(points=80, heads=1, seed=2) ** 3 / 10
    basis = basis_of(query, key)
    query, key = query[0] - query[0].mean(dim=0), key[0] - key[0].mean(dim=0)
    balanced = basis.matrix[0]
    least, least_spread = wasserstein(query @ balanced, key @ torch.linalg.inv(balanced).mT)
    changes = torch.randn(20, SIZE, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    suprema = []
    for change in (*changes.matrix_exp(), *(0.05 * changes).matrix_exp(), torch.linalg.inv(balanced)):
        matrix = balanced @ change
        distance, spread = wasserstein(query @ matrix, key @ torch.linalg.inv(matrix).mT)
        assert distance > least
        assert distance / spread > least / least_spread
        suprema.append(spread - distance)
    np.testing.assert_allclose(suprema, least_spread - least, rtol=1e-8)
    # A rotation keeps the distance, and a shift adds its square.
    turned = balanced @ torch.linalg.qr(changes[0]).Q
    shifted = key @ torch.linalg.inv(turned).mT + 2
    np.testing.assert_allclose(wasserstein(query @ turned, shifted)[0], least + 4 * SIZE, rtol=1e-8)


def test_balancing_removes_differences_of_moments_and_leaves_others():
    normal = torch.randn(1, 3000, 2, dtype=torch.float64)
    stretched = torch.randn(1, 3000, 2, dtype=torch.float64) * torch.tensor([1.0, 4.0]) + 2
    two_humps = torch.randn(1, 3000, 2, dtype=torch.float64)
    two_humps[..., 0] = 0.1 * two_humps[..., 0] + torch.randint(0, 2, (1, 3000)) * 2 - 1
    gaussian, humps = measure_distances(stretched, normal), measure_distances(two_humps, normal)
    assert isinstance(gaussian, Distances)
    assert gaussian.as_is > 10 * gaussian.floor
    assert gaussian.balanced < 1.5 * gaussian.floor
    assert humps.balanced > 3 * humps.floor
