"""Sparsemax and entmax15 of the edges of each query, by sorting them: no matrix of queries and keys is formed."""

import torch
from torch import Tensor

from alignattn.attention.edges import Segments

SPARSEMAX_ALPHA = 2.0
ENTMAX15_ALPHA = 1.5
LEAST = -2.0
"""Of scores times α - 1, the largest 0: below -1 one weighs nothing, and is not let come near it by rounding."""


def weights_by_sorting(scores: Tensor, segments: Segments, alpha: float) -> Tensor:
    """Return the entmax of each segment, [(α - 1) s - τ]₊^(1 / (α - 1)) with the τ that makes it sum to 1.

    Sparsemax: Martins & Astudillo 2016, algorithm 1. Entmax15: Peters, Niculae & Martins 2019, algorithm 2.

    Args:
        scores: `[E, H]`, the largest of each segment 0.
        segments: of its rows.
        alpha: `SPARSEMAX_ALPHA` or `ENTMAX15_ALPHA`.

    Returns:
        `[E, H]`.
    """
    scaled = (scores * (alpha - 1)).clamp_min(LEAST)
    # By two stable sorts: all scores, and then their segments.
    falling = scaled.argsort(dim=0, descending=True, stable=True)
    order = falling.gather(0, segments.index[falling].argsort(dim=0, stable=True))
    # Sums run over all segments: in float64 what one leaves is exact enough to be taken off again.
    ordered = scaled.gather(0, order).double()
    owner = segments.index[order]
    sizes = torch.bincount(segments.index, minlength=segments.count)
    starts = sizes.cumsum(0) - sizes
    first = starts[owner]
    rank = torch.arange(1, len(scores) + 1, device=scores.device)[:, None] - first
    threshold = _thresholds(ordered, rank, first, alpha)
    in_support = ordered >= threshold if alpha == ENTMAX15_ALPHA else ordered > threshold
    support = segments.sum(torch.empty_like(scores).scatter_(0, order, in_support.to(scores.dtype))).long()
    # A segment without rows asks for no threshold.
    last = (starts[:, None] + support - 1).clamp(0, max(len(scores) - 1, 0))
    tau = threshold.gather(0, last) if len(scores) else threshold.new_zeros(last.shape)
    excess = (scaled.double() - segments.spread(tau)).clamp_min(0)
    return (excess ** (1 / (alpha - 1))).to(scores.dtype)


def _thresholds(ordered: Tensor, rank: Tensor, first: Tensor, alpha: float) -> Tensor:
    """Return the τ of a support that ends at each place, `[E, H]`.

    Args:
        ordered: scores times α - 1, segment after segment, falling in each.
        rank: of each in its segment, from 1.
        first: place of the first of its segment.
        alpha: as for `weights_by_sorting`.
    """

    def running(values: Tensor) -> Tensor:
        before = torch.cat([values.new_zeros(1, values.shape[1]), values.cumsum(dim=0)])
        return before[1:] - before.gather(0, first)

    if alpha == SPARSEMAX_ALPHA:
        return (running(ordered) - 1) / rank
    mean = running(ordered) / rank
    spread = running(ordered.square()) - rank * mean.square()
    return mean - ((1 - spread) / rank).clamp_min(0).sqrt()
