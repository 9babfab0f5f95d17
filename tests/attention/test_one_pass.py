"""The loss computed in blocks of samples against the loss of the whole batch at once."""

import pytest
import torch
from torch import nn

from alignattn.attention.alignment import one_pass
from alignattn.attention.choices import ALIGNMENTS

BATCH, HEADS, LENGTH, DIM = 5, 2, 7, 4
BY_SAMPLE = [name for name in ALIGNMENTS if ALIGNMENTS[name].averages_samples]
"""Alignments that are computed in blocks."""
MASK = torch.tensor(
    [
        [1, 1, 1, 1, 1, 1, 1],
        [0, 0, 1, 1, 1, 1, 1],  # padded on the left
        [1, 0, 1, 1, 0, 0, 1],  # with holes
        [0, 0, 0, 0, 0, 0, 0],  # wholly padded
        [1, 1, 1, 0, 0, 0, 0],
    ],
    dtype=torch.bool,
)


def features(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, BATCH, LENGTH, HEADS * DIM, generator=generator, dtype=torch.float64).to(dtype)
    return [tensor.requires_grad_() for tensor in (query, key)]


def heads_of(tensor):
    return tensor.unflatten(-1, (HEADS, DIM)).transpose(1, 2)


def at_once(alignment, query, key, mask):
    features = torch.stack((query, key)).transpose(2, 3).contiguous()
    losses, diagnostics = alignment.losses(features[None], None if mask is None else mask[None, None], slice(0, 1))
    return losses[0], diagnostics[0]


def in_blocks(alignment, query, key, mask):
    loss, diagnostics = alignment.with_diagnostics(query, key, mask)
    return loss, diagnostics[alignment.diagnostic]


def gradients(result, tensors):
    return torch.autograd.grad(3 * result[0], tensors, allow_unused=True, retain_graph=True)


@pytest.mark.parametrize("elements", [1, 3 * LENGTH * HEADS * DIM, one_pass.BLOCK_ELEMENTS])
@pytest.mark.parametrize("mask", [None, MASK], ids=["unpadded", "padded"])
@pytest.mark.parametrize("name", BY_SAMPLE)
def test_blocks_give_the_loss_the_diagnostic_and_the_gradients_of_the_whole_batch(name, mask, elements, monkeypatch):
    monkeypatch.setattr(one_pass, "BLOCK_ELEMENTS", elements)
    alignment = ALIGNMENTS.load(name)(DIM).double()
    tensors = [*features(), *alignment.parameters()]
    query, key = map(heads_of, tensors[:2])
    expected = at_once(alignment, query, key, mask)
    found = in_blocks(alignment, query, key, mask)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, tensors), gradients(expected, tensors))
    torch.testing.assert_close(gradients(found, tensors), gradients(expected, tensors), msg="a second backward")


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_only_trained_tensors_get_a_gradient(name):
    alignment = ALIGNMENTS.load(name)(DIM).double()
    for parameter in list(alignment.parameters())[1::2]:
        parameter.requires_grad_(False)
    query, key = features()
    in_blocks(alignment, heads_of(query), heads_of(key.detach()), MASK)[0].backward()
    assert query.grad.abs().max() > 0
    assert key.grad is None
    assert [parameter.grad is not None for parameter in alignment.parameters()] == [
        parameter.requires_grad for parameter in alignment.parameters()
    ]


def test_without_gradients_the_value_is_the_same():
    alignment = ALIGNMENTS.load("ct")(DIM).double()
    query, key = map(heads_of, features())
    with torch.no_grad():
        found = in_blocks(alignment, query, key, MASK)
    assert not found[0].requires_grad
    torch.testing.assert_close(found, in_blocks(alignment, query, key, MASK))


def test_half_precision_features_get_the_gradient_of_their_float32_copies():
    alignment = ALIGNMENTS.load("ct")(DIM)
    half = features(torch.bfloat16)
    whole = [tensor.detach().float().requires_grad_() for tensor in half]
    for pair in (half, whole):
        in_blocks(alignment, *map(heads_of, pair), MASK)[0].backward()
    for found, expected in zip(half, whole, strict=True):
        assert found.grad.dtype == torch.bfloat16
        torch.testing.assert_close(found.grad, expected.grad.bfloat16())


def test_checkpointing_around_it_keeps_the_gradient():
    alignment = ALIGNMENTS.load("gan")(DIM).double()
    layer = nn.Linear(HEADS * DIM, HEADS * DIM).double()
    query, key = features()

    def loss(query, key):
        return in_blocks(alignment, heads_of(layer(query)), heads_of(key), MASK)[0]

    tensors = [query, key, *layer.parameters(), *alignment.parameters()]
    expected = torch.autograd.grad(loss(query, key), tensors)
    checkpointed = torch.utils.checkpoint.checkpoint(loss, query, key, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(checkpointed, tensors), expected)
