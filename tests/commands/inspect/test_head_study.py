"""The measures of heads, on hand-made attention and against loops."""

import math

import pytest
import scipy.stats
import torch
from torch import Tensor

from alignattn.attention.distance import energy_distance, measure_c2st, measure_distances
from alignattn.commands.inspect.head_study import (
    NO_ROLE,
    POOLED_MEASURES,
    ROLE_FACTOR,
    TEXT_MEASURES,
    HeadMeasurer,
    RareTokens,
    Sample,
    attention_measures,
    joined,
)

LENGTH = 8
SEPARATORS = torch.tensor([True, False, False, False, False, False, False, True])
RARE = torch.tensor([False, False, False, True, False, False, False, False])
NONE = torch.zeros(LENGTH, dtype=torch.bool)


def one_hot_rows(targets: list[int]) -> Tensor:
    return torch.eye(len(targets))[targets]


HEADS = {
    "previous": one_hot_rows([0, *range(LENGTH - 1)]),
    "next": one_hot_rows([*range(1, LENGTH), LENGTH - 1]),
    "separators": torch.where(SEPARATORS, 0.5, 0.0).expand(LENGTH, LENGTH),
    "rare": one_hot_rows([3] * LENGTH),
    NO_ROLE: torch.full((LENGTH, LENGTH), 1 / LENGTH),
}


def study_heads(samples, *, balances=True):
    studying = HeadMeasurer()
    for sample in samples:
        studying.add(sample)
    return studying.study(balances=balances)


def sample_of(weights: Tensor, separators: Tensor = SEPARATORS, rare: Tensor = RARE) -> Sample:
    """Return a sample of one layer with random queries and keys."""
    features = torch.randn(2, 1, weights.shape[0], weights.shape[-1], 4, generator=torch.Generator().manual_seed(0))
    return Sample(features[0], features[1], weights[None], separators, rare)


