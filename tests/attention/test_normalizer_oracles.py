"""The normalizers of the entmax family, constrained softmax and local attention, each against an independent oracle."""

import math

import numpy as np
import pytest
import torch

from alignattn.attention.normalizers import (
    Entmax,
    Local,
    csoftmax,
    entmax,
    entmax15,
    local_monotonic,
    local_predictive,
    softmax,
    sparsemax,
)

BATCH, HEADS, LENGTH, DIM = 2, 3, 6, 4


def random_scores(dtype=torch.float64, queries=LENGTH, keys=LENGTH):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(BATCH, HEADS, queries, keys, generator=generator, dtype=torch.float64)
    return scores.to(dtype).requires_grad_()


def simplex_bisection(scores, alpha):
    """Return the entmax of one row, by the threshold τ at which [(α - 1) s - τ]_+^(1 / (α - 1)) sums to 1."""
    scores = (alpha - 1) * np.asarray(scores)
    low, high = scores.max() - 1, scores.max()
    for _ in range(200):
        middle = (low + high) / 2
        if (np.clip(scores - middle, 0, None) ** (1 / (alpha - 1))).sum() > 1:
            low = middle
        else:
            high = middle
    return np.clip(scores - low, 0, None) ** (1 / (alpha - 1))


class TestEntmax:
    @pytest.mark.parametrize("length", [1, 7, 60])  # the last is longer than the first partial sort
    @pytest.mark.parametrize("alpha", [1.1, 1.5, 1.77, 2.0, 3.0])
    def test_against_bisection(self, alpha, length):
        rng = np.random.default_rng(length)
        rows = rng.normal(size=(60, length)) * rng.choice([0.01, 0.5, 3.0], size=(60, 1))
        expected = torch.tensor(np.stack([simplex_bisection(row, alpha) for row in rows]))
        scores = torch.tensor(rows)
        torch.testing.assert_close(entmax(scores, alpha), expected, rtol=0, atol=1e-9)
        if alpha == 2:
            torch.testing.assert_close(sparsemax(scores), expected, rtol=0, atol=1e-12)
        if alpha == 1.5:
            torch.testing.assert_close(entmax15(scores), expected, rtol=0, atol=1e-12)

    def test_alpha_of_each_head(self):
        scores = random_scores()
        alpha = torch.tensor([1.2, 1.5, 2.0], dtype=torch.float64)
        weights = entmax(scores, alpha[:, None, None])
        for head, value in enumerate(alpha.tolist()):
            torch.testing.assert_close(weights[:, head], entmax(scores[:, head], value), rtol=0, atol=1e-12)

    def test_learned_alpha_starts_at_alpha_and_stays_in_range(self):
        module, scores = Entmax(DIM, HEADS, alpha=1.3, learned=True), random_scores(dtype=torch.float32)
        torch.testing.assert_close(module.alpha, torch.full((HEADS,), 1.3))
        torch.testing.assert_close(module(scores), entmax(scores, 1.3))
        for logit in (-100.0, 100.0):
            with torch.no_grad():
                module.alpha_logit.fill_(logit)
            weights = module(scores)
            assert weights.isfinite().all()
            nearest = sparsemax(scores) if logit > 0 else softmax(scores)
            torch.testing.assert_close(weights, nearest, rtol=0, atol=0.02)

    def test_learned_alpha_grows_if_the_loss_rewards_a_large_weight(self):
        """A larger α makes the weights sparser."""
        module, scores = Entmax(DIM, HEADS, learned=True), random_scores(dtype=torch.float32)
        optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
        for _ in range(30):
            optimizer.zero_grad()
            (-module(scores.detach()).amax(dim=-1).mean()).backward()
            optimizer.step()
        assert (module.alpha > 1.6).all()


def constrained_softmax_by_bisection(scores, bound):
    """Return the p that minimises Σ p log p - p·s for 0 ≤ p ≤ u and Σ p = 1: p = min(u, e^(s - τ)) is optimal."""

    def weights(threshold):
        return np.minimum(bound, np.exp(scores - threshold))

    low, high = (scores - np.log(bound)).min(), scores.max() + np.log(len(scores))  # p = u at low, p ≤ 1 / m at high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if weights(middle).sum() > 1 else (low, middle)
    return weights(high)


