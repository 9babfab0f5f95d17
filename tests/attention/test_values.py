"""The value slot and the pooling against loops written from the equations."""

import copy
import math

import pytest
import torch

import alignattn
from alignattn.attention.choices import VALUES
from alignattn.attention.pooling import AttentionPooling, FeaturePooling
from alignattn.models.memory import MemN2NConfig, MemoryHop, SentenceTable
from alignattn.models.sequence.lstm import StepAttention
from alignattn.models.text_classifiers import MetaEmbedding
from alignattn.patching.balance import balanced_heads
from alignattn.utils.errors import AlignAttnError

ONE_QUERY = {
    "a text": AttentionPooling,
    "a text by features": FeaturePooling,
    "embeddings": lambda size: MetaEmbedding(5, 7, size=size),
    "a story": lambda size: MemoryHop(SentenceTable(MemN2NConfig(embedding_dim=size))),
    "a decoder, step by step": StepAttention,
}
"""Modules that attend with one query per call, made by feature size."""

BATCH, HEADS, LENGTH, DIM = 2, 3, 5, 4
INTERACTING = ("interaction", "sum", "qvi")
REAL = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)


POOLED = {"identity": 0, "interaction": DIM**2, "sum": DIM**2, "qvi": DIM**2 + 2 * DIM}
"""Number of parameters of a value with one query: W, and the gate's u of eq. 5."""


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
    """Return g(Q, v) of self-attention for one value `[d]` and the real queries `[n, d]`, eqs. 7 to 10."""
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


def pooled_text(name, parameters, query, scores, tokens):
    """Return the tokens pooled by a query q, eqs. 4 to 6, in Python floats: Σ_i α_i (β_i v_i + (1 - β_i) q ∗ W v_i)."""
    size, exponentials = len(query), [math.exp(score) for score in scores]
    result = [0.0] * size
    for exponential, token in zip(exponentials, tokens, strict=True):
        found = token
        if name != "identity":
            row = parameters["weight"]
            met = [query[k] * sum(row[k][j] * token[j] for j in range(size)) for k in range(size)]
            beta = {"interaction": 0.0}.get(name)
            if name == "qvi":
                u = parameters["gate"]
                logit = sum(u[k] * met[k] for k in range(size)) + sum(u[size + k] * token[k] for k in range(size))
                beta = 1 / (1 + math.exp(-logit))
            both = zip(met, token, strict=True)
            found = [m + t if beta is None else beta * t + (1 - beta) * m for m, t in both]
        for k in range(size):
            result[k] += exponential / sum(exponentials) * found[k]
    return result


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
def test_pretrained_init_is_the_identity_and_gets_gradients(name):
    query, value = tensors()
    module = VALUES.load(name)(DIM, HEADS).double()
    found = module(query, value)
    torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-4)
    found.square().sum().backward()
    assert module.weight.grad.norm() > 0.1
    assert all(parameter.grad.abs().max() > 0 for parameter in module.parameters())


@pytest.mark.parametrize("name", ["sum", "qvi"])
def test_paper_init_is_random_and_has_a_divisor_of_one(name):
    query, value = tensors()
    module = VALUES.load(name)(DIM, HEADS, init="paper").double()
    assert (module.weight == 0).sum() == 0
    expected = one_value(name, module, 0, query[0, 0], value[0, 0, 0])
    torch.testing.assert_close(module(query, value)[0, 0, 0], expected)
    assert getattr(module, "divisor", 1.0) == 1.0


@pytest.mark.parametrize("name", ["sum", "qvi"])
def test_an_unknown_init_is_refused(name):
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
        assert sum(parameter.numel() for parameter in value.parameters()) == POOLED[name]
        with torch.no_grad():
            for parameter in value.parameters():
                parameter.copy_(torch.randn_like(parameter))
        parameters = {key: parameter[0].tolist() for key, parameter in value.double().named_parameters()}
        tokens = torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64)
        with alignattn.collect(model) as seen:
            pooled = module(tokens, REAL)
        weights = seen.layers[0].weights[:, 0, 0]
        assert torch.equal(seen.layers[0].key_mask, REAL)
        for b in range(BATCH):
            real, query = tokens[b, REAL[b]], module.pooling_query
            scores = torch.stack([query @ torch.tanh(module.key_projection(token)) for token in real])
            expected = pooled_text(name, parameters, query.tolist(), scores.tolist(), real.tolist())
            torch.testing.assert_close(pooled[b], torch.tensor(expected, dtype=torch.float64))
            torch.testing.assert_close(module(tokens, REAL)[b], pooled[b])
            torch.testing.assert_close(weights[b, REAL[b]], torch.softmax(scores, dim=0))
            assert (weights[b, ~REAL[b]] == 0).all()

    @pytest.mark.parametrize("make", ONE_QUERY.values(), ids=ONE_QUERY)
    def test_the_gate_of_one_query_has_two_weights_for_each_feature_of_a_value(self, make):
        model = alignattn.attach(torch.nn.ModuleDict({"one": make(300)}), value="qvi", alignment=None)
        parameters = dict(model["one"].alignattn.value_slot.named_parameters())
        parameters.pop("weight")
        assert sum(parameter.numel() for parameter in parameters.values()) == 600

    def test_pretrained_init_is_the_identity_and_gets_gradients(self):
        model, tokens = pooling("qvi"), torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64)
        pooled, plain = model["pooling"](tokens, REAL), pooling()["pooling"](tokens, REAL)
        torch.testing.assert_close(pooled, plain, rtol=1e-4, atol=1e-4)
        pooled.square().sum().backward()
        assert model["pooling"].alignattn.value_slot.weight.grad.norm() > 0.1
        assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())

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

    def test_a_copy_of_a_pooling_model_cannot_be_balanced_either(self):
        for model in (pooling(), copy.deepcopy(pooling())):
            with pytest.raises(AlignAttnError, match="pools by a learned query"):
                balanced_heads(model)

    def test_pooling_refuses_what_needs_a_distribution_or_positions(self):
        with pytest.raises(AlignAttnError, match="'ct' matches distributions, and ModuleDict pools by a learned query"):
            alignattn.attach(torch.nn.ModuleDict({"pooling": AttentionPooling(DIM)}), "aa-ct")
        with pytest.raises(AlignAttnError, match=r"'local' opens a window .* of a query, and ModuleDict pools"):
            pooling(normalizer="local")
        pooling(normalizer="local", normalizer_options={"kind": "predictive"})
        with pytest.raises(AlignAttnError, match=r"fertility is a budget over the steps .* ModuleDict attends in one"):
            pooling(normalizer="csoftmax", normalizer_options={"fertility": 1.5})
        with pytest.raises(AlignAttnError, match=r"pooling pools by a learned query, .* cannot be balanced"):
            alignattn.balance(pooling(), [{"tokens": torch.randn(BATCH, LENGTH, DIM, dtype=torch.float64)}])
