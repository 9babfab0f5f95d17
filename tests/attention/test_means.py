"""The alignment of means against a loop over tokens in float64; test_pooled and test_alignment test what it shares."""

import pytest
import torch
from precision import assert_as_precise_as_float64

from alignattn.attention.alignment import MeansAlignment, moments
from alignattn.attention.alignment.calls import Call
from alignattn.attention.choices import ALIGNMENTS

BATCH, HEADS, LENGTH, DIM = 3, 2, 7, 5
MASK = torch.arange(LENGTH) < torch.tensor([7, 4, 0])[:, None]


def features(length=LENGTH, seed=0, dtype=torch.float64, shift=0.0, heads=HEADS):
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, BATCH, heads, length, DIM, generator=generator, dtype=torch.float64)
    return [(side + shift).to(dtype).requires_grad_() for side in (query, 2 * key + 0.5)]


def loop(query, key, mask, key_mask):
    """Return the sum over heads of the squared distance of the means in units of the squared spread."""
    total = 0.0
    for head in range(query.shape[1]):
        clouds = [
            [side[b, head, i] for b in range(len(side)) for i in range(side.shape[2]) if real[b, i]]
            for side, real in ((query, mask), (key, key_mask))
        ]
        of_query, of_key = (sum(cloud) / len(cloud) for cloud in clouds)
        joint = (of_query + of_key) / 2
        spreads = [sum((point - joint) @ (point - joint) for point in cloud) / len(cloud) for cloud in clouds]
        total = total + (of_query - of_key) @ (of_query - of_key) / (sum(spreads) / 2)
    return total


def assert_equal(found, expected, sides):
    """Compare losses and their gradients."""
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, sides), torch.autograd.grad(expected, sides))


@pytest.mark.parametrize("mask", [None, MASK, MASK.flip(1)], ids=["whole", "right", "left"])
def test_value_and_gradient_are_those_of_a_loop(mask):
    everything = torch.ones(BATCH, LENGTH, dtype=torch.bool) if mask is None else mask
    sides = features()
    assert_equal(MeansAlignment(DIM).double()(*sides, mask), loop(*sides, everything, everything), sides)


def test_keys_of_other_tokens_are_those_of_a_loop():
    key_mask = torch.arange(LENGTH + 2) < torch.tensor([2, 9, 5])[:, None]
    sides = [features()[0], features(LENGTH + 2, seed=1)[1]]
    found = MeansAlignment(DIM).double()(*sides, MASK, key_mask=key_mask)
    assert_equal(found, loop(*sides, MASK, key_mask), sides)


def test_grouped_queries_are_those_of_a_loop():
    """A key that several queries share gets the sum of their gradients."""
    (query, _), (_, key) = features(heads=4), features(heads=2)
    shared = key.repeat_interleave(2, dim=1)
    assert_equal(MeansAlignment(DIM).double()(query, shared, MASK), loop(query, shared, MASK, MASK), (query, key))


def test_it_is_the_first_term_of_moments(monkeypatch):
    """Where the maps are the identity, the second term is 0, and so is its gradient."""
    identity = torch.eye(DIM, dtype=torch.float64)
    monkeypatch.setattr(moments, "transport_maps", lambda query, key, _: (identity.expand_as(query),) * 2)
    sides = features()
    found, first = (ALIGNMENTS.load(name)(DIM).double()(*sides, MASK) for name in ("means", "moments"))
    assert_equal(found, first, sides)


@pytest.mark.parametrize("shift", [1e2, 1e4])
def test_a_large_common_mean_costs_no_precision(shift):
    sides = features(64, dtype=torch.float32, shift=shift)
    assert_as_precise_as_float64(MeansAlignment(DIM), sides, rel=1e-5)


def test_the_first_token_may_lie_far_from_the_others():
    """Sums start at it."""
    sides = features(64, dtype=torch.float32)
    with torch.no_grad():
        for side in sides:
            side[0, :, 0] = 1e2
    exact = [side.detach().double() for side in sides]
    assert MeansAlignment(DIM)(*sides).item() == pytest.approx(MeansAlignment(DIM)(*exact).item(), rel=1e-4)


def test_a_second_derivative_is_refused():
    query, key = features()
    (slope,) = torch.autograd.grad(MeansAlignment(DIM).double()(query, key, MASK), query, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        slope.sum().backward()


def test_minimising_the_loss_brings_the_means_together():
    query, key = features()
    module = MeansAlignment(DIM).double()
    optimizer = torch.optim.Adam([query, key], lr=0.02)
    before = (query - key).mean(dim=(0, 2)).norm().item()
    for _ in range(60):
        optimizer.zero_grad()
        module(query, key).backward()
        optimizer.step()
    assert (query - key).mean(dim=(0, 2)).norm().item() < before / 3


def test_each_layer_of_a_group_has_its_own_points_and_mask():
    calls = []
    for layer, mask in enumerate((MASK, MASK.roll(1, dims=0), MASK)):
        query, key = (side.transpose(1, 2).flatten(2) for side in features(seed=layer))
        calls.append(Call(query, key, HEADS, mask, mask, layer))
    module = MeansAlignment(DIM, num_layers=3).double()
    alone = [loop(*features(seed=call.layer), call.query_mask, call.key_mask) for call in calls]
    torch.testing.assert_close(module.of_calls(calls)[0], sum(alone) / 3)
