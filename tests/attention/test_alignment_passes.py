"""The parts of GAN and CT that the CPU computes without autograd, against autograd and dense formulas.

test_blocks compares whole losses, padded or not, with autograd.
"""

import threading

import pytest
import torch
from torch import nn

from alignattn.attention.alignment import ct
from alignattn.attention.alignment.gan import GANAlignment
from alignattn.attention.alignment.networks import Discriminator, Navigator, unit_vectors
from alignattn.attention.alignment.passes import (
    SCRATCH,
    SCRATCH_BYTES,
    Scratch,
    has_passes,
    network_pass,
    normalize_,
    normalize_gradient_,
)
from alignattn.attention.choices import ALIGNMENTS

BATCH, HEADS, LENGTH, DIM = 2, 3, 7, 5
WEIGHT = 0.3
ADVERSARIES = ["gan", "ct"]


def vectors(spread=1.0, dtype=torch.float64):
    """Return navigator and unit critic vectors, stored as rows by token, and buffers for their gradients."""
    generator = torch.Generator().manual_seed(0)
    tensors = torch.randn(2, 2, BATCH, LENGTH, HEADS, DIM, generator=generator, dtype=torch.float64)
    navigated, unit = spread * tensors[0], nn.functional.normalize(tensors[1], dim=-1)
    return [
        tensor.to(dtype).transpose(2, 3) for tensor in (navigated, unit, torch.empty_like(unit), torch.empty_like(unit))
    ]


def dense_similarity(navigated, unit):
    scores, product = navigated[0] @ navigated[1].mT, unit[0] @ unit[1].mT
    return ((scores.softmax(dim=-1) + scores.softmax(dim=-2)) * product).sum()


def assert_differentiates(tensors, **tolerance):
    exact = [tensor.double().detach().requires_grad_() for tensor in tensors[:2]]
    expected = WEIGHT * (2 * BATCH * HEADS * LENGTH - dense_similarity(*exact))
    weight = torch.full((1, 1, BATCH, 1, LENGTH), WEIGHT, dtype=tensors[0].dtype)
    of_calls = [tensor[None] for tensor in tensors]
    found = ct.write_gradient_by_length(*of_calls[:2], weight, [LENGTH] * BATCH, *of_calls[2:])
    torch.testing.assert_close(found.double(), expected.detach(), **tolerance)
    gradients = torch.autograd.grad(expected, exact)
    torch.testing.assert_close([tensor.double() for tensor in tensors[2:]], list(gradients), **tolerance)


def smallest_share(navigated):
    """Return the smallest share of a row or column in the softmax of its head over all pairs."""
    joint = (navigated[0] @ navigated[1].mT).flatten(2).softmax(dim=-1).unflatten(-1, (LENGTH, LENGTH))
    return min(joint.sum(dim=-1).min(), joint.sum(dim=-2).min()).item()


