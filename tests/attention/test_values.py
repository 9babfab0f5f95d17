"""The value slot and the pooling against loops written from the equations."""

import pytest
import torch

import alignattn
from alignattn.attention.choices import VALUES
from alignattn.attention.pooling import AttentionPooling
from alignattn.support.errors import AlignAttnError

BATCH, HEADS, LENGTH, DIM = 2, 3, 5, 4
INTERACTING = ("interaction", "sum", "qvi")
REAL = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)


def tensors(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, BATCH, HEADS, LENGTH, DIM, generator=generator, dtype=torch.float64).to(dtype)


def value_of(name, **options):
    torch.manual_seed(1)
    module = VALUES.load(name)(DIM, HEADS, **options).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return module


def one_value(name, module, head, queries, value):
    """g(Q, v) of one value `[d]` and the real queries `[n, d]`, eqs. 7 to 10."""
    if name == "identity":
        return value
    weights = torch.softmax(queries @ value / DIM**0.5, dim=0)
    attended = sum(weight * query for weight, query in zip(weights, queries, strict=True))
    interacted = attended * (module.weight[head] @ value)
    if name == "interaction":
        return interacted
    if name == "sum":
        return interacted + value
    mixed = module.mix[head, 0] * interacted + module.mix[head, 1] * value
    beta = torch.sigmoid(module.gate[head] @ mixed)
    return (beta * value + (1 - beta) * interacted) / module.divisor


@pytest.mark.parametrize("name", VALUES)
def test_values_are_those_of_the_equations(name):
    module, (query, value) = value_of(name), tensors()
    found = module(query, value, REAL[:, None, None, :])
    for b, h, j in torch.cartesian_prod(*map(torch.arange, found.shape[:3])).tolist():
        expected = one_value(name, module, h, query[b, h, REAL[b]], value[b, h, j])
        torch.testing.assert_close(found[b, h, j], expected)


@pytest.mark.parametrize("name", VALUES)
def test_gradients_reach_the_inputs_and_every_parameter(name):
    module, (query, value) = value_of(name), tensors()
    query, value = query.clone().requires_grad_(), value.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda *_: module(query, value), (query, value, *module.parameters()))
    module(query, value).square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in module.parameters())


@pytest.mark.parametrize("name", ["sum", "qvi"])
def test_pretrained_init_is_the_identity_and_alive(name):
    query, value = tensors()
    module = VALUES.load(name)(DIM, HEADS).double()
    found = module(query, value)
    torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-4)
    found.square().sum().backward()
    assert module.weight.grad.norm() > 0.1
    assert all(parameter.grad.abs().max() > 0 for parameter in module.parameters())


@pytest.mark.parametrize("name", ["sum", "qvi"])
def test_paper_init_is_random_and_divides_by_nothing(name):
    query, value = tensors()
    module = VALUES.load(name)(DIM, HEADS, init="paper").double()
    assert (module.weight == 0).sum() == 0
    expected = one_value(name, module, 0, query[0, 0], value[0, 0, 0])
    torch.testing.assert_close(module(query, value)[0, 0, 0], expected)
    assert getattr(module, "divisor", 1.0) == 1.0


@pytest.mark.parametrize("name", ["sum", "qvi"])
def test_unknown_init(name):
    with pytest.raises(AlignAttnError, match="init='zero' is unknown: choose one of pretrained, paper"):
        VALUES.load(name)(DIM, HEADS, init="zero")


def pooling(value="identity", **fields):
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"pooling": AttentionPooling(DIM)}).double()
    return alignattn.attach(model, value=value, alignment=None, **fields)


class TestPooling:
    @pytest.mark.parametrize("name", VALUES)
    def test_against_the_equations(self, name):
        model = pooling(name, value_options={"init": "paper"} if name in ("sum", "qvi") else {})
        module, value = model["pooling"], model["pooling"].alignattn.value_slot
        tokens = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64)
        with alignattn.collect(model) as seen:
            pooled = module(tokens, REAL)
        weights = seen.layers[0].weights[:, 0, 0]
        assert torch.equal(seen.layers[0].key_mask, REAL)
        for b in range(BATCH):
            real, query = tokens[b, REAL[b]], module.pooling_query
            scores = torch.stack([query @ torch.tanh(module.key_projection(token)) for token in real])
            alpha = torch.softmax(scores, dim=0)
            values = [one_value(name, value.double(), 0, query[None], token) for token in real]
            torch.testing.assert_close(pooled[b], sum(a * v for a, v in zip(alpha, values, strict=True)))
            torch.testing.assert_close(module(tokens, REAL)[b], pooled[b])
            torch.testing.assert_close(weights[b, REAL[b]], alpha)
            assert (weights[b, ~REAL[b]] == 0).all()

    @pytest.mark.parametrize(
        "fields", [{}, {"value": "qvi"}, {"score": "additive"}, {"normalizer": "entmax15"}], ids=str
    )
    def test_padded_equals_sliced_and_every_parameter_learns(self, fields):
        model = pooling(**fields)
        tokens = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64)
        pooled = model["pooling"](tokens, REAL)
        torch.testing.assert_close(pooled[1:], model["pooling"](tokens[1:, :3]))
        pooled.square().sum().backward()
        assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())

    def test_one_query_has_no_distribution_and_no_place(self):
        with pytest.raises(AlignAttnError, match="'ct' matches distributions, and ModuleDict pools by a learned query"):
            alignattn.attach(torch.nn.ModuleDict({"pooling": AttentionPooling(DIM)}), "aa-ct")
        with pytest.raises(AlignAttnError, match=r"'local' opens a window .* own place, and ModuleDict pools"):
            pooling(normalizer="local")
        pooling(normalizer="local", normalizer_options={"kind": "predictive"})
        with pytest.raises(AlignAttnError, match=r"fertility is a budget over the steps .* ModuleDict attends in one"):
            pooling(normalizer="csoftmax", normalizer_options={"fertility": 1.5})
        with pytest.raises(AlignAttnError, match=r"pooling pools by a learned query, .* cannot be balanced"):
            alignattn.balance(pooling(), [{"tokens": torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64)}])
