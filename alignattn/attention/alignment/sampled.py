"""Alignments of points drawn from the clouds of a batch."""

from typing import ClassVar

import torch
from torch import Tensor

from alignattn.attention.alignment.call import Call
from alignattn.attention.alignment.draws import token_ranks
from alignattn.attention.alignment.pooled import PooledAlignment, uniform_weight


class SampledAlignment(PooledAlignment):
    """A distance of at most `points` queries and keys a head, those of tokens drawn anew at every step of training.

    All heads and layers of a step see the same tokens; with no more tokens than points it is the distance of all.

    Args:
        head_dim: size d of a head's query and key.
        num_layers: accepted as by the losses with networks; this one has no parameters.
        points: of a cloud, at most.
        head_reduction: `sum` or `mean` over the heads.

    Raises:
        AlignAttnError: if `points` is below 2.
    """

    fewest_points: ClassVar[int] = 2
    points: int

    def _points_of(self, call: Call) -> int:
        """How many points of a call are worked on, at most."""
        return min(self.points, call.query.shape[0] * call.length)

    def _drawn(self, points: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        size = points.shape[2]
        if size <= self.points:
            return points, uniform_weight(points, real)
        step = self.step.to(points.device)
        ranks = token_ranks(step, size, real)
        chosen = (ranks if real is not None else ranks[None, None]).topk(self.points, dim=-1).indices
        if chosen.shape[:2] == (1, 1):
            drawn = points.index_select(2, chosen[0, 0])
        else:
            drawn = torch.take_along_dim(points, chosen[..., None, None], dim=2)
        return drawn, uniform_weight(drawn, None if real is None else real.gather(2, chosen))
