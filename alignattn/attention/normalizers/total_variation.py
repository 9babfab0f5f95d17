"""The proximal operator of total variation of many chains at once, exact, for `fusedmax`."""

import torch
from torch import Tensor

BLOCK_COLUMNS = 8192
"""Chains of 128 positions treated together on a CPU: what the operations on one position read and write then fits a
cache. Elsewhere all are: a GPU has room, and its launches cost more than its arithmetic."""


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