class TestTransport:
    @pytest.mark.parametrize("matrices", [0, 1, 4, 100])
    def test_value_and_gradients_match_the_dense_formula(self, matrices, monkeypatch):
        """For any number of heads computed at once; with none, attention computes it."""
        monkeypatch.setattr(ct, "MATRIX_ELEMENTS", matrices * LENGTH**2)
        assert_differentiates(vectors())

    @pytest.mark.parametrize(
        ("dtype", "spread", "tolerance"),
        [(torch.float64, 4.0, {}), (torch.float32, 3.0, {"rtol": 1e-4, "atol": 1e-5})],
    )
    def test_wide_scores_are_exact(self, dtype, spread, tolerance):
        tensors = vectors(spread, dtype)
        assert 0 < smallest_share(tensors[0]) < 1e-12
        assert_differentiates(tensors, **tolerance)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_scores_too_wide_for_one_exponential(self, dtype):
        """Some rows' exponentials vanish next to the head's largest; each row still gets its gradient."""
        tensors = vectors(dtype=dtype)
        tensors[0][0, ..., 0] += torch.linspace(0, 500, LENGTH)
        tensors[0][1, ..., 0] += 2.0
        assert smallest_share(tensors[0]) == 0
        assert_differentiates(tensors, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("network_class", "outputs"), [(Discriminator, 1), (Discriminator, 3), (Navigator, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_network_pass_matches_autograd(network_class, outputs, dtype):
    network = network_class(DIM, 4, outputs).to(dtype)
    rows = torch.randn(1, 11, DIM, dtype=dtype, requires_grad=True)
    expected = network(rows)
    upstream = torch.randn_like(expected)
    with torch.no_grad(), SCRATCH.frame():
        result, backward = network_pass(network, rows.detach(), slice(0, 1))
        torch.testing.assert_close(result, expected)
        to_rows, to_parameters = backward(upstream.clone())
        found = [to_rows, *to_parameters]
        torch.testing.assert_close(found, list(torch.autograd.grad(expected, [rows, *network.parameters()], upstream)))


@pytest.mark.parametrize("network_class", [Discriminator, Navigator])
def test_network_pass_of_some_layers_in_blocks_matches_autograd(network_class):
    network = network_class(DIM, 4, 3, num_layers=3).double()
    rows = torch.randn(2 * 5, 11, DIM, dtype=torch.float64, requires_grad=True)  # five blocks for each of two layers
    layers = slice(1, 3)
    expected = network(rows, layers)
    upstream = torch.randn_like(expected)
    with torch.no_grad(), SCRATCH.frame():
        result, backward = network_pass(network, rows.detach(), layers)
        torch.testing.assert_close(result, expected)
        to_rows, found = backward(upstream.clone())
        to_rows_expected, *of_all = torch.autograd.grad(expected, [rows, *network.parameters()], upstream)
        torch.testing.assert_close([to_rows, *found], [to_rows_expected, *(each[layers] for each in of_all)])


def test_normalize_matches_autograd():
    rows = torch.randn(6, DIM, dtype=torch.float64)
    rows[2] = 0
    leaf = rows.clone().requires_grad_()
    expected = unit_vectors(leaf)
    upstream = torch.randn_like(rows)
    with SCRATCH.frame():
        unit, reciprocal = normalize_(rows)
        torch.testing.assert_close(unit, expected.detach())
        found = normalize_gradient_(upstream.clone(), unit, reciprocal)
    torch.testing.assert_close(found, torch.autograd.grad(expected, leaf, upstream)[0])


def features():
    generator = torch.Generator().manual_seed(0)
    return list(torch.randn(2, BATCH, HEADS, LENGTH, DIM, generator=generator, dtype=torch.float64).requires_grad_())


def loss_and_gradients(alignment, query, key):
    loss = alignment(query, key)
    return [loss.detach(), *torch.autograd.grad(loss, [query, key, *alignment.parameters()])]


class TestLoss:
    @pytest.mark.parametrize("name", ALIGNMENTS)
    def test_mean_over_heads_scales_every_gradient(self, name):
        total, mean = (
            ALIGNMENTS.load(name)(DIM, head_reduction=reduction).double().eval() for reduction in ("sum", "mean")
        )
        mean.load_state_dict(total.state_dict())
        expected = [tensor / HEADS for tensor in loss_and_gradients(total, *features())]
        torch.testing.assert_close(loss_and_gradients(mean, *features()), expected)

    @pytest.mark.parametrize("name", ADVERSARIES)
    def test_a_second_derivative_is_refused(self, name):
        query, key = features()
        loss = ALIGNMENTS.load(name)(DIM).double().eval()(query, key)
        (first,) = torch.autograd.grad(loss, query, create_graph=True)
        with pytest.raises(RuntimeError, match="first derivatives only"):
            (first * query).sum().backward()

    @pytest.mark.parametrize("name", ADVERSARIES)
    def test_saved_tensor_hooks_see_no_intermediate_tensors(self, name, monkeypatch):
        """Also on the path through attention, whose graph exists only within the forward pass."""
        monkeypatch.setattr(ct, "MATRIX_ELEMENTS", 0)
        alignment = ALIGNMENTS.load(name)(DIM).double().eval()
        expected = loss_and_gradients(alignment, *features())
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: packed.append(tensor) or tensor, lambda x: x):
            found = loss_and_gradients(alignment, *features())
        torch.testing.assert_close(found, expected)
        assert len(packed) == 1 + len(list(alignment.parameters()))

    @pytest.mark.parametrize("name", ADVERSARIES)
    def test_an_unknown_layer_is_left_to_autograd(self, name):
        """Such as a parametrized one, whose weight is recomputed at every use."""
        known, changed = (ALIGNMENTS.load(name)(DIM).double().eval() for _ in range(2))
        changed.load_state_dict(known.state_dict())
        network = next(changed.children())
        nn.utils.parametrize.register_parametrization(network[-1], "weight", nn.Identity())
        assert not has_passes(network)
        losses = [alignment(*features()) for alignment in (known, changed)]
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(*losses)
        torch.testing.assert_close(
            network[-1].parametrizations.weight.original.grad, next(known.children())[-1].weight.grad
        )

    def test_a_subclass_with_another_equation_is_left_to_autograd(self):
        class Doubled(GANAlignment):
            def compute(self, features, tokens, layers):
                losses, accuracies = super().compute(features, tokens, layers)
                return 2 * losses, accuracies

        once, doubled = GANAlignment(DIM).double(), Doubled(DIM).double()
        doubled.load_state_dict(once.state_dict())
        expected = [2 * tensor for tensor in loss_and_gradients(once, *features())]
        torch.testing.assert_close(loss_and_gradients(doubled, *features()), expected)

    @pytest.mark.parametrize("name", ALIGNMENTS)
    def test_a_batch_without_tokens_has_zero_loss(self, name):
        empty = torch.zeros(BATCH, HEADS, 0, DIM, requires_grad=True)
        loss = ALIGNMENTS.load(name)(DIM)(empty, empty)
        loss.backward()
        assert loss.item() == 0

    @pytest.mark.parametrize("name", ALIGNMENTS)
    def test_training_works_after_inference_mode(self, name):
        """Scratch memory that is first allocated in inference mode must serve training too."""
        found = []

        def work():
            alignment = ALIGNMENTS.load(name)(DIM).double().eval()
            with torch.inference_mode():
                alignment(*features())
            found.append(loss_and_gradients(alignment, *features()))

        thread = threading.Thread(target=work)  # a new thread starts without scratch memory
        thread.start()
        thread.join()
        assert all(tensor.isfinite().all() for tensor in found[0])

    @pytest.mark.parametrize("name", ALIGNMENTS)
    def test_threads_do_not_share_scratch_memory(self, name):
        alignments = [ALIGNMENTS.load(name)(DIM).double().eval() for _ in range(2)]
        expected = [loss_and_gradients(alignment, *features()) for alignment in alignments]
        is_equal = []

        def work(index):
            for _ in range(30):
                found = loss_and_gradients(alignments[index], *features())
                is_equal.append(all(torch.allclose(*pair) for pair in zip(found, expected[index], strict=True)))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert is_equal == [True] * 60  # an exception in a thread leaves some out


class TestScratch:
    def test_a_frame_frees_the_memory_taken_inside_it(self):
        scratch = Scratch()
        for _ in range(2):  # the first round measures how much is needed
            with scratch.frame():
                outer = scratch.take((3, 5), torch.empty(0))
                with scratch.frame():
                    first = scratch.take((7,), torch.empty(0, dtype=torch.float64))
                with scratch.frame():
                    second = scratch.take((2, 2), torch.empty(0, dtype=torch.float64))
        assert first.data_ptr() == second.data_ptr() != outer.data_ptr()
        assert outer.shape == (3, 5)

    def test_tensors_in_use_do_not_overlap(self):
        scratch = Scratch()
        for _ in range(2):
            with scratch.frame():
                taken = [scratch.take((size,), torch.empty(0)).fill_(size) for size in (1, 17, 100)]
        assert all((tensor == len(tensor)).all() for tensor in taken)

    def test_kept_memory_is_limited(self):
        scratch = Scratch()
        with scratch.frame():
            scratch.take((4 * SCRATCH_BYTES,), torch.empty(0, dtype=torch.uint8))
        assert len(scratch._memory) == SCRATCH_BYTES