class TestCSoftmax:
    def test_against_bisection(self):
        rng = np.random.default_rng(0)
        clipped = 0
        for _ in range(200):
            length = rng.integers(2, 7)
            scores = rng.normal(size=length) * rng.choice([0.3, 2.0])
            bound = rng.uniform(0.05, 1, size=length)
            bound = np.minimum(bound * max(1, rng.uniform(1, 2) / bound.sum()), 1) if bound.sum() < 1.05 else bound
            if bound.sum() < 1:
                continue
            weights = csoftmax(torch.tensor(scores), torch.tensor(bound))
            expected = constrained_softmax_by_bisection(scores, bound)
            torch.testing.assert_close(weights, torch.tensor(expected), rtol=0, atol=1e-12)
            clipped += int((weights >= torch.tensor(bound) - 1e-12).sum())
        assert clipped > 100

    def test_gradient_in_scores_and_bounds(self):
        scores = random_scores()
        bound = torch.rand(LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 2 + 0.1
        bound.requires_grad_()
        assert ((csoftmax(scores, bound) == bound).any(dim=-1)).double().mean() > 0.3
        assert torch.autograd.gradcheck(csoftmax, (scores, bound))

    def test_no_weight_exceeds_the_bound(self):
        scores = random_scores(dtype=torch.float32, keys=50) * 10
        assert csoftmax(scores, 0.05).max() <= 0.05 * (1 + 1e-5)

    def test_a_loose_bound_gives_the_softmax(self):
        scores = random_scores()
        torch.testing.assert_close(csoftmax(scores, 1.0), softmax(scores))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("length", [1, 3, 6, 7, 49])
    def test_a_bound_of_one_over_the_length_gives_uniform_weights(self, length, dtype):
        scores = random_scores(dtype=dtype, keys=length)
        expected = torch.full_like(scores, 1 / length)
        torch.testing.assert_close(csoftmax(scores, 1 / length), expected)
        torch.testing.assert_close(csoftmax(scores, torch.full((length,), 1 / length, dtype=dtype)), expected)

    def test_a_bound_is_relaxed_in_rows_that_cannot_meet_it(self):
        scores = torch.tensor([[3.0, 1.0, 0.0, 0.0, 0.0, 0.0]] * 2)
        mask = torch.tensor([[True, True, False, False, False, False], [True] * 6])
        weights = csoftmax(scores, 0.3, mask)
        torch.testing.assert_close(weights[0], torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0, 0.0]))
        assert weights[1, 0].item() == pytest.approx(0.3)
        bounds = torch.tensor([0.6, 0.1, 0.5, 0.5, 0.5, 0.5])
        torch.testing.assert_close(csoftmax(scores, bounds, mask)[0, :2], torch.tensor([0.6, 0.4]))
        torch.testing.assert_close(csoftmax(scores, bounds, mask).sum(dim=-1), torch.ones(2))

    def test_mass_reaches_keys_with_far_lower_scores(self):
        weights = csoftmax(torch.tensor([0.0, -2e4, -3e4]), 0.5)
        assert weights.tolist() == pytest.approx([0.5, 0.5, 0.0])

    def test_a_bound_of_zero_gives_a_weight_of_zero(self):
        weights = csoftmax(torch.tensor([5.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 1.0]))
        assert weights.tolist() == pytest.approx([0.0, 0.5, 0.5])
        assert weights[0] == 0


class TestLocal:
    def test_monotonic_by_hand(self):
        scores = random_scores()
        weights = local_monotonic(scores, 2)
        for t in range(LENGTH):
            window = slice(max(0, t - 2), t + 3)
            torch.testing.assert_close(weights[..., t, window], scores[..., t, window].softmax(dim=-1))
            assert weights[..., t, :].count_nonzero(dim=-1).eq(len(range(LENGTH)[window])).all()

    def test_a_query_without_keys_in_its_window_has_zero_weights(self):
        weights = local_monotonic(random_scores(queries=6, keys=3), 1)
        assert weights.sum(dim=-1)[0, 0].tolist() == pytest.approx([1, 1, 1, 1, 0, 0])

    def test_predictive_by_hand(self):
        """Eqs. 9 and 10 as loops; the second sample is padded on the left."""
        torch.manual_seed(1)
        module, scores = Local(DIM, HEADS, kind="predictive", window=2).double(), random_scores()
        query = torch.randn(BATCH, HEADS, LENGTH, DIM, dtype=torch.float64)
        mask = torch.ones(BATCH, 1, 1, LENGTH, dtype=torch.bool)
        mask[1, ..., :2] = False
        weights = module(scores, mask, query).detach()
        for sample, padding in enumerate((0, 2)):
            size = LENGTH - padding
            for head in range(HEADS):
                for t in range(LENGTH):
                    hidden = torch.tanh(module.position_projection[head] @ query[sample, head, t])
                    centre = size * torch.sigmoid(module.position_vector[head] @ hidden).item()
                    near = [s for s in range(size) if abs(s - centre) <= 2]
                    row = scores[sample, head, t, padding:].detach()
                    share = row[near].softmax(dim=0)
                    expected = torch.zeros(size, dtype=torch.float64)
                    for s, value in zip(near, share, strict=True):
                        expected[s] = value * math.exp(-((s - centre) ** 2) / (2 * (2 / 2) ** 2))
                    torch.testing.assert_close(weights[sample, head, t, padding:], expected)

    def test_the_gaussian_peaks_at_the_centre(self):
        weights = local_predictive(torch.zeros(1, 9), torch.tensor([3.0]), 2)
        share = 1 / 5
        expected = [
            0,
            share * math.exp(-2),
            share * math.exp(-0.5),
            share,
            share * math.exp(-0.5),
            share * math.exp(-2),
        ]
        assert weights[0].tolist() == pytest.approx([*expected, 0, 0, 0])
