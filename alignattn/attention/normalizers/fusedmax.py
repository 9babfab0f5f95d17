"""Fusedmax: a sparse distribution over segments of neighbours that share one weight."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from alignattn.attention.masks import Earlier
from alignattn.attention.normalizers.base import Normalizer, invalid, is_number, normalize
from alignattn.attention.normalizers.sparse import SPARSEMAX_ALPHA, by_sorting

DEFAULT_WEIGHT = 0.1
SPARSEMAX_REACH = 1.0
"""Sparsemax gives weight 0 to values this far or farther below the largest of their row."""
BLOCK_COLUMNS = 8192
"""Number of chains that are solved together on a CPU, so that the data of one position fits a cache. On a GPU all are
solved together, because launches cost more than arithmetic."""


def fusedmax(scores: Tensor, weight: float = DEFAULT_WEIGHT, mask: Tensor | None = None) -> Tensor:
    """Return argmin over the simplex of ½‖p - s‖² + λ Σ|p_i - p_(i-1)|.

    Niculae & Blondel 2017, "A Regularized Framework for Sparse and Structured Neural Attention": the proximal operator
    of total variation, then sparsemax. Masked positions are removed first, so that the positions around them are
    neighbours. The result and its Jacobian are exact.

    Args:
        scores: `[..., m]`.
        weight: λ, above 0.
        mask: bool, broadcastable to the scores, True = may be attended to; None = every position may.

    Returns:
        `[..., m]`, see `normalize`.

    Raises:
        AlignAttnError: if the weight is not above 0, or the shapes do not fit.
    """
    _check_weight(weight)
    return normalize(lambda shifted, attendable: _fused(shifted, attendable, weight)[0], scores, mask)


def _check_weight(weight: object) -> None:
    if not is_number(weight) or weight <= 0:
        raise invalid("fusedmax", "weight", weight, "a number above 0 (for 0, choose sparsemax)")


class _Fusedmax(torch.autograd.Function):
    @staticmethod
    def forward(scores: Tensor, mask: Tensor | None, weight: float) -> tuple[Tensor, Tensor]:
        """Return fusedmax of scores `[..., m]`, and for each position the first position of its fused group, int32."""
        if mask is None:
            return _of_first(scores, None, weight)
        counts = mask.sum(dim=-1)
        if not (mask[..., 1:] & ~mask[..., :-1]).any():
            return _of_first(scores, counts, weight)
        order = (~mask).byte().argsort(dim=-1, stable=True)
        weights, group = _of_first(scores.gather(-1, order), counts, weight)
        return torch.zeros_like(weights).scatter_(-1, order, weights), torch.zeros_like(group).scatter_(
            -1, order, group
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        weights, group = ctx.saved_tensors
        in_support = weights > 0
        on_support = torch.where(in_support, grad_outputs[0], 0)
        mean = on_support.sum(dim=-1, keepdim=True) / in_support.sum(dim=-1, keepdim=True)
        to_denoised = torch.where(in_support, grad_outputs[0] - mean, 0)
        # The support is a union of fused groups, and the value of a group is the mean of its scores plus a constant.
        group = group.long()
        sizes = torch.zeros_like(weights).scatter_add(-1, group, torch.ones_like(weights))
        sums = torch.zeros_like(weights).scatter_add(-1, group, to_denoised)
        return (sums / sizes.clamp(min=1)).gather(-1, group), None, None


# The steps depend on the data, so a compiler leaves its graph here.
_fused: Callable[..., tuple[Tensor, Tensor]] = torch.compiler.disable(_Fusedmax.apply)


def _of_first(scores: Tensor, counts: Tensor | None, weight: float) -> tuple[Tensor, Tensor]:
    # The first `counts[...]` positions of each row are real; None = all.
    rows = scores.reshape(-1, scores.shape[-1])
    order = None
    if counts is not None:
        counts, order = counts.flatten().sort()
        rows = rows[order]
    # Total variation moves a score by 2λ at most, so a score 1 + 2λ below the largest gets no weight. A score 2λ
    # further below can be raised to the floor: its neighbours depend only on its being low, so no weight changes.
    floor = -(SPARSEMAX_REACH + 4 * weight)
    denoised, is_fused = denoise(rows.T.clamp(min=floor), counts, weight)
    weights = by_sorting(denoised.T.contiguous(), SPARSEMAX_ALPHA)
    position = torch.arange(len(is_fused), dtype=torch.int32, device=scores.device)[:, None]
    group = torch.where(is_fused, 0, position).cummax(dim=0).values.T
    return _in_former_order(weights, order).view(scores.shape), _in_former_order(group, order).view(scores.shape)


def _in_former_order(rows: Tensor, order: Tensor | None) -> Tensor:
    return rows.contiguous() if order is None else rows.new_empty(rows.shape).index_copy_(0, order, rows)


class Fusedmax(Normalizer):
    """`fusedmax` as a module.

    Args:
        weight: λ, above 0.

    Raises:
        AlignAttnError: if the weight is not above 0.
    """

    def __init__(self, head_dim: int, num_heads: int, *, weight: float = DEFAULT_WEIGHT) -> None:
        super().__init__(head_dim, num_heads)
        _check_weight(weight)
        self.weight = weight

    def _weights(self, scores: Tensor, mask: Tensor | None, query: Tensor | None, earlier: Earlier | None) -> Tensor:
        return _fused(scores, mask, self.weight)[0]


def denoise(scores: Tensor, counts: Tensor | None, weight: float) -> tuple[Tensor, Tensor]:
    """Return argmin ½‖x - s‖² + λ Σ|x_i - x_(i-1)| of each column.

    Args:
        scores: `[m, R]`.
        counts: `[R]`, the number of real positions of a column, which come first; the others keep their value and have
            no neighbours; None = all. Neighbouring columns should have similar counts: blocks of columns are truncated
            to the longest.
        weight: λ, above 0.

    Returns:
        x, `[m, R]`, and a bool `[m, R]`: whether a position is fused with the previous one.
    """
    values, is_fused = torch.empty_like(scores), torch.empty_like(scores, dtype=torch.bool)
    at_once = BLOCK_COLUMNS if scores.device.type == "cpu" else max(1, scores.shape[1])
    for start in range(0, scores.shape[1], at_once):
        block = slice(start, start + at_once)
        real = None if counts is None else counts[block]
        longest = max(1, len(scores) if real is None else int(real.max()))
        chains = _Chains(scores[:longest, block].contiguous(), real, weight)
        remaining = torch.arange(start, start + chains.scores.shape[1], device=scores.device)
        # The groups of the chains are split until all are done.
        while len(remaining):
            level = chains.group_levels()
            is_high = chains.high_positions(level)
            splits = (is_high[1:] != is_high[:-1]) & chains.is_joined()[1:-1]
            is_unfinished = splits.any(dim=0)
            unfinished = is_unfinished.nonzero().squeeze(1)
            # Finished chains stay until they are the majority: removing them costs about as much as a round.
            if 2 * len(unfinished) <= len(remaining):
                finished = (~is_unfinished).nonzero().squeeze(1)
                values[:longest, remaining[finished]] = level[:, finished]
                is_fused[:longest, remaining[finished]] = chains.is_joined()[:-1, finished]
                remaining = remaining[unfinished]
                chains.keep(unfinished)
                splits, is_high = splits[:, unfinished], is_high[:, unfinished]
            chains.split(splits, is_high)
        values[longest:, block] = scores[longest:, block]
        is_fused[longest:, block] = False
    return values, is_fused


class _Chains:
    """Chains `[m, R]`, partitioned into groups, which are solved by divide and conquer over levels.

    Kolmogorov, Pock & Rolinek 2016, "Total Variation on a Tree". A group is a run of positions whose neighbours are
    known to lie above or below all of it. The mean of its solution is θ. The positions with x_i ≥ θ solve a binary
    problem on the chain, which the Viterbi algorithm solves: they split the group, or the group is finished. All groups
    of all chains are split at once.

    Edge i, from 0 to m, joins the positions i - 1 and i. The left one pulls the right one up by at least `least[i]` and
    at most `most[i]`, and is pulled by the opposite amount: the bounds are -λ and λ within a group, both λ between
    groups if the left one is higher, both -λ if it is lower, and both 0 at the ends.

    Args:
        scores: `[m, R]`.
        counts: `[R]`, the number of real positions of a chain, or None.
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
        """Return θ, `[m, R]`: the sum of a group's scores and of the pulls at its ends, divided by its size."""
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
        """Return argmax over b in {0, 1} of Σ (s_i - θ_i) b_i - λ Σ|b_i - b_(i-1)|, `[m, R]`, given other groups' b.

        Forward, `cost[i]` is the difference in value between the best choices up to i with b_i = 0 and with b_i = 1.
        Backward, the choice at i + 1, the sign of its cost, contributes ±λ.
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

    def split(self, splits: Tensor, is_high: Tensor) -> None:
        """Split groups at inner edges `[m - 1, R]` bool between a high and a low position."""
        self.least[1:-1].masked_fill_(splits & is_high[:-1], self.weight)
        self.most[1:-1].masked_fill_(splits & is_high[1:], -self.weight)

    def keep(self, columns: Tensor) -> None:
        """Keep the chains at some indices `[r]` only."""
        self.scores, self.least, self.most = (
            tensor.index_select(1, columns) for tensor in (self.scores, self.least, self.most)
        )
