"""Fusedmax and its proximal operator, against duality bounds, optimality conditions and finite differences."""

import sys

import numpy as np
import pytest
import torch

from alignattn.attention.normalizers import sparsemax
from alignattn.attention.normalizers.fusedmax import denoise, fusedmax

ASCENT_STEPS = 1000
"""Three times the steps that chains of seven need to meet the bound to the last digits."""


def onto_simplex(vectors):
    """The nearest distributions to `[R, m]` (Held et al. 1974)."""
    descending = -np.sort(-vectors, axis=1)
    thresholds = (descending.cumsum(axis=1) - 1) / np.arange(1, vectors.shape[1] + 1)
    support = (descending > thresholds).sum(axis=1, keepdims=True)
    return np.maximum(vectors - np.take_along_axis(thresholds, support - 1, axis=1), 0)


def dual_bounds(scores, weights):
    """Return lower bounds `[R]` of ½‖p - s‖² + λ Σ|p_i - p_(i-1)| over all distributions p.

    For pulls |t_i| ≤ λ, λ |p_i - p_(i-1)| ≥ t_i (p_i - p_(i-1)); for this right side, projecting s - Dᵀt is optimal.
    An accelerated projected ascent in t maximises the bound (Beck & Teboulle 2009).
    """

    def least(pulls):
        return onto_simplex(scores + np.diff(pulls, axis=1, prepend=0, append=0))

    pulls = leading = np.zeros((scores.shape[0], scores.shape[1] - 1))
    momentum = 1.0
    for _ in range(ASCENT_STEPS):
        former, pulls = pulls, np.clip(leading + np.diff(least(leading)) / 4, -weights, weights)
        former_momentum, momentum = momentum, (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        leading = pulls + (former_momentum - 1) / momentum * (pulls - former)
    found = least(pulls)
    return ((found - scores) ** 2).sum(axis=1) / 2 + (pulls * np.diff(found)).sum(axis=1)


@pytest.mark.parametrize("length", range(1, 8))
def test_no_distribution_is_better(length):
    """Weights whose objective is within ε of a lower bound are at most √(2ε) from the optimum."""
    rng = np.random.default_rng(length)
    scores = rng.normal(size=(40, length)) * rng.choice([0.2, 1.0, 2.0], size=(40, 1))
    weights = rng.choice([0.02, 0.1, 0.5, 2.0], size=(40, 1))
    found = np.stack([fusedmax(torch.tensor(row), weight) for row, weight in zip(scores, weights.flat, strict=True)])
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-12)
    assert found.min() >= 0
    jumps = np.diff(found)
    objectives = ((found - scores) ** 2).sum(axis=1) / 2 + (weights * np.abs(jumps)).sum(axis=1)
    assert (objectives - dual_bounds(scores, weights)).max() < 1e-12
    assert ((jumps == 0) & (found[:, 1:] > 0)).sum() >= 10 * (length - 1)


@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("weight", [0.01, 0.3, 5.0])
def test_long_chains_meet_the_optimality_conditions(weight, spread):
    """The running sum of s - x is λ times a subgradient: within ±λ, at ±λ where x jumps, 0 at the end."""
    length, columns = 150, 60
    generator = torch.Generator().manual_seed(0)
    scores = spread * torch.randn(length, columns, generator=generator, dtype=torch.float64)
    scores[:, ::2] = scores[:, ::2].cumsum(dim=0) / 5  # random walks next to white noise
    counts = torch.randint(1, length + 1, (columns,), generator=generator)
    values, is_fused = denoise(scores, counts, weight)
    for column, count in enumerate(counts.tolist()):
        x, s = values[:count, column], scores[:count, column]
        dual = (s - x).cumsum(dim=0)
        assert dual.abs().max() <= weight + 1e-9
        assert abs(dual[-1]) < 1e-9
        jumps = x.diff()
        parted = jumps.abs() > 1e-9
        torch.testing.assert_close(dual[:-1][parted], -weight * jumps[parted].sign(), rtol=0, atol=1e-9)
        assert torch.equal(is_fused[1:count, column], jumps == 0)


def test_blocks_of_columns_change_nothing(monkeypatch):
    scores = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    counts = torch.randint(1, 21, (30,), generator=torch.Generator().manual_seed(1))
    expected = denoise(scores, counts, 0.2)
    monkeypatch.setattr(sys.modules[denoise.__module__], "BLOCK_COLUMNS", 7)
    torch.testing.assert_close(denoise(scores, counts, 0.2), expected)


@pytest.mark.parametrize("weight", [0.05, 0.3, 1.0])
def test_jacobian(weight):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(5, 9, generator=generator, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(5, 9, generator=generator) < 0.8
    weights = fusedmax(scores, weight, mask)
    assert ((weights.diff() == 0) & (weights[..., 1:] > 0)).any()
    assert torch.autograd.gradcheck(lambda s: fusedmax(s, weight, mask), scores)
    assert torch.autograd.gradcheck(lambda s: fusedmax(s, weight), scores)


def test_jacobian_by_hand():
    """Two groups of two: the mean of the gradient over a group, minus its mean over the support."""
    scores = torch.tensor([0.6, 0.55, 0.1, 0.15, -9.0], dtype=torch.float64, requires_grad=True)
    weights = fusedmax(scores, 0.1)
    found = torch.autograd.functional.jacobian(lambda s: fusedmax(s, 0.1), scores)
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)
    assert weights[4] == 0
    pairs = torch.block_diag(torch.full((2, 2), 0.5), torch.full((2, 2), 0.5)).double()
    expected = torch.zeros(5, 5, dtype=torch.float64)
    expected[:4, :4] = pairs - torch.full((4, 4), 0.25, dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_a_vanishing_weight_gives_the_sparsemax_and_a_large_one_uniform_weights():
    scores = torch.randn(50, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(fusedmax(scores, 1e-12), sparsemax(scores), rtol=0, atol=1e-10)
    torch.testing.assert_close(fusedmax(scores, 100.0), torch.full_like(scores, 1 / 20))


def test_masked_positions_do_not_separate_neighbours():
    scores = torch.tensor([[0.6, 50.0, 0.5, -1.0], [0.6, 0.5, -1.0, 50.0]])
    mask = torch.tensor([[True, False, True, True], [True, True, True, False]])
    weights = fusedmax(scores, 0.3, mask)
    torch.testing.assert_close(weights[0, [0, 2, 3]], weights[1, :3])
    assert weights[0, 0] == weights[0, 2]


def test_float32_reaches_its_precision_next_to_huge_scores():
    scores = torch.randn(200, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores[:, ::3] -= 1e4
    scores = scores.float().double()
    torch.testing.assert_close(fusedmax(scores.float(), 0.1).double(), fusedmax(scores, 0.1), rtol=0, atol=2e-6)


def test_second_derivatives_with_a_mask():
    """Away from its kinks the Jacobian is constant: the square after it has the curvature."""
    scores = torch.tensor([[0.6, 0.55, 0.1, 0.15, -9.0], [1.0, -0.3, 0.2, 0.9, 0.4]], dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True, True, False, True, True]])
    assert torch.autograd.gradgradcheck(lambda s: fusedmax(s, 0.1, mask).square(), (scores.requires_grad_(),))
