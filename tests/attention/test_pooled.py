"""The alignments of all tokens of a batch, without an adversary: means and moments."""

import numpy as np
import ot
import pytest
import scipy.linalg
import scipy.spatial
import torch

from alignattn.attention.alignment.calls import Call, hashed
from alignattn.attention.alignment.moments import SHRINKAGE
from alignattn.attention.choices import ALIGNMENTS

BATCH, HEADS, LENGTH, DIM = 3, 2, 6, 4
REAL_TOKENS = (6, 4, 3)
POOLED = ("means", "moments")


def features(seed=0, batch=BATCH, length=LENGTH, shift=0.5):
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, batch, HEADS, length, DIM, generator=generator, dtype=torch.float64)
    return query.requires_grad_(), (1.5 * key + shift).requires_grad_()


def token_mask():
    return torch.arange(LENGTH)[None] < torch.tensor(REAL_TOKENS)[:, None]


def loss_of(name, **options):
    return ALIGNMENTS.load(name)(DIM, **options).double().eval()


def real_points(query, key, mask, head, key_mask=None):
    masks = (mask, mask if key_mask is None else key_mask)
    return [
        side.detach().transpose(1, 2)[real][:, head].numpy() for side, real in zip((query, key), masks, strict=True)
    ]


def spread_of(q, k):
    middle = (q.mean(0) + k.mean(0)) / 2
    return np.mean([((side - middle) ** 2).sum(axis=1).mean() for side in (q, k)])


def dense_means(q, k):
    return ((q.mean(0) - k.mean(0)) ** 2).sum() / spread_of(q, k)


def dense_moments(q, k):
    spread = spread_of(q, k)
    ridge = SHRINKAGE * spread / DIM * np.eye(DIM)
    of_query, of_key = (np.cov(side.T, bias=True) + ridge for side in (q, k))
    root = scipy.linalg.sqrtm(of_query)
    overlap = scipy.linalg.sqrtm(root @ of_key @ root)
    gap = ((q.mean(0) - k.mean(0)) ** 2).sum()
    return (gap + np.trace(of_query + of_key - 2 * overlap).real) / spread


DENSE = {"means": dense_means, "moments": dense_moments}


@pytest.mark.parametrize("name", POOLED)
@pytest.mark.parametrize("padded", [True, False])
def test_value_is_that_of_an_independent_construction(name, padded):
    module, (query, key) = loss_of(name), features()
    mask = token_mask() if padded else torch.ones(BATCH, LENGTH, dtype=torch.bool)
    expected = sum(DENSE[name](*real_points(query, key, mask, head)) for head in range(HEADS))
    assert module(query, key, mask if padded else None).item() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("name", POOLED)
def test_keys_of_other_tokens_match_the_construction_and_finite_differences(name):
    module, (query, _), (_, key) = loss_of(name), features(), features(seed=3, length=LENGTH + 2)
    key_mask = torch.arange(LENGTH + 2) < torch.tensor([2, 8, 7])[:, None]
    points = [real_points(query, key, token_mask(), head, key_mask) for head in range(HEADS)]
    expected = sum(DENSE[name](*of_head) for of_head in points)
    assert module(query, key, token_mask(), key_mask=key_mask).item() == pytest.approx(expected, rel=1e-8)
    assert torch.autograd.gradcheck(
        lambda *sides: module(*sides, token_mask(), key_mask=key_mask), (query.detach().requires_grad_(), key)
    )


def test_moments_agree_with_pot():
    """In units of the spread, and up to the shrinkage."""
    query, key = features(batch=40)
    mask = torch.ones(40, LENGTH, dtype=torch.bool)
    expected = 0.0
    for head in range(HEADS):
        q, k = real_points(query, key, mask, head)
        expected += ot.gaussian.empirical_bures_wasserstein_distance(q, k, reg=0) ** 2 / spread_of(q, k)
    assert loss_of("moments")(query, key, mask).item() == pytest.approx(expected, abs=3 * SHRINKAGE)


@pytest.mark.parametrize("name", POOLED)
@pytest.mark.parametrize("mask", [None, token_mask()], ids=["whole", "padded"])
def test_gradient(name, mask):
    module = loss_of(name)
    assert torch.autograd.gradcheck(lambda query, key: module(query, key, mask), features())


