"""Attention along edges: normalizers, scores and values against the dense ones with a mask, and on unusual graphs."""

import pytest
import torch
from torch import nn

from alignattn.attention.attend import attend
from alignattn.attention.choices import NORMALIZERS, SCORES, VALUES, choices_with
from alignattn.attention.config import AttentionConfig
from alignattn.attention.masks import Edges, Segments
from alignattn.attention.variant import AttentionVariant
from alignattn.utils.errors import AlignAttnError

NODES, HEADS, SIZE = 9, 2, 4

EDGE_NORMALIZERS = choices_with("normalizer", "has_edge_form")


@pytest.fixture
def pairs():
    """A mask `[n, n]` whose diagonal is True, and its edges in random order."""
    torch.manual_seed(0)
    mask = (torch.rand(NODES, NODES) < 0.3) | torch.eye(NODES, dtype=torch.bool)
    query, key = mask.nonzero().T
    order = torch.randperm(len(query))
    return mask, Edges(query[order], key[order], NODES)


def normalizer_of(name):
    return NORMALIZERS.load(name)(SIZE, HEADS)


@pytest.mark.parametrize("scale", [1, 30])
@pytest.mark.parametrize("name", EDGE_NORMALIZERS)
def test_weights_of_edges_are_the_dense_ones(name, scale, pairs):
    mask, edges = pairs
    scores = scale * torch.randn(1, HEADS, NODES, NODES, dtype=torch.float64)
    dense = normalizer_of(name)(scores, mask)
    found = normalizer_of(name).of_edges(scores[0, :, edges.query, edges.key].T, edges.by_query)
    torch.testing.assert_close(found, dense[0, :, edges.query, edges.key].T)


@pytest.mark.parametrize("name", EDGE_NORMALIZERS)
def test_gradients_of_edges(name, pairs):
    _, edges = pairs
    scores = torch.randn(len(edges.query), HEADS, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda values: normalizer_of(name).of_edges(values, edges.by_query), scores)


@pytest.mark.parametrize("name", ["sparsemax", "entmax15"])
def test_second_derivatives_of_edges_are_refused(name, pairs):
    _, edges = pairs
    scores = torch.randn(len(edges.query), HEADS, dtype=torch.float64, requires_grad=True)
    weights = normalizer_of(name).of_edges(scores, edges.by_query)
    (first,) = torch.autograd.grad(weights[0].sum(), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad((first * scores).sum(), scores)


@pytest.mark.parametrize("name", EDGE_NORMALIZERS)
def test_many_equal_scores_share_equally_and_a_node_may_have_no_edges(name):
    segments = Segments(torch.tensor([0] * 5000 + [2]), 3)
    weights = normalizer_of(name).of_edges(torch.full((5001, HEADS), -1e4), segments)
    torch.testing.assert_close(weights[:-1], torch.full((5000, HEADS), 1 / 5000))
    torch.testing.assert_close(weights[-1], torch.ones(HEADS))
    assert normalizer_of(name).of_edges(torch.zeros(0, HEADS), Segments(segments.index[:0], 3)).shape == (0, HEADS)


@pytest.mark.parametrize("name", sorted(NORMALIZERS.keys() - set(EDGE_NORMALIZERS)))
def test_other_normalizers_name_those_that_support_edges(name):
    with pytest.raises(AlignAttnError, match="choose one of softmax, sparsemax, entmax15"):
        normalizer_of(name).of_edges(torch.zeros(2, HEADS), Segments(torch.tensor([0, 0]), 1))


@pytest.mark.parametrize("choice", [*({"score": name} for name in SCORES), *({"value": name} for name in VALUES)])
def test_attention_along_edges_is_the_dense_one_with_a_mask(choice, pairs):
    mask, edges = pairs
    config = AttentionConfig(normalizer="sparsemax", **choice)
    variant = AttentionVariant(config, SIZE, HEADS).double()
    query, key, value = torch.randn(3, 1, HEADS, NODES, SIZE, dtype=torch.float64, requires_grad=True)
    dense, weights = variant.attend(query, key, value, mask[None, None])
    found, of_edges = variant.attend(query, key, value, edges)
    torch.testing.assert_close(found, dense)
    torch.testing.assert_close(of_edges[0], weights[0, :, edges.query, edges.key])
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), (query, key, value), allow_unused=True),
        torch.autograd.grad(dense.square().sum(), (query, key, value), allow_unused=True),
    )


@pytest.mark.parametrize("shape", [(2, HEADS, NODES, SIZE), (1, HEADS, NODES - 1, SIZE)])
def test_edges_need_the_queries_of_one_graph(shape, pairs):
    heads = torch.randn(shape)
    with pytest.raises(AlignAttnError, match=f"edges of {NODES} nodes"):
        attend(nn.Identity(), heads, heads, heads, pairs[1])
