"""The adversarial losses GAN and CT, and what all alignments share. test_ot and test_pooled test the others."""

import math

import pytest
import torch
from dense_alignments import DENSE, by
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from alignattn.attention.alignment import CTAlignment, GANAlignment, OTAlignment, ct
from alignattn.attention.alignment.networks import Highway, reverse_gradient
from alignattn.attention.choices import ALIGNMENTS
from alignattn.patching.taps import forked
from alignattn.utils.errors import AlignAttnError

BATCH, HEADS, LENGTH, DIM = 3, 2, 6, 8
REAL_TOKENS = (6, 4, 3)
STEP = 1e-6
BY_SAMPLE = [name for name in ALIGNMENTS if ALIGNMENTS[name].averages_samples]
PLAYERS = {  # +1 descends the loss, -1 ascends it
    "gan": {"query": -1, "key": -1, "discriminator": 1},
    "ct": {"query": 1, "key": 1, "navigator": 1, "critic": -1},
}


def features(seed=0, dtype=torch.float64, length=LENGTH, dim=DIM):
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, BATCH, HEADS, length, dim, generator=generator, dtype=torch.float64).to(dtype)
    return query.requires_grad_(), key.requires_grad_()


def token_mask():
    return torch.arange(LENGTH)[None] < torch.tensor(REAL_TOKENS)[:, None]


def loss_of(name, dtype=torch.float64, dim=DIM, **options):
    torch.manual_seed(1)
    module = ALIGNMENTS.load(name)(dim, **options).to(dtype).eval()  # in training, some sample anew at every call
    with torch.no_grad():  # away from the highway's biased initialisation, whose gate passes little
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


@pytest.mark.parametrize("name", DENSE)
def test_value_is_that_of_the_dense_formula(name):
    module, (query, key), mask = loss_of(name), features(), token_mask()
    torch.testing.assert_close(module(query, key, mask), DENSE[name](module, query, key, mask, mask))
    everything = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    torch.testing.assert_close(module(query, key), DENSE[name](module, query, key, everything, everything))


@pytest.mark.parametrize("name", DENSE)
def test_keys_of_other_tokens_match_the_dense_formula(name):
    module, (query, _), (_, key) = loss_of(name), features(), features(seed=2, length=LENGTH + 3)
    mask, key_mask = token_mask(), torch.arange(LENGTH + 3) < torch.tensor([5, 9, 1])[:, None]
    expected = DENSE[name](module, query, key, mask, key_mask)
    found = module(query, key, mask, key_mask=key_mask)
    torch.testing.assert_close(found, expected)
    signs = (-1, -1) if name == "gan" else (1, 1)
    for side, sign in zip((query, key), signs, strict=True):
        of_dense, of_module = (torch.autograd.grad(loss, side, retain_graph=True)[0] for loss in (expected, found))
        torch.testing.assert_close(of_module, sign * of_dense)
    swapped = module(query[:, :, :4], key, key_mask=key_mask)
    everything = torch.ones(BATCH, 4, dtype=torch.bool)
    torch.testing.assert_close(swapped, DENSE[name](module, query[:, :, :4], key, everything, key_mask))


def finite_difference(objective, tensor):
    slope = torch.zeros_like(tensor)
    with torch.no_grad():
        flat, flat_slope = tensor.view(-1), slope.view(-1)
        for index in range(flat.numel()):
            start = flat[index].item()
            flat[index] = start + STEP
            above = objective().item()
            flat[index] = start - STEP
            below = objective().item()
            flat[index] = start
            flat_slope[index] = (above - below) / (2 * STEP)
    return slope


@pytest.mark.parametrize("name", PLAYERS)
def test_every_player_moves_the_loss_its_own_way(name):
    """Against central differences of the loss: the descending players get its gradient, the ascending its negative."""
    module, (query, key), mask = loss_of(name, dim=4), features(dim=4), token_mask()
    module(query, key, mask).backward()
    tensors = {"query": query, "key": key, **dict(module.named_parameters())}
    for tensor_name, tensor in tensors.items():
        sign = PLAYERS[name][tensor_name.split(".")[0]]
        expected = sign * finite_difference(lambda: module(query, key, mask), tensor.data)
        torch.testing.assert_close(tensor.grad, expected, rtol=1e-5, atol=1e-7, msg=tensor_name)
        assert tensor.grad.abs().max() > 0