@pytest.mark.parametrize("name", POOLED)
def test_padded_equals_sliced(name):
    """One long sample of the same real tokens has the same loss, and the place of the padding does not matter."""
    module, (query, key), mask = loss_of(name), features(), token_mask()
    loss = module(query, key, mask)
    loss.backward()
    joined = [side.detach().transpose(1, 2)[mask].transpose(0, 1)[None].requires_grad_() for side in (query, key)]
    expected = module(*joined)
    torch.testing.assert_close(loss, expected)
    expected.backward()
    for side, flat in zip((query, key), joined, strict=True):
        torch.testing.assert_close(side.grad.transpose(1, 2)[mask], flat.grad[0].transpose(0, 1))
        assert side.grad.transpose(1, 2)[~mask].abs().max() == 0
    by_column = mask.T.contiguous().T
    assert not by_column.is_contiguous()
    torch.testing.assert_close(module(query, key, by_column), loss)
    flipped = module(query.flip(2), key.flip(2), mask.flip(1))
    torch.testing.assert_close(flipped, loss)


@pytest.mark.parametrize("name", POOLED)
def test_equal_clouds_have_zero_loss_and_gradient(name):
    query, _ = features()
    key = query.detach().flip(0).requires_grad_()
    loss = loss_of(name)(query, key)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-9)
    assert query.grad.abs().max() < 1e-6


@pytest.mark.parametrize("name", POOLED)
def test_a_common_scale_and_shift_do_not_change_the_loss(name):
    module, (query, key) = loss_of(name), features()
    expected = module(query, key)
    for scale, shift in ((1e-2, 0.0), (1e2, 0.0), (1.0, 3.0)):
        torch.testing.assert_close(module(scale * query + shift, scale * key + shift), expected, rtol=1e-5, atol=0)


def test_minimising_the_moments_brings_the_clouds_together():
    """Judged by the energy distance of SciPy's distances, which `moments` does not minimise."""
    module, (query, key) = loss_of("moments").train(), features(batch=8)
    mask = torch.ones(8, LENGTH, dtype=torch.bool)

    def judged():
        clouds = [real_points(query, key, mask, head) for head in range(HEADS)]
        return sum(energy_distance(q, k) / spread_of(q, k) ** 0.5 for q, k in clouds)

    def energy_distance(q, k):
        mean = [scipy.spatial.distance.cdist(*pair).mean() for pair in ((q, k), (q, q), (k, k))]
        return 2 * mean[0] - mean[1] - mean[2]

    before = judged()
    optimizer = torch.optim.Adam([query, key], lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        module(query, key).backward()
        optimizer.step()
    assert judged() < before / 3


@pytest.mark.parametrize("name", POOLED)
def test_two_distant_points_have_a_loss_of_four_and_a_gap_of_two(name):
    query, key = (torch.full((2, HEADS, 3, DIM), value, dtype=torch.float64) for value in (-1e3, 1e3))
    loss, diagnostics = loss_of(name).with_diagnostics(query, key)
    assert diagnostics["mean_gap"].item() == pytest.approx(2)
    assert loss.item() / HEADS == pytest.approx(4, rel=1e-3)


def test_hashes_are_distinct_and_uniform():
    step = torch.tensor(7)
    hashes = hashed(step, torch.arange(100_000))
    assert len(hashes.unique()) == 100_000
    shares = torch.histc(hashes.double(), bins=16, min=0, max=2**32) / 100_000
    assert (shares - 1 / 16).abs().max() < 0.005
    assert not torch.equal(hashes, hashed(step + 1, torch.arange(100_000)))


def test_each_call_keeps_its_own_mask():
    """Two forwards of one shape with different masks together give the mean of each alone."""
    module, mask = loss_of("moments"), token_mask()
    calls = []
    for seed, real in ((0, mask), (1, mask.flip(1))):
        query, key = (side.transpose(1, 2).flatten(2) for side in features(seed))
        calls.append(Call(query, key, HEADS, real, real, 0))
    together = module.of_calls(calls)[0]
    alone = [module.of_calls([call])[0] for call in calls]
    torch.testing.assert_close(together, sum(alone) / 2)
