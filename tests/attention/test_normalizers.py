"""What all normalizers share. test_normalizer_oracles and test_fusedmax compare them with independent oracles."""

import math

import pytest
import torch
from torch.func import functional_call

from alignattn.attention.choices import NORMALIZERS
from alignattn.attention.normalizers import (
    Local,
    csoftmax,
    entmax,
    entmax15,
    fusedmax,
    hard,
    local_monotonic,
    local_predictive,
    softmax,
    sparsemax,
)
from alignattn.utils.errors import AlignAttnError

BATCH, HEADS, LENGTH, DIM = 2, 3, 6, 4
WITH_OPTIONS = {
    "entmax": ("entmax", {"alpha": 1.3}),
    "entmax-learned": ("entmax", {"alpha": 1.7, "learned": True}),
    "fusedmax": ("fusedmax", {"weight": 0.2}),
    "csoftmax": ("csoftmax", {"bound": 0.3}),
    "local": ("local", {"window": 2}),
    "local-p": ("local", {"kind": "predictive", "window": 2}),
}
CASES = {name: (name, {}) for name in NORMALIZERS} | WITH_OPTIONS
SUM_TO_ONE = [case for case in CASES if case != "local-p"]
GRAPH_BREAKING = ("sparsemax", "entmax15", "entmax", "entmax-learned", "fusedmax")
"""Cases whose autograd functions cannot be traced, such as those of the package `entmax`; two of them are compiled."""
POSITION_FREE = [case for case in CASES if case not in ("fusedmax", "local", "local-p")]


def normalizer(case, dtype=torch.float64):
    torch.manual_seed(1)
    name, options = CASES[case]
    return NORMALIZERS.load(name)(DIM, HEADS, **options).to(dtype)


def inputs(seed=0, dtype=torch.float64, queries=LENGTH, keys=LENGTH, batch=BATCH):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(batch, HEADS, queries, keys, generator=generator, dtype=torch.float64)
    query = torch.randn(batch, HEADS, queries, DIM, generator=generator, dtype=torch.float64)
    return scores.to(dtype).requires_grad_(), query.to(dtype).requires_grad_()


def test_every_choice_has_a_case():
    assert {name for name, _ in CASES.values()} == set(NORMALIZERS)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("case", [case for case in CASES if case != "hard"])
def test_gradients_against_finite_differences(case, is_masked):
    module, (scores, query) = normalizer(case), inputs(queries=3, keys=5, batch=1)
    mask = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5]) if is_masked else None
    names, parameters = zip(*module.named_parameters(), strict=True) if list(module.parameters()) else ((), ())

    def weights(scores, query, *values):
        return functional_call(module, dict(zip(names, values, strict=True)), (scores, mask, query))

    assert torch.autograd.gradcheck(weights, (scores, query, *parameters))


SMOOTH_TWICE = [case for case in CASES if case not in ("entmax15", "entmax", "entmax-learned", "hard")]


@pytest.mark.parametrize("case", SMOOTH_TWICE)
def test_second_derivatives_against_finite_differences(case):
    module, (scores, query) = normalizer(case), inputs(queries=3, keys=5, batch=1)
    assert torch.autograd.gradgradcheck(lambda scores: module(scores, None, query), scores)


class TestWithoutASecondDerivative:
    @pytest.fixture(params=["entmax15", "entmax", "entmax-learned"])
    def weights(self, request):
        module, (scores, query) = normalizer(request.param), inputs()
        return module(4 * scores, None, query), scores

    @pytest.mark.parametrize("cotangent", ["constant", "of the scores"])
    def test_grad_refuses_a_second_derivative(self, weights, cotangent):
        """Also if another part of the second derivative exists: none is dropped silently."""
        weights, scores = weights
        assert (weights == 0).any()
        loss = weights[..., 0].sum() if cotangent == "constant" else weights.square().sum()
        (first,) = torch.autograd.grad(loss, scores, create_graph=True)
        with pytest.raises(RuntimeError, match="second derivative"):
            torch.autograd.grad((first * scores).sum(), scores)

    def test_backward_refuses_a_second_derivative(self, weights):
        weights, scores = weights
        (first,) = torch.autograd.grad(weights[..., 0].sum(), scores, create_graph=True)
        with pytest.raises(RuntimeError, match="second derivative"):
            (first + scores).square().sum().backward()

    def test_create_graph_does_not_change_the_first_derivative(self, weights):
        weights, scores = weights
        first, plain = (
            torch.autograd.grad(weights.square().sum(), scores, create_graph=graph, retain_graph=True)[0]
            for graph in (True, False)
        )
        assert torch.equal(first, plain)

    def test_a_second_derivative_through_a_checkpoint_is_refused(self):
        scores, _ = inputs()
        weights = torch.utils.checkpoint.checkpoint(entmax15, scores, use_reentrant=False)
        (first,) = torch.autograd.grad(weights[..., 0].sum(), scores, create_graph=True)
        with pytest.raises(RuntimeError, match="second derivative"):
            torch.autograd.grad((first * scores).sum(), scores)


