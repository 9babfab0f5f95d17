"""Measures of attention heads: distances of queries and keys, spread of the weights, and roles.

All measures except the pooled ones are computed on the real tokens of one text and averaged over texts, so padding has
no influence. The pooled measures use the tokens of all texts together: one text has too few for a covariance.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from alignattn.attention.distance import (
    energy_distance,
    equal_counts,
    measure_c2st,
    measure_distances,
    sliced_wasserstein,
)

ROLES = ("previous", "next", "separators", "rare")
"""Roles of a head, by what it attends to most: the previous token, the next one, special or rare tokens."""

TEXT_MEASURES = ("sliced_wasserstein", "energy_distance", "entropy", "sparsity", *ROLES)
"""Measures that are means over texts."""
POOLED_MEASURES = ("spread_distance", "balanced_distance", "distance_floor", "c2st_accuracy", "balanced_c2st_accuracy")
"""Measures over the tokens of all texts: the distance as is, balanced, and between two halves of one side;
the accuracy of a classifier, as is and balanced."""
MEASURES = (*TEXT_MEASURES[:2], *POOLED_MEASURES, *TEXT_MEASURES[2:])
POOLED_TOKENS = 4096
"""Maximum number of pooled queries, and of pooled keys."""

NO_ROLE = "–"
ROLE_FACTOR = 3.0
"""A head has a role if its weight is at least this multiple of a uniform head's."""

RARE_SHARE = 0.1
"""Minimum share of rare tokens among the non-special tokens."""


@dataclass(frozen=True)
class RareTokens:
    """The token ids that are rare in a data set.

    Attributes:
        ids: the ids that occur at most `most_occurrences` times.
        most_occurrences: the smallest number for which these ids cover `RARE_SHARE` of the occurrences.
        share: the share of the occurrences that the ids cover.
    """

    ids: frozenset[int]
    most_occurrences: int
    share: float

    @classmethod
    def of(cls, texts: Iterable[Iterable[int]], special_ids: Collection[int]) -> "RareTokens":
        """Return the rare tokens of `texts`, given as token ids; `special_ids` are ignored."""
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
    """Queries, keys and weights of L attention layers of H heads for one text, or an image and a text, without padding.

    Attributes:
        query: `[L, H, n, d]`.
        key: `[L, H, m, d]`.
        weights: `[L, H, n, m]`, the attention weights.
        separators: `[m]` bool, True = a special token; None if the keys are not words.
        rare: `[m]` bool, True = a rare token; None if the keys are not words.
        is_one_text: whether queries and keys belong to the same words, in the order of a text.
    """

    query: Tensor
    key: Tensor
    weights: Tensor
    separators: Tensor | None
    rare: Tensor | None
    is_one_text: bool = True


@dataclass(frozen=True)
class HeadStudy:
    """The measures of a model's heads.

    Attributes:
        measures: `[L, H]` float64, by name in `MEASURES`; NaN if no text has the measure, and for the balanced measures
            of a model without a balanced basis.
        uniform: `[L]` float64, the measures of the weights under uniform attention on the same texts, by name.
        num_texts: the number of texts averaged over.
        num_tokens: the number of queries in all texts.
    """

    measures: dict[str, Tensor]
    uniform: dict[str, Tensor]
    num_texts: int
    num_tokens: int

    def roles(self) -> list[list[str]]:
        """Return each head's role, by layer.

        The role is the one in `ROLES` whose weight is the largest multiple of the uniform weight, if the multiple is at
        least `ROLE_FACTOR`; otherwise `NO_ROLE`.
        """
        factors = torch.stack([self.measures[role] / self.uniform[role][:, None] for role in ROLES]).nan_to_num(nan=0.0)
        largest, best = factors.max(dim=0)
        choices = torch.where(largest >= ROLE_FACTOR, best, len(ROLES))
        return [[(*ROLES, NO_ROLE)[choice] for choice in layer] for layer in choices.tolist()]


def attention_measures(
    weights: Tensor, separators: Tensor | None, rare: Tensor | None, *, is_one_text: bool = True
) -> dict[str, Tensor]:
    """Return the measures of one text's attention weights, for each head.

    Args:
        weights: `[…, n, m]`, a row per query.
        separators: `[m]` bool, True = a special token; None if the keys are not words.
        rare: `[m]` bool, True = a rare token; None if the keys are not words.
        is_one_text: see `Sample`.

    Returns:
        Each `[…]` float64. `entropy`: entropy of a row in nats, mean over rows. `sparsity`: share of weights that are
        exactly 0. `previous`, `next`: weight on the token before or after, mean over the rows that have one, NaN if
        none has. `separators`, `rare`: sum of the weights on such tokens, mean over rows; NaN if keys are not words.
    """
    weights = weights.double()
    nothing = weights.new_full(weights.shape[:-2], torch.nan)

    def beside(offset: int) -> Tensor:
        return weights.diagonal(offset=offset, dim1=-2, dim2=-1).mean(dim=-1) if is_one_text else nothing

    def on(tokens: Tensor | None) -> Tensor:
        return nothing if tokens is None else weights[..., tokens].sum(dim=-1).mean(dim=-1)

    return {
        "entropy": torch.special.entr(weights).sum(dim=-1).mean(dim=-1),
        "sparsity": (weights == 0).double().mean(dim=(-2, -1)),
        "previous": beside(-1),
        "next": beside(1),
        "separators": on(separators),
        "rare": on(rare),
    }


