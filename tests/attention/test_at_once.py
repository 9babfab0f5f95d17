"""The alignment of many attention calls at once, also on the path of a GPU, against a loop over the calls."""

from dataclasses import replace

import pytest
import torch
from benchmark import peak_bytes

from alignattn.attention.alignment import base, one_pass
from alignattn.attention.alignment.calls import Call
from alignattn.attention.choices import ALIGNMENTS

BATCH, LENGTH, HEADS, DIM = 3, 6, 2, 4
LAYERS = 4
PADDED = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)


@pytest.fixture(params=["blocks", "groups"])
def path(request, monkeypatch):
    """The blocks of a CPU, and the groups of layers of a GPU, run on the CPU."""
    if request.param == "groups":
        monkeypatch.setattr(one_pass, "is_in_blocks", lambda _: False)
    return request.param


def call(layer, mask, seed, length=LENGTH):
    generator = torch.Generator().manual_seed(seed)
    size = (2, BATCH, length, HEADS * DIM)
    query, key = torch.randn(size, generator=generator, dtype=torch.float64)
    return Call(query.requires_grad_(), key.requires_grad_(), HEADS, mask, mask, layer)


def calls_of(case):
    """Return attention calls, and the number of their layers."""
    masks = [None, None, None, None]
    if case == "one mask":
        masks = [PADDED] * LAYERS
    elif case == "many masks":
        masks = [PADDED.roll(layer, dims=0) for layer in range(LAYERS)]
    elif case == "some masked":
        masks = [None, PADDED, PADDED, None]
    calls = [call(layer, mask, layer) for layer, mask in enumerate(masks)]
    if case == "shared module":
        return [call(0, PADDED, seed) for seed in range(LAYERS)], 1
    if case == "two forwards":  # of different lengths, and one layer is called once more
        calls += [call(layer, None, layer + LAYERS, LENGTH - 2) for layer in range(LAYERS)]
        calls += [call(layer, None, layer + 2 * LAYERS) for layer in range(LAYERS)]
        calls.append(call(1, None, 3 * LAYERS))
    return calls, LAYERS


def gradients(loss, calls, alignment):
    tensors = [tensor for each in calls for tensor in (each.query, each.key)]
    return torch.autograd.grad(loss, [*tensors, *alignment.parameters()])


CASES = ["no mask", "one mask", "many masks", "some masked", "shared module", "two forwards"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ALIGNMENTS)
def test_values_and_gradients_are_those_of_a_loop(name, case, path):
    assert_is_that_of_a_loop(name, case)


@pytest.mark.parametrize("budget", [1, 5 * BATCH * LENGTH * HEADS * DIM])
@pytest.mark.parametrize("case", ["some masked", "two forwards"])
@pytest.mark.parametrize("name", ALIGNMENTS)
def test_small_groups_are_a_loop_too(name, case, budget, path, monkeypatch):
    monkeypatch.setattr(base, "GROUP_ELEMENTS", budget)
    assert_is_that_of_a_loop(name, case)


def assert_is_that_of_a_loop(name, case):
    calls, layers = calls_of(case)
    alignment = ALIGNMENTS.load(name)(DIM, num_layers=layers).double().eval()
    loss, diagnostics = alignment.of_calls(calls)
    singles = [
        alignment.with_diagnostics(*map(heads_of, (each.query, each.key)), each.query_mask, layer=each.layer)
        for each in calls
    ]
    expected = torch.stack([single for single, _ in singles]).mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        diagnostics[alignment.diagnostic], torch.stack([found[alignment.diagnostic] for _, found in singles]).mean()
    )
    torch.testing.assert_close(gradients(loss, calls, alignment), gradients(expected, calls, alignment))


def heads_of(tensor):
    return tensor.unflatten(-1, (HEADS, DIM)).transpose(1, 2)


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_key_masks_equal_to_the_query_masks_change_nothing(name, path):
    """Guided attention together with self-attention, as in a model of two modalities."""
    alignment = ALIGNMENTS.load(name)(DIM, num_layers=2).double().eval()
    calls = [call(0, PADDED, 0), call(1, None, 1), call(1, PADDED, 2)]
    guided = [calls[0], replace(calls[1], key_mask=torch.ones_like(PADDED)), replace(calls[2], key_mask=PADDED.clone())]
    (loss, diagnostics), (expected, expected_diagnostics) = alignment.of_calls(guided), alignment.of_calls(calls)
    torch.testing.assert_close((loss, diagnostics), (expected, expected_diagnostics))
    torch.testing.assert_close(gradients(loss, calls, alignment), gradients(expected, calls, alignment))


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_calls_are_weighted_by_their_samples(name, path):
    alignment = ALIGNMENTS.load(name)(DIM).double().eval()
    first, second = call(0, None, 0), call(0, None, 1)
    second = Call(second.query[:1], second.key[:1], HEADS, None, None, 0)
    mean, _ = alignment.of_calls([first, second])
    of_first, of_second = (alignment.of_calls([each])[0] for each in (first, second))
    torch.testing.assert_close(mean, (BATCH * of_first + of_second) / (BATCH + 1))


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_groups_take_at_most_half_more_memory_than_one_call_at_a_time(name, monkeypatch):
    """BERT-base at 8 × 512, scaled down: 1/32 of its samples and heads, with 1/32 of the budget."""
    monkeypatch.setattr(one_pass, "is_in_blocks", lambda _: False)
    length, heads, dim, layers, part = 512, 3, 64, 12, 32
    mask = (torch.arange(length) < 400)[None]
    alignment = ALIGNMENTS.load(name)(dim, num_layers=layers)

    def peak(budget):
        monkeypatch.setattr(base, "GROUP_ELEMENTS", budget)

        def work():
            pairs = [torch.randn(2, 1, length, heads * dim).unbind() for _ in range(layers)]
            calls = [
                Call(*(side.requires_grad_() for side in pair), heads, mask, mask, i) for i, pair in enumerate(pairs)
            ]
            alignment.of_calls(calls)[0].backward()

        work()
        return peak_bytes(work, "cpu")

    assert peak(base.GROUP_ELEMENTS // part) <= 1.5 * peak(1)