@pytest.mark.parametrize("case", ["sparsemax", "entmax15", "entmax", "entmax-learned", "fusedmax"])
def test_torch_refuses_forward_mode_if_it_is_not_implemented(case):
    module, (scores, query) = normalizer(case), inputs()
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(lambda scores: module(scores, None, query), (scores,), (scores,))


@pytest.mark.parametrize("case", ["softmax", "csoftmax", "local", "local-p"])
def test_forward_mode_is_the_transposed_reverse_mode(case):
    module, (scores, query) = normalizer(case), inputs()
    tangent, cotangent = torch.randn_like(scores), torch.randn_like(scores)
    _, pushed = torch.func.jvp(lambda scores: module(scores, None, query), (scores,), (tangent,))
    pulled = torch.autograd.grad(module(scores, None, query), scores, cotangent)[0]
    torch.testing.assert_close((pushed * cotangent).sum(), (pulled * tangent).sum())


def test_hard_is_one_hot_and_has_the_gradient_of_the_softmax():
    scores, _ = inputs()
    mask = torch.rand(BATCH, 1, LENGTH, LENGTH) < 0.7
    cotangent = torch.randn_like(scores)
    weights = hard(scores, mask)
    expected = softmax(scores, mask)
    assert torch.equal(weights.detach().unique(), torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert torch.equal(weights.argmax(dim=-1), expected.argmax(dim=-1))
    found = torch.autograd.grad((weights * cotangent).sum(), scores)[0]
    torch.testing.assert_close(found, torch.autograd.grad((expected * cotangent).sum(), scores)[0])


@pytest.mark.parametrize("real", [range(6), range(3, 9), (0, 2, 3, 5, 7, 8)], ids=["right", "left", "holes"])
@pytest.mark.parametrize("case", CASES)
def test_padded_equals_sliced(case, real):
    """Six real tokens and three of padding, whose scores are larger than all others."""
    real = torch.tensor(list(real))
    module, (scores, query), (padded_scores, padded_query) = normalizer(case), inputs(), inputs(1, queries=9, keys=9)
    with torch.no_grad():
        padded_scores += 1e3
        padded_scores[:, :, real[:, None], real] = scores
        padded_query[:, :, real] = query
    mask = torch.zeros(9, dtype=torch.bool)
    mask[real] = True
    cotangent = torch.randn_like(scores)
    alone = module(scores, None, query)
    padded = module(padded_scores, mask, padded_query)
    assert padded[..., ~mask].abs().max() == 0
    inside = padded[:, :, real[:, None], real]
    torch.testing.assert_close(inside, alone)
    expected = torch.autograd.grad((alone * cotangent).sum(), scores)[0]
    found = torch.autograd.grad((inside * cotangent).sum(), padded_scores)[0]
    torch.testing.assert_close(found[:, :, real[:, None], real], expected)
    assert found[..., ~mask].abs().max() == 0


@pytest.mark.parametrize("case", SUM_TO_ONE)
def test_rows_sum_to_one(case):
    module, (scores, query) = normalizer(case, torch.float32), inputs(dtype=torch.float32, queries=40, keys=40)
    mask = torch.rand(BATCH, 1, 40, 40, generator=torch.Generator().manual_seed(2)) < 0.7
    mask.diagonal(dim1=-2, dim2=-1).fill_(True)
    weights = module(3 * scores, mask, query)
    assert (weights >= 0).all()
    assert weights.masked_select(~mask).abs().max() == 0
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(BATCH, HEADS, 40), rtol=0, atol=2e-6)


