"""What attention heads do, as numbers: how queries and keys lie, how weights spread, and whom a head attends to.

Every measure but the pooled ones is taken on one text at a time, on its real tokens only, and averaged over texts:
padding cannot enter. The pooled ones are of the tokens of all texts together: one text has too few for a covariance.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from alignattn.attention.distance import (
    energy_distance,
    measure_distances,
    measure_told_apart,
    sliced_wasserstein,
)

ROLES = ("previous", "next", "separators", "rare")
"""What a head may mostly attend to: the token before, the token after, special tokens, tokens that are rare."""

TEXT_MEASURES = ("sliced_wasserstein", "energy_distance", "entropy", "sparsity", *ROLES)
"""Means over texts."""
POOLED_MEASURES = ("spread_distance", "balanced_distance", "distance_floor", "told_apart", "balanced_told_apart")
"""Of all texts' tokens as one cloud: the distance as is, in the balanced basis, and between two halves of one cloud;
the accuracy of a discriminator as is, and in the balanced basis."""
MEASURES = (*TEXT_MEASURES[:2], *POOLED_MEASURES, *TEXT_MEASURES[2:])
POOLED_TOKENS = 4096
"""The first of all texts; they are kept in memory."""

NO_ROLE = "–"
ROLE_FACTOR = 3.0
"""A head has a role if it gives at least this many times the attention that a uniform head would give."""

RARE_SHARE = 0.1
"""Share of a data set's tokens, special ones left out, that rare tokens make up at least."""


@dataclass(frozen=True)
class RareTokens:
    """The token ids that are rare in a data set.

    Attributes:
        ids: all that occur `most_occurrences` times or less.
        most_occurrences: the least number for which they make up `RARE_SHARE` of the occurrences.
        share: of the occurrences that they do make up.
    """

    ids: frozenset[int]
    most_occurrences: int
    share: float

    @classmethod
    def of(cls, texts: Iterable[Iterable[int]], special_ids: Collection[int]) -> "RareTokens":
        """Return those of `texts`, token ids; `special_ids` are left out."""
        counts = Counter(token for text in texts for token in text if token not in special_ids)
        total = sum(counts.values())
        if not total:
            return cls(frozenset(), 0, 0.0)
        occurrences = {count: count * types for count, types in Counter(counts.values()).items()}
        reached, most = 0, 0
        for count in sorted(occurrences):
            if reached >= RARE_SHARE * total:
                break
            reached, most = reached + occurrences[count], count
        return cls(frozenset(token for token, count in counts.items() if count <= most), most, reached / total)


@dataclass(frozen=True)
class Sample:
    """What a model's L attention layers of H heads made of one text of n tokens, none of them padding.

    Attributes:
        query: `[L, H, n, d]`.
        key: `[L, H, n, d]`.
        weights: `[L, H, n, n]`, the attention weights.
        separators: `[n]` bool, True = a special token.
        rare: `[n]` bool, True = a rare token.
    """

    query: Tensor
    key: Tensor
    weights: Tensor
    separators: Tensor
    rare: Tensor


@dataclass(frozen=True)
class HeadStudy:
    """The measures of a model's heads.

    Attributes:
        measures: `[L, H]` float64 by the name in `MEASURES`; NaN where no text has the measure, and in the balanced
            basis for a model that has none.
        uniform: by name, what uniform attention gives on the same texts; queries and keys do not enter.
        num_texts: that were averaged over.
        num_tokens: of all of them.
    """

    measures: dict[str, Tensor]
    uniform: dict[str, float]
    num_texts: int
    num_tokens: int

    def roles(self) -> list[list[str]]:
        """Return each head's role, by layer.

        It is the one in `ROLES` whose score is the largest multiple of the uniform share, if that is `ROLE_FACTOR` or
        more; else `NO_ROLE`.
        """
        factors = torch.stack([self.measures[role] / self.uniform[role] for role in ROLES]).nan_to_num(nan=0.0)
        largest, best = factors.max(dim=0)
        choices = torch.where(largest >= ROLE_FACTOR, best, len(ROLES))
        return [[(*ROLES, NO_ROLE)[choice] for choice in layer] for layer in choices.tolist()]


