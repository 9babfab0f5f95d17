"""The score slot against loops written from the equations."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from alignattn.attention import scores
from alignattn.attention.choices import SCORES

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 3, 4, 5, 6


def tensors(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(BATCH, HEADS, QUERIES, DIM, generator=generator, dtype=torch.float64)
    key = torch.randn(BATCH, HEADS, KEYS, DIM, generator=generator, dtype=torch.float64)
    return query.to(dtype), key.to(dtype)


def score_of(name, dtype=torch.float64):
    torch.manual_seed(1)
    module = SCORES.load(name)(DIM, HEADS).to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def one_score(name, module, head, query, key):
    """The score of one query `[d]` and one key `[d]`."""
    if name == "dot":
        return query @ key
    if name == "scaled_dot":
        return query @ key / DIM**0.5
    if name == "bilinear":
        return query @ module.weight[head] @ key / DIM**0.5
    if name == "gat":
        return F.leaky_relu(query.sum() + key.sum(), 0.2)
    if name == "gatv2":
        return module.vector[head] @ F.leaky_relu(query + key, 0.2)
    return module.vector[head] @ torch.tanh(module.key_weight[head] @ key + module.query_weight[head] @ query)


@pytest.mark.parametrize("name", SCORES)
def test_scores_are_those_of_the_equation(name):
    module, (query, key) = score_of(name), tensors()
    found = module(query, key)
    assert found.shape == (BATCH, HEADS, QUERIES, KEYS)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, found.shape)).tolist():
        torch.testing.assert_close(found[b, h, i, j], one_score(name, module, h, query[b, h, i], key[b, h, j]))


@pytest.mark.parametrize("name", SCORES)
def test_gradients(name):
    module, features = score_of(name), [tensor.requires_grad_() for tensor in tensors()]
    assert torch.autograd.gradcheck(lambda *_: module(*features), (*features, *module.parameters()))


@pytest.mark.parametrize("name", SCORES)
def test_each_key_is_scored_independently(name):
    module, (query, key) = score_of(name), tensors()
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(module(query, key[:, :, order]), module(query, key)[..., order])
    torch.testing.assert_close(module(query, key[:, :, :3]), module(query, key)[..., :3])


def test_bilinear_starts_as_the_scaled_dot_product():
    query, key = tensors()
    scale = 0.3
    bilinear = SCORES.load("bilinear")(DIM, HEADS).double()
    torch.testing.assert_close(bilinear(query, key, scale), scores.scaled_dot(query, key, scale))


def test_dot_ignores_the_models_scale_and_scaled_dot_applies_it():
    query, key = tensors()
    assert torch.equal(score_of("dot")(query, key, 0.3), score_of("dot")(query, key))
    torch.testing.assert_close(score_of("scaled_dot")(query, key, 0.3), 0.3 * query @ key.mT)


class LargestTensor(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def test_additive_memory_is_bounded(monkeypatch):
    """Neither forward nor backward forms the n × m × a tensor of all queries at once."""
    limit = 2 * BATCH * HEADS * KEYS * DIM
    monkeypatch.setattr(scores, "ADDITIVE_CHUNK_ELEMENTS", limit)
    module, (query, key) = score_of("additive"), [tensor.requires_grad_() for tensor in tensors()]
    with LargestTensor() as largest:
        found = module(query, key)
        found.sum().backward()
    assert largest.elements <= limit < BATCH * HEADS * QUERIES * KEYS * DIM
    whole = [tensor.detach().requires_grad_() for tensor in (query, key)]
    monkeypatch.setattr(scores, "ADDITIVE_CHUNK_ELEMENTS", 10**9)
    module(*whole).sum().backward()
    torch.testing.assert_close([query.grad, key.grad], [tensor.grad for tensor in whole])


@pytest.mark.parametrize("name", SCORES)
def test_half_precision_features_work_with_float32_parameters(name):
    module = score_of(name, torch.float32)
    query, key = tensors(torch.bfloat16)
    found = module(query, key)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), module(query.float(), key.float()), rtol=0.05, atol=0.1)
