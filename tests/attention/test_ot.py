"""Alignment by optimal transport, against POT and finite differences."""

import math
import warnings
from collections.abc import Callable

import ot as pot
import pytest
import torch
from needs import needs_gpu
from torch import Tensor
from torch.nn.functional import normalize

from alignattn.attention.alignment.calls import TokenMeasure
from alignattn.attention.alignment.ot import OTAlignment
from alignattn.attention.alignment.sinkhorn import sinkhorn
from alignattn.utils.errors import AlignAttnError

HEADS, HEAD_DIM = 2, 4
COSTS = ["cosine", "squared_euclidean"]
CONVERGED = 500
SENTENCES = [
    "The bank raised its rates for the third time this year, to four percent.",
    "He sat down on the bank of the river and watched the boats go by until it was dark.",
    "Shares of the company fell 12 % on Monday.",
    "What does the committee, which met in Geneva, recommend?",
]


def features(batch: int = 3, length: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, batch, HEADS, length, HEAD_DIM, generator=generator, dtype=torch.float64)
    return query.requires_grad_(), key.requires_grad_()


def cost_matrix(query: Tensor, key: Tensor, cost: str) -> Tensor:
    if cost == "cosine":
        return 1 - torch.cosine_similarity(query[..., :, None, :], key[..., None, :, :], dim=-1)
    return (query[..., :, None, :] - key[..., None, :, :]).square().sum(dim=-1)


def pot_plan(costs: Tensor, epsilon: float) -> Tensor:
    """The converged plan of one head `[n, m]` between uniform distributions; raises where POT does not converge."""
    of_rows, of_columns = (costs.new_full((size,), 1 / size) for size in costs.shape)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Sinkhorn did not converge")
        return pot.bregman.sinkhorn_log(of_rows, of_columns, costs, epsilon, numItermax=5000, stopThr=1e-11)


def objectives(query: Tensor, key: Tensor, cost: str, epsilon: float) -> tuple[float, float]:
    """<C, π> + ε Σ π log π and <C, π>, summed over heads, mean over samples, at POT's plans."""
    regularised = transport = 0.0
    for head_costs in cost_matrix(query.detach(), key.detach(), cost).flatten(0, 1):
        plan = pot_plan(head_costs, epsilon)
        transport += (head_costs * plan).sum().item() / len(query)
        regularised += epsilon * torch.special.xlogy(plan, plan).sum().item() / len(query)
    return regularised + transport, transport


def gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize(("cost", "epsilon"), [("cosine", 0.2), ("squared_euclidean", 1.0)])
def test_loss_is_the_cost_of_the_plan_from_pot(cost: str, epsilon: float) -> None:
    query, key = features()
    loss = OTAlignment(HEAD_DIM, cost=cost, epsilon=epsilon, iterations=CONVERGED)(query, key)
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(objectives(query, key, cost, epsilon)[1], abs=1e-7)


@pytest.mark.parametrize(("cost", "epsilon"), [("cosine", 0.01), ("squared_euclidean", 0.1)])
def test_small_epsilon_gives_nearly_the_cheapest_plan(cost: str, epsilon: float) -> None:
    query, key = features(batch=1)
    loss, diagnostics = OTAlignment(HEAD_DIM, cost=cost, epsilon=epsilon, iterations=CONVERGED).with_diagnostics(
        query, key
    )
    cheapest = sum(pot.emd2([], [], head) for head in cost_matrix(query.detach(), key.detach(), cost)[0])
    assert diagnostics["marginal_error"] < 1e-4
    # The entropies of two plans between uniform distributions on n tokens differ by log n at most.
    assert cheapest - 1e-3 <= loss.item() <= cheapest + HEADS * epsilon * math.log(query.shape[2])


