"""Fusedmax: a sparse distribution over segments of neighbours that share one weight."""

from typing import Any

import torch
from torch import Tensor

from alignattn.attention.derivatives import check_reverse_mode
from alignattn.attention.masks import Earlier
from alignattn.attention.normalizers.base import Normalizer, invalid, is_number, normalize
from alignattn.attention.normalizers.sparse import sparsemax_rule

DEFAULT_WEIGHT = 0.1
SPARSEMAX_REACH = 1.0
"""Sparsemax gives zero to what lies this far, or farther, below the largest value of its row."""
BLOCK_COLUMNS = 8192
"""Chains of 128 positions treated together on a CPU: what the operations on one position read and write then fits a
cache. Elsewhere all are: a GPU has room, and its launches cost more than its arithmetic."""


def fusedmax(scores: Tensor, weight: float = DEFAULT_WEIGHT, mask: Tensor | None = None) -> Tensor:
    """Return argmin over the simplex of ½‖p - s‖² + λ Σ|p_i - p_(i-1)|.

    Niculae & Blondel 2017, "A Regularized Framework for Sparse and Structured Neural Attention": the
    proximal operator of total variation, then sparsemax. Masked positions are taken out before it is judged which
    positions are neighbours. The result and its Jacobian are exact.

    Args:
        scores: `[..., m]`.
        weight: λ, above 0.
        mask: bool, broadcastable to the scores, True = may be attended; None = every position may.

    Returns:
        `[..., m]`, see `normalize`.

    Raises:
        AlignAttnError: if the weight is not above 0, or the shapes do not fit.
    """
    _check_weight(weight)
    return normalize(lambda shifted, attendable: _weights(shifted, attendable, weight), scores, mask)


def _weights(scores: Tensor, mask: Tensor | None, weight: float) -> Tensor:
    check_reverse_mode("fusedmax", scores)
    weights: Tensor = _fused(scores, mask, weight)[0]
    return weights


def _check_weight(weight: object) -> None:
    if not is_number(weight) or weight <= 0:
        raise invalid("fusedmax", "weight", weight, "a number above 0 (for 0, choose sparsemax)")


@torch.library.custom_op("alignattn::fusedmax", mutates_args=())
def _fused(scores: Tensor, mask: Tensor | None, weight: float) -> tuple[Tensor, Tensor]:
    """Fusedmax of scores `[..., m]`, and for each position the first of those in its row it is fused with, int32.

    Which operations it takes depends on the data: to the compiler it is one.
    """
    if mask is None:
        return _of_first(scores, None, weight)
    counts = mask.sum(dim=-1)
    if not (mask[..., 1:] & ~mask[..., :-1]).any():
        return _of_first(scores, counts, weight)
    order = (~mask).byte().argsort(dim=-1, stable=True)
    weights, group = _of_first(scores.gather(-1, order), counts, weight)
    return torch.zeros_like(weights).scatter_(-1, order, weights), torch.zeros_like(group).scatter_(-1, order, group)


def _of_first(scores: Tensor, counts: Tensor | None, weight: float) -> tuple[Tensor, Tensor]:
    # Of rows whose first `counts[...]` positions are real (all of them, where None).
    rows = scores.reshape(-1, scores.shape[-1])
    order = None
    if counts is not None:
        counts, order = counts.flatten().sort()
        rows = rows[order]
    # Total variation moves a score by 2λ at most, so what lies 1 + 2λ below the largest gets no weight, and of
    # what lies 2λ further below, its neighbours see only that it is low: to lift it changes no weight.
    floor = -(SPARSEMAX_REACH + 4 * weight)
    denoised, is_fused = denoise(rows.T.clamp(min=floor), counts, weight)
    weights = sparsemax_rule(denoised.T.contiguous(), None)
    position = torch.arange(len(is_fused), dtype=torch.int32, device=scores.device)[:, None]
    group = torch.where(is_fused, 0, position).cummax(dim=0).values.T
    return _in_former_order(weights, order).view(scores.shape), _in_former_order(group, order).view(scores.shape)


def _in_former_order(rows: Tensor, order: Tensor | None) -> Tensor:
    return rows.contiguous() if order is None else rows.new_empty(rows.shape).index_copy_(0, order, rows)