def test_local_p_is_not_renormalised():
    module, (scores, query) = normalizer("local-p"), inputs()
    totals = module(scores, None, query).sum(dim=-1)
    assert (totals < 1).all()
    assert (totals > 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_half_precision_is_computed_in_float32(case, dtype):
    module, (scores, query) = normalizer(case, torch.float32), inputs(dtype=dtype)
    expected = module(scores.float(), None, query.float())
    assert expected.dtype == torch.float32
    assert torch.equal(module(scores, None, query), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(scores, None, query), expected)
    exact = module.double()(scores.double(), None, query.double())
    assert exact.dtype == torch.float64
    torch.testing.assert_close(expected.double(), exact, rtol=0, atol=1e-5)
    expected.sum().backward()
    assert scores.grad.dtype == dtype


@pytest.mark.parametrize("case", CASES)
def test_permuting_keys_permutes_weights_unless_positions_matter(case):
    module, (scores, query) = normalizer(case), inputs()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    weights, permuted = module(scores, None, query), module(scores[..., order], None, query)
    same = torch.allclose(weights[..., order], permuted)
    assert same == (case in POSITION_FREE)


@pytest.mark.parametrize(("case", "count"), [("entmax-learned", 1), ("local-p", 2)])
def test_every_parameter_gets_a_gradient_in_every_head(case, count):
    name, options = CASES[case]
    module, (scores, query) = NORMALIZERS.load(name)(DIM, HEADS, **options), inputs(dtype=torch.bfloat16)
    (module(scores, None, query) * torch.randn(BATCH, HEADS, LENGTH, LENGTH)).sum().backward()
    parameters = list(module.parameters())
    assert len(parameters) == count
    for parameter in parameters:
        assert parameter.dtype == torch.float32
        assert (parameter.grad.flatten(1) if parameter.dim() > 1 else parameter.grad).abs().amin() > 0


class TestEdges:
    @pytest.mark.parametrize("case", CASES)
    def test_wholly_masked_rows_are_zero(self, case):
        module, (scores, query) = normalizer(case), inputs()
        mask = torch.ones(BATCH, 1, 1, LENGTH, dtype=torch.bool)
        mask[1] = False
        weights = module(scores, mask, query)
        assert weights[1].abs().max() == 0
        torch.testing.assert_close(weights[0], module(scores[:1], None, query[:1])[0])
        weights.square().sum().backward()
        assert scores.grad[1].abs().max() == 0
        assert all(tensor.grad.isfinite().all() for tensor in (scores, *module.parameters()))

    @pytest.mark.parametrize("case", SUM_TO_ONE)
    def test_one_key(self, case):
        scores, query = inputs(queries=1, keys=1)
        torch.testing.assert_close(normalizer(case)(scores, None, query), torch.ones_like(scores))

    @pytest.mark.parametrize("case", SUM_TO_ONE)
    def test_one_query(self, case):
        scores, query = inputs(queries=1)
        weights = normalizer(case)(scores, None, query)
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones_like(weights[..., 0]))

    @pytest.mark.parametrize("case", [case for case in POSITION_FREE if case != "hard"] + ["fusedmax"])
    def test_equal_scores_share_equally(self, case):
        scores, query = inputs()
        weights = normalizer(case)(torch.full_like(scores, 0.7), None, query)
        torch.testing.assert_close(weights, torch.full_like(scores, 1 / LENGTH))

    @pytest.mark.parametrize("case", ["softmax", "sparsemax", "entmax15", "entmax", "entmax-learned", "csoftmax"])
    def test_ties_get_the_same_weight(self, case):
        scores, query = inputs()
        tied = scores.detach().clone()
        tied[..., 4] = tied[..., 1]
        weights = normalizer(case)(tied, None, query)
        torch.testing.assert_close(weights[..., 4], weights[..., 1], rtol=0, atol=1e-12)

    def test_hard_chooses_one_of_tied_keys(self):
        assert hard(torch.tensor([[1.0, 2.0, 2.0, 0.0]])).sort().values.tolist() == [[0, 0, 0, 1]]

    @pytest.mark.parametrize("case", CASES)
    def test_extreme_scores(self, case):
        """In float32; differences that are tiny relative to the scores still decide."""
        module, (scores, query) = normalizer(case, torch.float32), inputs(dtype=torch.float32)
        for factor in (1e4, -1e4):
            weights = module(factor * scores, None, query)
            gradient = torch.autograd.grad(weights.square().sum(), scores)[0]
            assert weights.isfinite().all()
            assert gradient.isfinite().all()
            if case in SUM_TO_ONE:
                torch.testing.assert_close(weights.sum(dim=-1), torch.ones(BATCH, HEADS, LENGTH), rtol=0, atol=2e-6)
        eighths = (8 * scores.detach()).round() / 8
        torch.testing.assert_close(module(eighths + 1e4, None, query), module(eighths, None, query))

    @pytest.mark.parametrize("case", CASES)
    def test_masked_scores_do_not_matter(self, case):
        module, (scores, query) = normalizer(case), inputs()
        mask = torch.tensor([True, True, False, True, False, True])
        expected = module(scores, mask, query)
        for junk in (torch.inf, -torch.inf, torch.nan):
            spoilt = scores.masked_fill(~mask, junk)
            weights = module(spoilt, mask, query)
            torch.testing.assert_close(weights, expected)
            assert torch.autograd.grad(weights.square().sum(), scores)[0].isfinite().all()

    @pytest.mark.parametrize("case", [*POSITION_FREE, "fusedmax"])
    @pytest.mark.parametrize("lost", [math.nan, math.inf])
    def test_a_row_that_is_not_finite_loses_its_weights_alone(self, case, lost):
        module, (scores, query) = normalizer(case), inputs()
        expected = module(scores, None, query)
        spoilt = scores.detach().clone()
        spoilt[0, 0, 0, 0] = lost
        weights = module(spoilt.requires_grad_(), None, query)
        assert case == "hard" or weights[0, 0, 0].isnan().any()
        rest = torch.ones(BATCH, HEADS, LENGTH, dtype=torch.bool)
        rest[0, 0, 0] = False
        torch.testing.assert_close(weights[rest], expected[rest])
        weights.nansum().backward()


