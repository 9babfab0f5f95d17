"""The alignments of all tokens of a batch, without an adversary: means, moments, energy distance, sliced distance."""

import numpy as np
import ot
import pytest
import scipy.linalg
import scipy.spatial
import torch

from alignattn.attention.alignment import draws
from alignattn.attention.alignment.calls import Call
from alignattn.attention.alignment.mmd import SMOOTHING
from alignattn.attention.alignment.moments import SHRINKAGE
from alignattn.attention.alignment.pooled import StandardizedClouds
from alignattn.attention.choices import ALIGNMENTS
from alignattn.utils.errors import AlignAttnError

BATCH, HEADS, LENGTH, DIM = 3, 2, 6, 4
REAL_TOKENS = (6, 4, 3)
POOLED = ("means", "moments", "mmd", "sliced")
SAMPLED = ("mmd", "sliced")


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


def dense_means(q, k, module):
    return ((q.mean(0) - k.mean(0)) ** 2).sum() / spread_of(q, k)


def dense_moments(q, k, module):
    spread = spread_of(q, k)
    ridge = SHRINKAGE * spread / DIM * np.eye(DIM)
    of_query, of_key = (np.cov(side.T, bias=True) + ridge for side in (q, k))
    root = scipy.linalg.sqrtm(of_query)
    overlap = scipy.linalg.sqrtm(root @ of_key @ root)
    gap = ((q.mean(0) - k.mean(0)) ** 2).sum()
    return (gap + np.trace(of_query + of_key - 2 * overlap).real) / spread


def dense_mmd(q, k, module):
    def mean(one, other):
        squares = scipy.spatial.distance.cdist(one, other, "sqeuclidean") / spread_of(q, k)
        return np.sqrt(squares + SMOOTHING**2).mean()

    return 2 * mean(q, k) - mean(q, q) - mean(k, k)


def dense_sliced(q, k, module):
    slices = draws.directions(module.step, DIM, module.directions).numpy()
    squares = [ot.wasserstein_1d(q @ slice_, k @ slice_, p=2) for slice_ in slices.T]
    return DIM * np.mean(squares) / spread_of(q, k)


DENSE = {"means": dense_means, "moments": dense_moments, "mmd": dense_mmd, "sliced": dense_sliced}


@pytest.mark.parametrize("name", POOLED)
@pytest.mark.parametrize("padded", [True, False])
def test_value_is_that_of_an_independent_construction(name, padded):
    module, (query, key) = loss_of(name), features()
    mask = token_mask() if padded else torch.ones(BATCH, LENGTH, dtype=torch.bool)
    expected = sum(DENSE[name](*real_points(query, key, mask, head), module) for head in range(HEADS))
    assert module(query, key, mask if padded else None).item() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("name", POOLED)
def test_keys_of_other_tokens_match_the_construction_and_finite_differences(name):
    module, (query, _), (_, key) = loss_of(name), features(), features(seed=3, length=LENGTH + 2)
    key_mask = torch.arange(LENGTH + 2) < torch.tensor([2, 8, 7])[:, None]
    points = [real_points(query, key, token_mask(), head, key_mask) for head in range(HEADS)]
    expected = sum(DENSE[name](*of_head, module) for of_head in points)
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


@pytest.mark.parametrize("name", ["moments", *SAMPLED])
def test_minimising_the_loss_brings_the_clouds_together(name):
    """Judged by the energy distance of SciPy's distances, which `moments` and `sliced` do not minimise."""
    module, (query, key) = loss_of(name).train(), features(batch=8)
    mask = torch.ones(8, LENGTH, dtype=torch.bool)

    def judged():
        return sum(dense_mmd(*real_points(query, key, mask, head), None) for head in range(HEADS))

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
    # The energy distance is twice the length: 2 · 2. The sliced one has the error of its random directions.
    assert loss.item() / HEADS == pytest.approx(4, rel=0.5 if name == "sliced" else 1e-3)