@pytest.mark.parametrize("name", BY_SAMPLE)
def test_padded_equals_sliced(name):
    """The loss is the mean over samples of the loss of their real tokens alone; padding gets no gradient."""
    module, (query, key) = loss_of(name), features()
    loss = module(query, key, token_mask())
    loss.backward()
    alone_query, alone_key = features()
    alone = [
        module(alone_query[i : i + 1, :, :count], alone_key[i : i + 1, :, :count])
        for i, count in enumerate(REAL_TOKENS)
    ]
    expected = torch.stack(alone).mean()
    torch.testing.assert_close(loss, expected)
    expected.backward()
    torch.testing.assert_close(query.grad, alone_query.grad)
    torch.testing.assert_close(key.grad, alone_key.grad)
    assert query.grad.transpose(1, 2)[~token_mask()].abs().max() == 0


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_values_at_padding_do_not_matter(name):
    module, (query, key) = loss_of(name), features()
    expected = module(query, key, token_mask())
    with torch.no_grad():
        query.transpose(1, 2)[~token_mask()] = 1e4
        key.transpose(1, 2)[~token_mask()] = -1e4
    torch.testing.assert_close(module(query, key, token_mask()), expected)


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_a_wholly_padded_sample_contributes_nothing(name):
    module, (query, key) = loss_of(name), features()
    mask = token_mask()
    mask[1] = False
    loss = module(query, key, mask)
    others = [0, 2]
    torch.testing.assert_close(loss, module(query[others], key[others], mask[others]))
    loss.backward()
    assert query.grad[1].abs().max() == 0
    assert query.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_a_batch_of_only_padding_has_zero_loss(name):
    module, (query, key) = loss_of(name), features()
    loss, diagnostics = module.with_diagnostics(query, key, torch.zeros(BATCH, LENGTH, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert query.grad.abs().max() == 0
    assert all(value.isfinite() for value in diagnostics.values())


@pytest.mark.parametrize("name", ALIGNMENTS)
@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
def test_queries_that_are_not_finite_have_a_loss_that_is_not_finite(name, lost):
    module, (query, key) = loss_of(name), features()
    with torch.no_grad():
        query[0, 0, 0, 0] = lost
    loss = module(query, key, token_mask())
    loss.backward()
    assert not loss.isfinite()


@pytest.mark.parametrize("name", ALIGNMENTS)
@pytest.mark.parametrize("size", [0.0, 1e-4, 1e4])
@pytest.mark.parametrize("is_constant", [True, False])
def test_extreme_inputs_stay_finite(name, size, is_constant):
    module = loss_of(name, torch.float32)
    query, key = features(dtype=torch.float32)
    with torch.no_grad():
        for tensor in (query, key):
            tensor.copy_(torch.full_like(tensor, size) if is_constant else tensor * size)
    loss = module(query, key, token_mask())
    loss.backward()
    assert loss.isfinite()
    assert query.grad.isfinite().all()
    assert key.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("name", ALIGNMENTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(name, dtype):
    module = loss_of(name, torch.float32)
    query, key = features(dtype=dtype)
    expected = module(query.float(), key.float(), token_mask())
    assert expected.dtype == torch.float32
    assert torch.equal(module(query, key, token_mask()), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(query, key, token_mask()), expected)


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_a_module_cast_to_half_precision_still_computes_in_float32(name):
    query, key = features(dtype=torch.bfloat16)
    loss = loss_of(name, torch.float32).bfloat16()(query, key, token_mask())
    assert loss.dtype == torch.float32
    loss.backward()


def test_a_discriminator_at_chance_has_a_loss_of_two_log_two_per_head():
    module = loss_of("gan")
    with torch.no_grad():
        module.discriminator[-1].weight.zero_()
        module.discriminator[-1].bias.zero_()
    loss = module(*features(), token_mask())
    assert loss.item() == pytest.approx(HEADS * 2 * math.log(2))


class TestDiagnostics:
    def test_discriminator_accuracy_by_hand(self):
        module, (query, key), mask = loss_of("gan"), features(), token_mask()
        _, diagnostics = module.with_diagnostics(query, key, mask)
        right = [
            (sign * by(module.discriminator, side.transpose(1, 2)).squeeze(-1) > 0).double().mean(dim=2)
            for sign, side in ((1, query), (-1, key))
        ]
        by_token = (right[0] + right[1]) / 2
        expected = torch.stack([row[real].mean() for row, real in zip(by_token, mask, strict=True)]).mean()
        torch.testing.assert_close(diagnostics["discriminator_accuracy"], expected)
        assert not diagnostics["discriminator_accuracy"].requires_grad

    def test_critic_gap_by_hand(self):
        module, (query, key), mask = loss_of("ct"), features(), token_mask()
        _, diagnostics = module.with_diagnostics(query, key, mask)
        gaps = []
        for sample in range(BATCH):
            for head in range(HEADS):
                sides = [side[sample, head, mask[sample]] for side in (query, key)]
                means = [nn.functional.normalize(by(module.critic, side), dim=-1).mean(dim=0) for side in sides]
                gaps.append((means[0] - means[1]).norm())
        torch.testing.assert_close(diagnostics["critic_gap"], torch.stack(gaps).mean().detach())

    @pytest.mark.parametrize(
        ("name", "diagnostic", "reached"), [("gan", "discriminator_accuracy", 0.95), ("ct", "critic_gap", 1.0)]
    )
    def test_diagnostics_rise_as_the_adversary_learns_to_distinguish_features(self, name, diagnostic, reached):
        torch.manual_seed(0)
        module = ALIGNMENTS.load(name)(DIM)
        query, key = (side.detach() for side in features(dtype=torch.float32))
        query, key = query + 1, key - 1
        before = module.with_diagnostics(query, key)[1][diagnostic]
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
        for _ in range(150):
            optimizer.zero_grad()
            module(query, key).backward()
            optimizer.step()
        after = module.with_diagnostics(query, key)[1][diagnostic]
        assert after > max(before, reached)


class LargestProduct(TorchDispatchMode):
    """Records how many matrices each tensor holds whose last two sizes are both the sequence's length."""

    def __init__(self, length):
        super().__init__()
        self.length = length
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if (
                isinstance(tensor, torch.Tensor)
                and tensor.dim() >= 2
                and tuple(tensor.shape[-2:]) == (self.length,) * 2
            ):
                self.seen.add(tensor.numel() // self.length**2)
        return result


@pytest.mark.parametrize("matrices", [0, 1])
def test_ct_makes_token_by_token_matrices_only_within_a_budget(matrices, monkeypatch):
    """The budget is a constant: a longer sample makes no such matrix, so memory is linear in its length."""
    length = 37
    monkeypatch.setattr(ct, "MATRIX_ELEMENTS", (matrices + 1) * length**2 - 1)
    query, key = features(dtype=torch.float32, length=length)
    mask = torch.ones(BATCH, length, dtype=torch.bool)
    mask[1, 30:] = False
    with LargestProduct(length) as watch:
        CTAlignment(DIM)(query, key, mask).backward()
    assert watch.seen == {matrices} - {0}
    with LargestProduct(length) as watch:
        _ = query @ key.mT
    assert BATCH * HEADS in watch.seen


def test_highway_gradient():
    layer = Highway(DIM).double()
    rows = torch.randn(1, 5, DIM, dtype=torch.float64, requires_grad=True)
    linear = layer.gate_and_transform

    def highway(x, weight, bias):
        return torch.func.functional_call(
            layer, {"gate_and_transform.weight": weight, "gate_and_transform.bias": bias}, (x,)
        )

    assert torch.autograd.gradcheck(highway, (rows, linear.weight, linear.bias))
    gate, transform = linear(rows).chunk(2, dim=-1)
    torch.testing.assert_close(layer(rows), gate.sigmoid() * transform.relu() + (1 - gate.sigmoid()) * rows)


def test_gradient_reversal():
    x = torch.randn(3, requires_grad=True)
    result = reverse_gradient(x)
    assert torch.equal(result, x)
    (result * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad.tolist() == [-1.0, -2.0, -3.0]


class TestForkedLinear:
    @pytest.mark.parametrize("has_bias", [True, False])
    def test_gradients(self, has_bias):
        """Against two plain linear calls, the second on a detached input."""
        x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
        bias = torch.randn(4, dtype=torch.float64, requires_grad=True) if has_bias else None
        inputs = [tensor for tensor in (x, weight, bias) if tensor is not None]
        attended, aligned = forked(nn.functional.linear(x, weight, bias), x, weight, bias)
        found = torch.autograd.grad(attended.sin().sum() + aligned.square().sum(), inputs)
        plain = nn.functional.linear(x, weight, bias).sin().sum()
        plain = plain + nn.functional.linear(x.detach(), weight, bias).square().sum()
        for one, other in zip(found, torch.autograd.grad(plain, inputs), strict=True):
            torch.testing.assert_close(one, other)

    def test_either_output_alone(self):
        x = torch.randn(2, 5, requires_grad=True)
        weight = torch.randn(4, 5, requires_grad=True)
        attended, aligned = forked(nn.functional.linear(x, weight), x, weight, None)
        assert torch.autograd.grad(aligned.sum(), x, allow_unused=True, retain_graph=True) == (None,)
        assert torch.autograd.grad(attended.sum(), x)[0].abs().max() > 0


class TestBadInput:
    @pytest.mark.parametrize("name", ALIGNMENTS)
    def test_shapes(self, name):
        module, (query, key) = loss_of(name), features()
        with pytest.raises(AlignAttnError, match="must both be"):
            module(query[..., :4], key[..., :4])
        for other in (key[:2], key[:, :1], key[0]):
            with pytest.raises(AlignAttnError, match="must both be"):
                module(query, other)
        for mask in (torch.ones(BATCH, LENGTH), torch.ones(BATCH, LENGTH + 1, dtype=torch.bool)):
            with pytest.raises(AlignAttnError, match="must be bool"):
                module(query, key, mask)
            with pytest.raises(AlignAttnError, match="must be bool"):
                module(query, key[:, :, :4], token_mask(), key_mask=mask)

    @pytest.mark.parametrize("alignment", [GANAlignment, CTAlignment])
    def test_head_reduction(self, alignment):
        with pytest.raises(AlignAttnError, match="sum, mean"):
            alignment(DIM, head_reduction="max")


COMPILED = [*((name, {}) for name in ALIGNMENTS), ("ot", {"cost": "squared_euclidean"})]


# patching/test_compile compiles the losses of padded batches.
@pytest.mark.parametrize(("name", "options"), COMPILED)
def test_compiles_without_a_graph_break(name, options):
    module, (query, key) = loss_of(name, **options), features()
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    players = [query, key, *module.parameters()]
    loss, expected = compiled(query, key), module(query, key)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, players), torch.autograd.grad(expected, players))


MANY = 40
"""Number of tokens of a sample, of which some are drawn."""


@pytest.mark.parametrize("alignment_class", [GANAlignment, OTAlignment, CTAlignment])
def test_each_step_samples_as_many_tokens_as_points_anew(alignment_class):
    torch.manual_seed(0)
    alignment = alignment_class(DIM, points=8)
    query, key = torch.randn(2, 1, HEADS, MANY, DIM, requires_grad=True)
    drawn = []
    for _ in range(3):
        (gradient,) = torch.autograd.grad(alignment(query, key), query)
        drawn.append(gradient[0].abs().sum(dim=(0, 2)) > 0)
    assert [int(places.sum()) for places in drawn] == [8, 8, 8]
    assert not torch.equal(drawn[0], drawn[1])
    assert alignment.state_dict()["step"] == 3
    evaluated = alignment.eval()
    torch.testing.assert_close(evaluated(query, key), evaluated(query, key))


@pytest.mark.parametrize("alignment_class", [GANAlignment, OTAlignment, CTAlignment])
def test_up_to_points_tokens_all_are_used_and_padding_does_not_change_the_sample(alignment_class):
    torch.manual_seed(0)
    alignment = alignment_class(DIM, points=MANY)
    whole = alignment_class(DIM)
    whole.load_state_dict({name: value for name, value in alignment.state_dict().items() if name != "step"})
    query, key = torch.randn(2, 2, HEADS, MANY, DIM)
    torch.testing.assert_close(alignment(query, key), whole(query, key))
    few = alignment_class(DIM, points=8).eval()
    mask = torch.ones(2, MANY + 5, dtype=torch.bool)
    mask[:, MANY:] = False
    padded = [torch.cat([part, torch.full((2, HEADS, 5, DIM), 9.0)], dim=2) for part in (query, key)]
    torch.testing.assert_close(few(*padded, mask), few(query, key))


def test_zero_points_are_refused():
    with pytest.raises(AlignAttnError, match="points=0 must be at least 1"):
        CTAlignment(DIM, points=0)