FUNCTIONS = {
    "softmax": softmax,
    "sparsemax": sparsemax,
    "entmax15": entmax15,
    "entmax": lambda scores, mask: entmax(scores, 1.3, mask),
    "fusedmax": lambda scores, mask: fusedmax(scores, 0.2, mask),
    "csoftmax": lambda scores, mask: csoftmax(scores, 0.3, mask),
    "local": lambda scores, mask: local_monotonic(scores, 2, mask),
    "hard": hard,
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions_match_the_modules(case):
    scores, _ = inputs()
    mask = torch.rand(BATCH, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(0)) < 0.7
    expected = normalizer(case)(scores, mask)
    torch.testing.assert_close(FUNCTIONS[case](scores, mask), expected)
    torch.testing.assert_close(FUNCTIONS[case](scores[0, 0], mask[0, 0]), expected[0, 0])


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("sparsemax", "entmax15", "entmax")])
def test_compiles(case):
    """Without a graph break, except in fusedmax, whose steps depend on the data, and in untraceable functions."""
    module, (scores, query) = normalizer(case, torch.float32), inputs(dtype=torch.float32)
    mask = torch.arange(LENGTH) < 4
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=case not in GRAPH_BREAKING, backend="aot_eager")
    weights, expected = compiled(scores, mask, query), module(scores, mask, query)
    torch.testing.assert_close(weights, expected)
    gradients = [torch.autograd.grad(result.square().sum(), scores)[0] for result in (weights, expected)]
    torch.testing.assert_close(*gradients)


class TestBadInput:
    @pytest.mark.parametrize(
        ("name", "options", "message"),
        [
            ("entmax", {"alpha": 1.0}, "entmax.*alpha=1.0"),
            ("entmax", {"alpha": 2.0, "learned": True}, "entmax.*alpha=2.0"),
            ("entmax", {"learned": "head"}, "entmax.*learned='head'"),
            ("fusedmax", {"weight": 0.0}, "fusedmax.*weight=0.0"),
            ("csoftmax", {"bound": 0.0}, "csoftmax.*bound=0.0"),
            ("local", {"window": 0}, "local.*window=0"),
            ("local", {"kind": "global"}, "local.*kind='global'.*monotonic, predictive"),
        ],
    )
    def test_options(self, name, options, message):
        with pytest.raises(AlignAttnError, match=message):
            NORMALIZERS.load(name)(DIM, HEADS, **options)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda s: entmax(s, 1.0), "alpha=1.0"),
            (lambda s: entmax(s, torch.tensor([[[1.5]], [[1.5]], [[0.9]]])), "alpha=0.8999"),
            (lambda s: entmax(s, torch.full((LENGTH,), 1.5)), "broadcastable"),
            (lambda s: fusedmax(s, 0.0), "weight=0.0"),
            (lambda s: csoftmax(s, 0.0), "bound=0.0"),
            (lambda s: csoftmax(s, torch.full((LENGTH,), 0.1)), "normalizer 'csoftmax'.* sum to 0.6: "),
            (lambda s: csoftmax(s, torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, -0.5])), "bound=-0.5"),
            (lambda s: csoftmax(s, torch.full((LENGTH,), math.nan)), "bound=nan"),
            (lambda s: csoftmax(s, torch.ones(LENGTH + 1)), "broadcastable"),
            (lambda s: local_monotonic(s, 0), "window=0"),
            (lambda s: local_predictive(s, s[..., 0], 0), "window=0"),
            (lambda s: softmax(s, torch.ones(LENGTH)), "must be bool"),
            (lambda s: softmax(s, torch.ones(LENGTH + 1, dtype=torch.bool)), "must be bool, broadcastable"),
        ],
    )
    def test_arguments(self, call, message):
        with pytest.raises(AlignAttnError, match=message):
            call(inputs()[0])

    @pytest.mark.parametrize("case", CASES)
    def test_shapes(self, case):
        module, (scores, query) = normalizer(case), inputs()
        with pytest.raises(AlignAttnError, match=r"normalizer: the scores .* must be \[batch, 3, queries, keys\]"):
            module(scores[:, :2], None, query[:, :2])
        with pytest.raises(AlignAttnError, match="normalizer: the queries"):
            module(scores, None, query[..., :2])

    def test_local_p_needs_the_query(self):
        with pytest.raises(AlignAttnError, match="pass query="):
            Local(DIM, HEADS, kind="predictive")(inputs()[0])