@pytest.mark.parametrize("cost", COSTS)
def test_plan_matches_pot(cost: str) -> None:
    query, key = features(batch=1)
    costs = cost_matrix(query.detach(), key.detach(), cost)
    if cost == "cosine":
        epsilon, left, right = 0.1, normalize(query, dim=-1), normalize(key, dim=-1)
    else:
        epsilon, left, right = 1.0, 2 * query, key
    probability = TokenMeasure.of(torch.stack([query, key]).transpose(2, 3)[None], None).probability[0, 0]
    plan = sinkhorn(left, right, probability, probability, epsilon=epsilon, iterations=CONVERGED)
    dense = dense_plan(plan.row, plan.kernel, plan.column)
    expected = torch.stack([pot_plan(head, epsilon) for head in costs[0]])
    torch.testing.assert_close(dense[0], expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(plan.apply(key), dense @ key)
    torch.testing.assert_close(plan.apply_transposed(query), dense.mT @ query)


def dense_plan(row: Tensor, kernel: Tensor, column: Tensor) -> Tensor:
    return row[..., :, None] * kernel * column[..., None, :]


@pytest.mark.parametrize(("cost", "epsilon"), [("cosine", 0.2), ("squared_euclidean", 1.0)])
def test_gradient_is_that_of_the_regularised_cost(cost: str, epsilon: float) -> None:
    query, key = features(batch=2, length=5)
    loss = OTAlignment(HEAD_DIM, cost=cost, epsilon=epsilon, iterations=CONVERGED)(query, key)
    grad_query, grad_key = gradients(loss, query, key)
    toward_query, toward_key = features(batch=2, length=5, seed=1)
    step = 1e-4
    ahead = objectives(query + step * toward_query, key + step * toward_key, cost, epsilon)
    behind = objectives(query - step * toward_query, key - step * toward_key, cost, epsilon)
    regularised, transport = ((a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True))
    derivative = ((grad_query * toward_query).sum() + (grad_key * toward_key).sum()).item()
    assert derivative == pytest.approx(regularised, abs=1e-6)
    assert abs(derivative - transport) > 1e-3


@pytest.mark.parametrize(("cost", "epsilon"), [("cosine", 0.2), ("squared_euclidean", 1.0)])
def test_keys_of_other_tokens_match_pot(cost: str, epsilon: float) -> None:
    query, key = features(length=5)[0], features(length=8, seed=3)[1]
    mask = torch.arange(5) < torch.tensor([5, 3, 1])[:, None]
    key_mask = torch.arange(8) < torch.tensor([2, 8, 6])[:, None]
    alignment = OTAlignment(HEAD_DIM, cost=cost, epsilon=epsilon, iterations=CONVERGED)
    loss, diagnostics = alignment.with_diagnostics(query, key, mask, key_mask=key_mask)
    expected = query.new_zeros(())
    for sample in range(3):
        costs = cost_matrix(query[sample, :, mask[sample]], key[sample, :, key_mask[sample]], cost)
        for head_costs in costs:
            expected = expected + (pot_plan(head_costs.detach(), epsilon) * head_costs).sum() / 3
    torch.testing.assert_close(loss, expected, atol=1e-8, rtol=0)
    for found, wanted in zip(gradients(loss, query, key), gradients(expected, query, key), strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-8, rtol=0)
    assert diagnostics["marginal_error"] < 1e-8


@pytest.mark.parametrize("cost", COSTS)
def test_padding_does_not_matter(cost: str) -> None:
    query, key = features(batch=3, length=7)
    lengths = (7, 4, 1)
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    padding = ~mask[:, None, :, None].expand_as(query)
    padded = [tensor.detach().masked_fill(padding, torch.nan).requires_grad_() for tensor in (query, key)]
    alignment = OTAlignment(HEAD_DIM, cost=cost)
    loss, diagnostics = alignment.with_diagnostics(*padded, mask)
    alone = [
        alignment.with_diagnostics(query[i : i + 1, :, :length], key[i : i + 1, :, :length])
        for i, length in enumerate(lengths)
    ]
    expected = sum(sample_loss for sample_loss, _ in alone) / len(lengths)
    torch.testing.assert_close(loss, expected)
    errors = torch.stack([sample["marginal_error"] for _, sample in alone])
    torch.testing.assert_close(diagnostics["marginal_error"], errors.mean())
    for grad, grad_alone in zip(gradients(loss, *padded), gradients(expected, query, key), strict=True):
        torch.testing.assert_close(grad, grad_alone)
        assert not grad[padding].any()


def test_marginal_error_is_that_of_the_explicit_plan() -> None:
    query, key = (tensor.detach() for tensor in features())
    mask = torch.arange(7) < torch.tensor([7, 5, 3])[:, None]
    share = TokenMeasure.of(torch.stack([query, key]).transpose(2, 3)[None], mask[None, None]).probability[0, 0]
    unit_query, unit_key = (normalize(tensor, dim=-1) * mask[:, None, :, None] for tensor in (query, key))
    plan = sinkhorn(unit_query, unit_key, share, share, epsilon=0.01, iterations=5)
    dense = dense_plan(plan.row, plan.kernel, plan.column)
    target = share[:, None]
    expected = ((dense.sum(-1) - target).abs().sum(-1) + (dense.sum(-2) - target).abs().sum(-1)).mean()
    _, diagnostics = OTAlignment(HEAD_DIM, iterations=5).with_diagnostics(query, key, mask)
    assert expected > 0.01
    torch.testing.assert_close(diagnostics["marginal_error"], expected)


def test_marginals_are_met_on_real_queries_and_keys(minilm: str) -> None:
    layers, mask = minilm_features(minilm)
    for query, key in layers[::2]:
        first, default, longer = (
            OTAlignment(32, **options).with_diagnostics(query, key, mask)[1]["marginal_error"].item()
            for options in ({"iterations": 4}, {}, {"iterations": 40})
        )
        assert first > 2 * default
        assert default <= 0.05
        assert longer < default / 2


def minilm_features(folder: str) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Queries and keys `[B, 12, n, 32]` of every layer, and the mask."""
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder).eval()
    batch = AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    seen: list[Tensor] = []
    for layer in model.encoder.layer:
        for projection in (layer.attention.self.query, layer.attention.self.key):
            projection.register_forward_hook(
                lambda _module, _inputs, output: seen.append(output.unflatten(-1, (12, 32)).transpose(1, 2))
            )
    with torch.no_grad():
        model(**batch)
    return list(zip(seen[::2], seen[1::2], strict=True)), batch["attention_mask"].bool()


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor * 1e4,
        lambda tensor: tensor.clamp(-1e-30, 1e-30),
        torch.zeros_like,
        lambda tensor: torch.where(torch.arange(HEAD_DIM) > 1, 0, 1e4 * tensor[:, :, :1]).expand_as(tensor),
    ],
    ids=["large", "tiny", "zero", "equal"],
)
def test_extreme_inputs_stay_finite(cost: str, change: Callable[[Tensor], Tensor]) -> None:
    query, key = (change(tensor.detach().float()).requires_grad_() for tensor in features())
    mask = torch.arange(7) < torch.tensor([7, 5, 0])[:, None]
    loss, diagnostics = OTAlignment(HEAD_DIM, cost=cost).with_diagnostics(query, key, mask)
    assert loss.isfinite()
    assert 0 <= diagnostics["marginal_error"] <= 4
    assert all(grad.isfinite().all() for grad in gradients(loss, query, key))


def test_tokens_that_match_one_to_one_cost_nothing() -> None:
    query = torch.eye(HEAD_DIM).expand(1, HEADS, HEAD_DIM, HEAD_DIM)
    order = torch.tensor([2, 0, 3, 1])
    assert OTAlignment(HEAD_DIM)(query, query[:, :, order]).item() == pytest.approx(0, abs=1e-5)
    apart = OTAlignment(HEAD_DIM, head_reduction="mean")(query, -query[:, :, order])
    assert apart.item() == pytest.approx(1, abs=1e-5)


@needs_gpu
@pytest.mark.parametrize("cost", COSTS)
def test_cuda_matches_the_cpu_without_synchronising(cost: str) -> None:
    query, key = features()
    mask = torch.arange(7) < torch.tensor([7, 5, 3])[:, None]
    alignment = OTAlignment(HEAD_DIM, cost=cost)
    on_device = [tensor.cuda() for tensor in (query, key, mask)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss = alignment(*on_device)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(loss.cpu(), alignment(query, key, mask))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"cost": "manhattan"}, "cosine, squared_euclidean"),
        ({"epsilon": 0.0}, "epsilon=0.0"),
        ({"epsilon": float("nan")}, "epsilon=nan"),
        ({"anneal_from": -1.0}, "anneal_from=-1.0"),
        ({"iterations": 0}, "iterations=0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(AlignAttnError, match=named):
        OTAlignment(HEAD_DIM, **options)
