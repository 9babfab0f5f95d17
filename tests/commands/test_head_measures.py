"""The measures of heads, on hand-made attention and against loops."""

import math

import pytest
import torch
from torch import Tensor

from alignattn.commands.inspect import attention_measures, rare_tokens

LENGTH = 8
SEPARATORS = torch.tensor([True, False, False, False, False, False, False, True])
RARE = torch.tensor([False, False, False, True, False, False, False, False])


def one_hot_rows(targets: list[int]) -> Tensor:
    return torch.eye(len(targets))[targets]


HEADS = {
    "previous": one_hot_rows([0, *range(LENGTH - 1)]),
    "next": one_hot_rows([*range(1, LENGTH), LENGTH - 1]),
    "separators": torch.where(SEPARATORS, 0.5, 0.0).expand(LENGTH, LENGTH),
    "rare": one_hot_rows([3] * LENGTH),
    "uniform": torch.full((LENGTH, LENGTH), 1 / LENGTH),
}


def weights_of(length: int, seed: int = 0) -> Tensor:
    """Two heads of random weights, a third of them exactly 0."""
    scores = torch.randn(2, length, length, generator=torch.Generator().manual_seed(seed))
    lowest = scores.flatten(1).kthvalue(length * length // 3, dim=1).values[:, None, None]
    return scores.masked_fill((scores <= lowest) & ~torch.eye(length, dtype=torch.bool), -math.inf).softmax(dim=-1)


def test_measures_of_heads_made_by_hand() -> None:
    measures = attention_measures(torch.stack(list(HEADS.values())).double(), SEPARATORS, RARE)
    heads = dict(zip(HEADS, range(len(HEADS)), strict=True))
    assert measures["entropy"].tolist() == pytest.approx([0, 0, math.log(2), 0, math.log(LENGTH)])
    for role in ("previous", "next", "separators", "rare"):
        assert measures[role][heads[role]] == 1
    assert [float(measures[role][-1]) for role in ("previous", "next", "rare")] == pytest.approx([1 / LENGTH] * 3)
    assert float(measures["separators"][-1]) == pytest.approx(2 / LENGTH)


def test_measures_equal_loops() -> None:
    weights = weights_of(LENGTH)
    measures = attention_measures(weights.double(), SEPARATORS, RARE)
    rows = range(LENGTH)
    for head, table in enumerate(weights.tolist()):
        pairs = [table[i][j] for i in rows for j in rows]
        expected = {
            "entropy": -sum(p * math.log(p) for p in pairs if p > 0) / LENGTH,
            "previous": sum(table[i][i - 1] for i in rows[1:]) / (LENGTH - 1),
            "next": sum(table[i][i + 1] for i in rows[:-1]) / (LENGTH - 1),
            "separators": sum(table[i][0] + table[i][7] for i in rows) / LENGTH,
            "rare": sum(table[i][3] for i in rows) / LENGTH,
        }
        assert {name: float(values[head]) for name, values in measures.items()} == pytest.approx(expected)


def test_a_single_token_has_no_neighbours() -> None:
    measures = attention_measures(torch.ones(2, 1, 1).double(), torch.tensor([False]), torch.tensor([False]))
    assert measures["previous"].isnan().all()
    assert measures["next"].isnan().all()


def test_rare_tokens_are_whole_frequency_classes_from_the_rarest() -> None:
    # 40 tokens: 3 occur once, 2 twice, and one 33 times; a tenth is 4 tokens, more than the 3 that occur once.
    texts = [[10, 11, 12, 20, 20, 21, 21], [30] * 33]
    assert rare_tokens(texts, {0}) == {10, 11, 12, 20, 21}
    # The rarest alone may be enough.
    assert rare_tokens([[10, 20, 20, 30, 30, 30]], {0}) == {10}


def test_special_tokens_are_not_rare() -> None:
    assert rare_tokens([[1, 5, 5, 2]], {1, 2}) == {5}
    assert rare_tokens([[1, 2]], {1, 2}) == frozenset()