def query_key_distances(query: Tensor, key: Tensor) -> dict[str, Tensor]:
    """Return the distance of one text's queries and keys in each head, in units of their size.

    Args:
        query: `[L, H, n, d]`.
        key: `[L, H, m, d]`; if m differs from n, the larger set is sampled down for the sliced distance.

    Returns:
        `sliced_wasserstein` and `energy_distance`, each `[L, H]` float64.
    """
    clouds = query.flatten(0, 1), key.flatten(0, 1)
    measured = {
        "sliced_wasserstein": sliced_wasserstein(*(points[None] for points in equal_counts(*clouds))),
        "energy_distance": energy_distance(*(points[None] for points in clouds)),
    }
    return {name: distances.double().view(query.shape[:2]) for name, distances in measured.items()}


def pooled_distances(clouds: Sequence[tuple[Tensor, Tensor]], *, balances: bool) -> dict[str, Tensor]:
    """Return the distance of queries and keys of all texts over their spread, and how well a classifier separates them.

    Args:
        clouds: queries and keys of each text, `[L, H, n, d]` and `[L, H, m, d]`; the larger pooled set is sampled down
            to the size of the smaller.
        balances: whether the model's attention leaves the basis of queries and keys free.

    Returns:
        Each of `POOLED_MEASURES`, `[L, H]` float64.
    """
    query, key = (torch.cat(parts, dim=2) for parts in zip(*clouds, strict=True))
    layers = [equal_counts(*layer) for layer in zip(query, key, strict=True)]
    distances = [measure_distances(*layer) for layer in layers]
    accuracies = [measure_c2st(*layer) for layer in layers]
    measured = {
        "spread_distance": torch.stack([layer.as_is for layer in distances]),
        "balanced_distance": torch.stack([layer.balanced for layer in distances]),
        "distance_floor": torch.stack([layer.floor for layer in distances]),
        "c2st_accuracy": torch.stack([as_is for as_is, _ in accuracies]),
        "balanced_c2st_accuracy": torch.stack([balanced for _, balanced in accuracies]),
    }
    if not balances:
        measured |= {name: torch.full_like(measured[name], torch.nan) for name in measured if "balanced" in name}
    return measured


class HeadMeasurer:
    """Measures heads, one text after the other."""

    def __init__(self) -> None:
        self._measured: list[dict[str, Tensor]] = []
        self._uniform: list[dict[str, Tensor]] = []
        self._clouds: list[tuple[Tensor, Tensor]] = []
        self._counts = [0, 0]

    def add(self, sample: Sample) -> None:
        """Measure a text, and keep its queries and keys up to `POOLED_TOKENS`."""
        tokens = sample.separators, sample.rare
        measures = attention_measures(sample.weights, *tokens, is_one_text=sample.is_one_text)
        self._measured.append(query_key_distances(sample.query, sample.key) | measures)
        queries, keys = sample.weights.shape[-2:]
        uniform = torch.full((len(sample.weights), queries, keys), 1 / keys, dtype=torch.float64)
        self._uniform.append(attention_measures(uniform, *tokens, is_one_text=sample.is_one_text))
        rooms = [max(POOLED_TOKENS - count, 0) for count in self._counts]
        self._clouds.append((sample.query[:, :, : rooms[0]], sample.key[:, :, : rooms[1]]))
        self._counts = [self._counts[0] + queries, self._counts[1] + keys]

    def study(self, *, balances: bool) -> HeadStudy:
        """Return the measures of every head; each text has the same weight, whatever its length.

        Args:
            balances: whether the model's attention leaves the basis of queries and keys free.
        """
        return HeadStudy(
            measures=_means(self._measured) | pooled_distances(self._clouds, balances=balances),
            uniform=_means(self._uniform),
            num_texts=len(self._measured),
            num_tokens=self._counts[0],
        )


def joined(studies: Sequence[HeadStudy]) -> HeadStudy:
    """Join the studies of several groups of layers; the counts are those of the first study."""
    return HeadStudy(
        {name: torch.cat([study.measures[name] for study in studies]) for name in MEASURES},
        {name: torch.cat([study.uniform[name] for study in studies]) for name in studies[0].uniform},
        studies[0].num_texts,
        studies[0].num_tokens,
    )


def _means(by_text: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([measures[name] for measures in by_text]).nanmean(dim=0) for name in by_text[0]}