@_fused.register_fake
def _(scores: Tensor, mask: Tensor | None, weight: float) -> tuple[Tensor, Tensor]:
    weights = torch.empty_like(scores, memory_format=torch.contiguous_format)
    return weights, torch.empty_like(weights, dtype=torch.int32)


def _keep_for_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output)


def _gradient(ctx: Any, gradient: Tensor, _: None) -> tuple[Tensor, None, None]:
    weights, group = ctx.saved_tensors
    in_support = weights > 0
    on_support = torch.where(in_support, gradient, 0)
    mean = on_support.sum(dim=-1, keepdim=True) / in_support.sum(dim=-1, keepdim=True)
    to_denoised = torch.where(in_support, gradient - mean, 0)
    # The support is a union of fused groups, and a group's value is the mean of its scores plus a constant.
    group = group.long()
    sizes = torch.zeros_like(weights).scatter_add(-1, group, torch.ones_like(weights))
    sums = torch.zeros_like(weights).scatter_add(-1, group, to_denoised)
    return (sums / sizes.clamp(min=1)).gather(-1, group), None, None


_fused.register_autograd(_gradient, setup_context=_keep_for_gradient)


class Fusedmax(Normalizer):
    """`fusedmax` as a module.

    Args:
        head_dim: size d of a head's query.
        num_heads: H.
        weight: λ, above 0.

    Raises:
        AlignAttnError: if the weight is not above 0.
    """

    def __init__(self, head_dim: int, num_heads: int, *, weight: float = DEFAULT_WEIGHT) -> None:
        super().__init__(head_dim, num_heads)
        _check_weight(weight)
        self.weight = weight

    def _weights(self, scores: Tensor, mask: Tensor | None, query: Tensor | None, earlier: Earlier | None) -> Tensor:
        return _weights(scores, mask, self.weight)


def denoise(scores: Tensor, counts: Tensor | None, weight: float) -> tuple[Tensor, Tensor]:
    """Return argmin ½‖x - s‖² + λ Σ|x_i - x_(i-1)| of each column.

    Args:
        scores: `[m, R]`.
        counts: `[R]`, how many positions of a column are real: the first ones, the others keep their value and
            are nobody's neighbours; None = all. Columns of about one count should stand together: blocks of columns
            are cut to the longest.
        weight: λ, above 0.

    Returns:
        x, `[m, R]`, and a bool `[m, R]`: whether a position is fused with the one before it.
    """
    values, is_fused = torch.empty_like(scores), torch.empty_like(scores, dtype=torch.bool)
    at_once = BLOCK_COLUMNS if scores.device.type == "cpu" else max(1, scores.shape[1])
    for start in range(0, scores.shape[1], at_once):
        block = slice(start, start + at_once)
        real = None if counts is None else counts[block]
        longest = max(1, len(scores) if real is None else int(real.max()))
        chains = _Chains(scores[:longest, block].contiguous(), real, weight)
        _solve(chains, values[:longest, block], is_fused[:longest, block])
        values[longest:, block] = scores[longest:, block]
        is_fused[longest:, block] = False
    return values, is_fused


def _solve(chains: "_Chains", values: Tensor, is_fused: Tensor) -> None:
    """Split the chains' groups until all are done, and write what they are to `values` and `is_fused`, `[m, R]`."""
    remaining = torch.arange(values.shape[1], device=values.device)
    while len(remaining):
        level = chains.group_levels()
        is_high = chains.high_positions(level)
        splits = chains.splits(is_high)
        is_unfinished = splits.any(dim=0)
        unfinished = is_unfinished.nonzero().squeeze(1)
        # Chains that are done stay unless they are many: to sort them out costs about as much as a round.
        if 2 * len(unfinished) <= len(remaining):
            finished = (~is_unfinished).nonzero().squeeze(1)
            values[:, remaining[finished]] = level[:, finished]
            is_fused[:, remaining[finished]] = chains.is_joined()[:-1, finished]
            remaining = remaining[unfinished]
            chains.keep(unfinished)
            splits, is_high = splits[:, unfinished], is_high[:, unfinished]
        chains.split(splits, is_high)