def weights_of(length: int, seed: int = 0) -> Tensor:
    """Two heads of random weights, a third of them exactly 0."""
    scores = torch.randn(2, length, length, generator=torch.Generator().manual_seed(seed))
    lowest = scores.flatten(1).kthvalue(length * length // 3, dim=1).values[:, None, None]
    return scores.masked_fill((scores <= lowest) & ~torch.eye(length, dtype=torch.bool), -math.inf).softmax(dim=-1)


def test_roles_of_heads_made_by_hand() -> None:
    study = study_heads([sample_of(torch.stack(list(HEADS.values())))])
    assert study.roles() == [list(HEADS)]
    scores = dict(zip(HEADS, range(len(HEADS)), strict=True))
    for role in ("previous", "next", "separators", "rare"):
        assert float(study.measures[role][0, scores[role]]) == 1
    assert study.uniform["previous"] == study.uniform["next"] == study.uniform["rare"] == 1 / LENGTH
    assert study.uniform["separators"] == 2 / LENGTH


def test_entropy_and_sparsity_of_heads_made_by_hand() -> None:
    measures = attention_measures(torch.stack(list(HEADS.values())), SEPARATORS, RARE)
    expected = {
        "entropy": [0, 0, math.log(2), 0, math.log(LENGTH)],
        "sparsity": [7 / 8, 7 / 8, 6 / 8, 7 / 8, 0],
    }
    for name, values in expected.items():
        assert measures[name].tolist() == pytest.approx(values)


def test_measures_equal_loops() -> None:
    weights = weights_of(LENGTH)
    measures = attention_measures(weights, SEPARATORS, RARE)
    rows = range(LENGTH)
    for head, table in enumerate(weights.tolist()):
        pairs = [table[i][j] for i in rows for j in rows]
        expected = {
            "entropy": -sum(p * math.log(p) for p in pairs if p > 0) / LENGTH,
            "sparsity": pairs.count(0.0) / LENGTH**2,
            "previous": sum(table[i][i - 1] for i in rows[1:]) / (LENGTH - 1),
            "next": sum(table[i][i + 1] for i in rows[:-1]) / (LENGTH - 1),
            "separators": sum(table[i][0] + table[i][7] for i in rows) / LENGTH,
            "rare": sum(table[i][3] for i in rows) / LENGTH,
        }
        assert expected["sparsity"] > 0.2
        assert {name: float(values[head]) for name, values in measures.items()} == pytest.approx(expected)


def test_each_text_counts_the_same() -> None:
    texts = [sample_of(weights_of(length, seed=length), NONE[:length], NONE[:length]) for length in (3, 8)]
    whole, *parts = (study_heads(some) for some in (texts, texts[:1], texts[1:]))
    assert (whole.num_texts, whole.num_tokens) == (2, 11)
    for name in TEXT_MEASURES:
        torch.testing.assert_close(whole.measures[name], (parts[0].measures[name] + parts[1].measures[name]) / 2)
    assert whole.uniform["entropy"] == pytest.approx((math.log(3) + math.log(8)) / 2)


def test_measures_that_need_a_covariance_pool_the_texts() -> None:
    texts = [sample_of(weights_of(length, seed=length), NONE[:length], NONE[:length]) for length in (3, 8)]
    joined = [torch.cat([getattr(text, role)[0] for text in texts], dim=1) for role in ("query", "key")]
    expected = measure_distances(*joined)
    study = study_heads(texts)
    told = measure_c2st(*joined)
    values = (expected.as_is, expected.balanced, expected.floor, *told)
    for name, of_heads in zip(POOLED_MEASURES, values, strict=True):
        torch.testing.assert_close(study.measures[name][0], of_heads)
    unbalanced = study_heads(texts, balances=False).measures
    assert {name for name in POOLED_MEASURES if unbalanced[name].isnan().all()} == {
        "balanced_distance",
        "balanced_c2st_accuracy",
    }


def test_a_text_of_one_token_does_not_change_the_means_over_neighbours() -> None:
    longer, single = sample_of(weights_of(LENGTH)), sample_of(torch.ones(2, 1, 1), NONE[:1], NONE[:1])
    with_single, without = study_heads([longer, single]), study_heads([longer])
    for name in ("previous", "next"):
        assert torch.equal(with_single.measures[name], without.measures[name])
        assert with_single.uniform[name] == without.uniform[name] == 1 / LENGTH
    assert study_heads([single]).measures["previous"].isnan().all()
    assert study_heads([single]).roles() == [[NO_ROLE, NO_ROLE]]


@pytest.mark.parametrize(("factor", "role"), [(ROLE_FACTOR - 0.01, NO_ROLE), (ROLE_FACTOR + 0.01, "rare")])
def test_a_role_needs_a_multiple_of_the_uniform_share(factor: float, role: str) -> None:
    share = factor / LENGTH
    row = torch.full((LENGTH,), (1 - share) / (LENGTH - 1))
    row[3] = share
    assert study_heads([sample_of(row.expand(1, LENGTH, LENGTH))]).roles() == [[role]]


def test_the_role_with_the_larger_multiple_wins() -> None:
    half = (HEADS["separators"] + HEADS["rare"]) / 2
    study = study_heads([sample_of(half[None])])
    assert float(study.measures["separators"]) == float(study.measures["rare"]) == 0.5
    assert study.roles() == [["rare"]]


def test_without_separators_no_head_has_their_role() -> None:
    assert study_heads([sample_of(HEADS["separators"][None], separators=NONE)]).roles() == [[NO_ROLE]]


class TestRareTokens:
    def test_rare_tokens_are_whole_frequency_classes_from_the_rarest(self) -> None:
        # 40 tokens: 3 occur once, 2 twice, and one 33 times; a tenth is 4 tokens, more than the 3 that occur once.
        texts = [[10, 11, 12, 20, 20, 21, 21], [30] * 33]
        assert RareTokens.of(texts, {0}) == RareTokens(frozenset({10, 11, 12, 20, 21}), 2, 7 / 40)

    def test_the_rarest_alone_may_be_enough(self) -> None:
        assert RareTokens.of([[10, 20, 20, 30, 30, 30]], {0}) == RareTokens(frozenset({10}), 1, 1 / 6)

    def test_special_tokens_are_left_out(self) -> None:
        assert RareTokens.of([[1, 5, 5, 2]], {1, 2}) == RareTokens(frozenset({5}), 2, 1.0)
        assert RareTokens.of([[1, 2]], {1, 2}) == RareTokens(frozenset(), 0, 0.0)


class TestEnergyDistance:
    @staticmethod
    def clouds(dimension: int) -> tuple[Tensor, Tensor]:
        """Two samples of two heads."""
        query, key = torch.randn(2, 2, 2, 6, dimension, generator=torch.Generator().manual_seed(1))
        return query, key + 0.5

    @staticmethod
    def size(query: Tensor, key: Tensor) -> float:
        return float(torch.cat([query, key]).square().sum(dim=-1).mean().sqrt())

    def test_in_one_dimension_it_is_the_square_of_scipys(self) -> None:
        query, key = self.clouds(1)
        for head, distance in enumerate(energy_distance(query, key).tolist()):
            q, k = query[:, head].flatten(0, 1), key[:, head].flatten(0, 1)
            squared = scipy.stats.energy_distance(q.flatten().numpy(), k.flatten().numpy()) ** 2
            assert distance * self.size(q, k) == pytest.approx(squared, rel=1e-4)

    def test_equals_a_loop_over_real_tokens(self) -> None:
        query, key = self.clouds(3)
        mask = torch.ones(2, 6, dtype=torch.bool)
        mask[1, 4:] = False
        query[1, :, 4:], key[1, :, 4:] = 1e4, -1e4
        distances = energy_distance(query, key, mask).tolist()
        for head in range(2):
            q, k = (torch.cat([x[0, head], x[1, head, :4]]) for x in (query, key))

            def mean(first: Tensor, second: Tensor) -> float:
                return sum(math.dist(a, b) for a in first.tolist() for b in second.tolist()) / 100

            expected = (2 * mean(q, k) - mean(q, q) - mean(k, k)) / self.size(q, k)
            assert distances[head] == pytest.approx(expected, rel=1e-4)

    def test_it_is_zero_for_equal_clouds_and_independent_of_the_unit(self) -> None:
        query, key = self.clouds(4)
        shuffled = query[:, :, torch.randperm(6, generator=torch.Generator().manual_seed(0))]
        assert energy_distance(query, shuffled).tolist() == pytest.approx([0, 0], abs=1e-5)
        torch.testing.assert_close(energy_distance(100 * query, 100 * key), energy_distance(query, key))


def test_cross_attention_has_the_measures_that_are_defined_for_it() -> None:
    """With 5 queries and 8 keys no token has neighbours, and the sliced distance uses 5 of the keys."""
    draw = torch.Generator().manual_seed(1)
    query, key = torch.randn(1, 2, 5, 4, generator=draw), torch.randn(1, 2, LENGTH, 4, generator=draw)
    weights = torch.randn(1, 2, 5, LENGTH, generator=draw).softmax(-1)
    study = study_heads([Sample(query, key, weights, SEPARATORS, RARE, is_one_text=False)])
    assert study.measures["previous"].isnan().all()
    assert study.measures["next"].isnan().all()
    torch.testing.assert_close(study.measures["rare"][0], weights[0, :, :, 3].double().mean(dim=1))
    assert study.uniform["rare"].tolist() == [1 / LENGTH]
    torch.testing.assert_close(study.measures["energy_distance"][0], energy_distance(query, key).double())
    assert study.measures["sliced_wasserstein"].isfinite().all()
    assert study.measures["c2st_accuracy"].isfinite().all()
    without_words = study_heads([Sample(query, key, weights, None, None, is_one_text=False)])
    assert without_words.measures["rare"].isnan().all()
    assert without_words.roles() == [[NO_ROLE, NO_ROLE]]
    both = joined([study, without_words])
    assert both.measures["rare"].shape == (2, 2)
    assert both.uniform["entropy"].tolist() == pytest.approx([math.log(LENGTH)] * 2)