def attention_measures(weights: Tensor, separators: Tensor, rare: Tensor) -> dict[str, Tensor]:
    """Return what one text's attention weights tell of each head.

    Args:
        weights: `[…, n, n]`, a row a query.
        separators: `[n]` bool, True = a special token.
        rare: `[n]` bool, True = a rare token.

    Returns:
        Each `[…]` float64. `entropy`: of a row in nats, mean over rows. `sparsity`: share of weights that are exactly
        0. `previous`, `next`: weight on the token before or after, mean over the rows that have one, NaN if none has.
        `separators`, `rare`: sum of the weights on such tokens, mean over rows.
    """
    weights = weights.double()
    return {
        "entropy": torch.special.entr(weights).sum(dim=-1).mean(dim=-1),
        "sparsity": (weights == 0).double().mean(dim=(-2, -1)),
        "previous": weights.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1),
        "next": weights.diagonal(offset=1, dim1=-2, dim2=-1).mean(dim=-1),
        "separators": weights[..., separators].sum(dim=-1).mean(dim=-1),
        "rare": weights[..., rare].sum(dim=-1).mean(dim=-1),
    }


def query_key_distances(query: Tensor, key: Tensor) -> dict[str, Tensor]:
    """Return how far one text's queries lie from its keys in each head, in units of their size.

    Args:
        query: `[L, H, n, d]`.
        key: `[L, H, n, d]`.

    Returns:
        `sliced_wasserstein` and `energy_distance`, each `[L, H]` float64.
    """
    clouds = query.flatten(0, 1).unsqueeze(0), key.flatten(0, 1).unsqueeze(0)
    return {
        distance.__name__: distance(*clouds).double().view(query.shape[:2])
        for distance in (sliced_wasserstein, energy_distance)
    }


def pooled_distances(clouds: Sequence[tuple[Tensor, Tensor]], *, balances: bool) -> dict[str, Tensor]:
    """Return how far queries and keys of all texts lie apart, over their spread, and how well they are told apart.

    Args:
        clouds: queries and keys of each text, `[L, H, n, d]`.
        balances: whether the model's attention leaves the basis open.

    Returns:
        Each of `POOLED_MEASURES`, `[L, H]` float64.
    """
    query, key = (torch.cat(parts, dim=2) for parts in zip(*clouds, strict=True))
    distances = [measure_distances(*layer) for layer in zip(query, key, strict=True)]
    accuracies = [measure_told_apart(*layer) for layer in zip(query, key, strict=True)]
    measured = {
        "spread_distance": torch.stack([layer.as_is for layer in distances]),
        "balanced_distance": torch.stack([layer.balanced for layer in distances]),
        "distance_floor": torch.stack([layer.floor for layer in distances]),
        "told_apart": torch.stack([layer.as_is for layer in accuracies]),
        "balanced_told_apart": torch.stack([layer.balanced for layer in accuracies]),
    }
    if not balances:
        measured |= {name: torch.full_like(measured[name], torch.nan) for name in measured if "balanced" in name}
    return measured


def study_heads(samples: Iterable[Sample], *, balances: bool = True) -> HeadStudy:
    """Return the measures of every head: each text counts the same, whatever its length.

    Args:
        samples: one or more, of one model.
        balances: whether its attention leaves the basis of queries and keys open.
    """
    measured: list[dict[str, Tensor]] = []
    uniform: list[dict[str, Tensor]] = []
    clouds: list[tuple[Tensor, Tensor]] = []
    num_tokens = 0
    for sample in samples:
        length = sample.weights.shape[-1]
        tokens = sample.separators, sample.rare
        measured.append(query_key_distances(sample.query, sample.key) | attention_measures(sample.weights, *tokens))
        uniform.append(attention_measures(torch.full((length, length), 1 / length, dtype=torch.float64), *tokens))
        room = max(POOLED_TOKENS - num_tokens, 0)
        clouds.append((sample.query[:, :, :room], sample.key[:, :, :room]))
        num_tokens += length
    return HeadStudy(
        measures=_means(measured) | pooled_distances(clouds, balances=balances),
        uniform={name: float(mean) for name, mean in _means(uniform).items()},
        num_texts=len(measured),
        num_tokens=num_tokens,
    )


def _means(by_text: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([measures[name] for measures in by_text]).nanmean(dim=0) for name in by_text[0]}