class _Chains:
    """Chains `[m, R]`, parted into groups, that are solved by divide and conquer over levels.

    Kolmogorov, Pock & Rolinek 2016, "Total Variation on a Tree". A group is a run of positions whose
    neighbours are known to lie above or below all of it. Were it constant, it would have the value θ, which in any
    case is the mean of its solution. The positions with x_i ≥ θ minimise a binary problem on the chain, which the
    Viterbi algorithm solves: they split the group, or it is done. All groups of all chains are split at once.

    Edge i, of 0 to m, stands between the positions i - 1 and i. The left one pulls the right one up by at least
    `least[i]` and at most `most[i]`, and the right one pulls the left one as much the other way: -λ and λ in a
    group; twice λ at an edge between groups whose left one is the higher, twice -λ if it is the lower; twice 0 at
    the ends.

    Args:
        scores: `[m, R]`.
        counts: `[R]`, how many positions of a chain are real, or None.
        weight: λ, above 0.
    """

    def __init__(self, scores: Tensor, counts: Tensor | None, weight: float) -> None:
        length, columns = scores.shape
        self.scores = scores
        self.weight = weight
        self.most = scores.new_full((length + 1, columns), weight)
        self.most[0] = self.most[-1] = 0
        if counts is not None:
            self.most[:-1] *= torch.arange(length, device=scores.device)[:, None] < counts
        self.least = -self.most

    def is_joined(self) -> Tensor:
        """Return whether an edge lies inside a group, `[m + 1, R]`."""
        return self.least != self.most

    def group_levels(self) -> Tensor:
        """Return θ, `[m, R]`: the sum of the group's scores and of the pulls at its two ends, over its size."""
        joined = self.is_joined().to(self.scores.dtype).unbind()
        pull = (self.least + self.most).div_(2)
        total, size = self.scores + pull[:-1], torch.ones_like(self.scores)
        totals, sizes = total.unbind(), size.unbind()
        for i in range(1, len(totals)):
            totals[i].addcmul_(joined[i], totals[i - 1])
            sizes[i].addcmul_(joined[i], sizes[i - 1])
        level = total.sub_(pull[1:]).div_(size)
        levels = level.unbind()
        for i in reversed(range(len(levels) - 1)):
            levels[i].lerp_(levels[i + 1], joined[i + 1])  # by a weight of 0 or 1, which is exact
        return level

    def high_positions(self, level: Tensor) -> Tensor:
        """Return argmax over b in {0, 1} of Σ (s_i - θ_i) b_i - λ Σ|b_i - b_(i-1)|, `[m, R]`, other groups' b given.

        Forward, `cost[i]` is how much less the best choice of the positions up to i is worth with b_i = 1 than
        with b_i = 0: what position i adds, and what an edge passes on. Backward, the choice at i + 1, known by the
        sign of its cost, passes on ±λ.
        """
        gain = self.scores - level
        gains, least, most = gain.unbind(), self.least.unbind(), self.most.unbind()
        passed, full = torch.empty_like(gain[0]), torch.full_like(gain[0], self.weight)
        for i in range(1, len(gains)):
            gains[i].add_(torch.clamp(gains[i - 1], least[i], most[i], out=passed))
        cost = gain.neg_()
        costs = cost.unbind()
        for i in reversed(range(len(costs) - 1)):
            torch.copysign(full, costs[i + 1], out=passed)
            costs[i].add_(torch.clamp(passed, least[i + 1], most[i + 1], out=passed))
        return cost.signbit()

    def splits(self, is_high: Tensor) -> Tensor:
        """Return at which edges, but for the ends, a group has a high and a low position, `[m - 1, R]`."""
        return (is_high[1:] != is_high[:-1]) & self.is_joined()[1:-1]

    def split(self, splits: Tensor, is_high: Tensor) -> None:
        """Part groups at some edges between high and low positions."""
        self.least[1:-1].masked_fill_(splits & is_high[:-1], self.weight)
        self.most[1:-1].masked_fill_(splits & is_high[1:], -self.weight)

    def keep(self, columns: Tensor) -> None:
        """Drop all chains but those at some indices `[r]`."""
        self.scores, self.least, self.most = (
            tensor.index_select(1, columns) for tensor in (self.scores, self.least, self.most)
        )