class TestDraws:
    @pytest.mark.parametrize("name", SAMPLED)
    def test_padding_does_not_change_the_sampled_tokens(self, name):
        module, (query, key), mask = loss_of(name, points=5), features(), token_mask()
        expected = module(query, key, mask)
        wider = [torch.nn.functional.pad(side, (0, 0, 0, 3)) for side in (query, key)]
        torch.testing.assert_close(module(*wider, torch.nn.functional.pad(mask, (0, 3))), expected)

    @pytest.mark.parametrize("name", SAMPLED)
    def test_each_step_samples_anew_and_a_reloaded_module_continues(self, name):
        module, (query, key) = loss_of(name, points=5).train(), features()
        first, second = module(query, key).item(), module(query, key).item()
        assert first != second
        again = loss_of(name, points=5).train()
        again.load_state_dict(module.state_dict())
        assert again(query, key).item() == module(query, key).item()

    @pytest.mark.parametrize("name", SAMPLED)
    def test_the_global_generator_is_left_alone(self, name):
        module = loss_of(name, points=5).train()
        state = torch.get_rng_state()
        module(*features())
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize("name", SAMPLED)
    def test_evaluation_repeats_one_sample(self, name):
        module, (query, key) = loss_of(name, points=5), features()
        assert module(query, key).item() == module(query, key).item()

    @pytest.mark.parametrize("name", SAMPLED)
    def test_a_mask_without_padding_samples_as_no_mask_does(self, name):
        module, (query, key) = loss_of(name, points=7), features()
        everything = torch.ones(BATCH, LENGTH, dtype=torch.bool)
        torch.testing.assert_close(module(query, key, everything), module(query, key))

    def test_the_mean_over_samples_is_near_the_distance_of_all_points(self):
        """The energy distance of P of N points is larger on average (a V-statistic), but close if P is nearly N."""
        module, (query, key) = loss_of("mmd", points=100).train(), features(batch=20)
        whole = loss_of("mmd")(query, key).item()
        drawn = [module(query, key).item() for _ in range(20)]
        assert np.mean(drawn) == pytest.approx(whole, rel=0.1)

    def test_hashes_are_distinct_and_uniform(self):
        step = torch.tensor(7)
        hashes = draws.hashed(step, torch.arange(100_000))
        assert len(hashes.unique()) == 100_000
        shares = torch.histc(hashes.double(), bins=16, min=0, max=2**32) / 100_000
        assert (shares - 1 / 16).abs().max() < 0.005
        assert not torch.equal(hashes, draws.hashed(step + 1, torch.arange(100_000)))

    def test_directions_are_uniform_on_the_sphere(self):
        slices = draws.directions(torch.tensor(3), DIM, 20_000)
        torch.testing.assert_close(slices.norm(dim=0), torch.ones(20_000, dtype=torch.float64))
        assert slices.mean(dim=1).abs().max() < 0.02
        torch.testing.assert_close(
            slices @ slices.T / 20_000, torch.eye(DIM, dtype=torch.float64) / DIM, atol=0.01, rtol=0
        )


def test_each_call_keeps_its_own_mask():
    """Two forwards of one shape with different masks together give the mean of each alone."""
    module, mask = loss_of("mmd", points=5), token_mask()
    calls = []
    for seed, real in ((0, mask), (1, mask.flip(1))):
        query, key = (side.transpose(1, 2).flatten(2) for side in features(seed))
        calls.append(Call(query, key, HEADS, real, real, 0))
    together = module.of_calls(calls)[0]
    alone = [module.of_calls([call])[0] for call in calls]
    torch.testing.assert_close(together, sum(alone) / 2)


def test_units_do_not_depend_on_padding():
    points = torch.randn(1, 2, 5, HEADS, DIM, dtype=torch.float64)
    thirds = torch.tensor([[[1, 1, 1, 0, 0]]], dtype=torch.float64) / 3
    whole, padded = StandardizedClouds.of(points[:, :, :3], thirds[..., :3]), StandardizedClouds.of(points, thirds)
    torch.testing.assert_close(padded.points[..., :3, :], whole.points)
    assert padded.points[..., 3:, :].abs().max() == 0
    torch.testing.assert_close(padded.gap, whole.gap)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mmd", {"points": 1}, "points=1"),
        ("sliced", {"points": 0}, "points=0"),
        ("sliced", {"directions": 0}, "at least 1"),
    ],
)
def test_invalid_options_are_refused(name, options, message):
    with pytest.raises(AlignAttnError, match=message):
        loss_of(name, **options)
