"""Alignments of points drawn from the clouds of a batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from alignattn.attention.alignment.call import Call
from alignattn.attention.alignment.draws import token_ranks
from alignattn.attention.alignment.pooled import PooledAlignment, uniform_weight
from alignattn.attention.choices import HeadReduction
from alignattn.support.errors import AlignAttnError


class SampledAlignment(PooledAlignment):
    """A distance of at most `points` queries and keys a head, those of tokens drawn anew at every step of training.

    All heads and layers of a step see the same tokens; with no more tokens than points it is the distance of all.

    Args:
        head_dim: size d of a head's query and key.
        num_layers: accepted as by the losses with networks; this one has no parameters.
        points: of a cloud, at most.
        head_reduction: `sum` or `mean` over the heads.

    Attributes:
        step: an int64 scalar, which the draws are a function of; saved, so that a resumed run goes on with the same.

    Raises:
        AlignAttnError: if `points` is below 2.
    """

    step: Tensor

    def __init__(
        self, head_dim: int, *, num_layers: int = 1, points: int, head_reduction: HeadReduction = "sum"
    ) -> None:
        super().__init__(head_dim, num_layers=num_layers, head_reduction=head_reduction)
        if points < 2:
            raise AlignAttnError(f"points={points!r} must be at least 2")
        self.points = points
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def of_calls(self, calls: Sequence[Call], samples: int | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss and diagnostics of attention calls; in training the next step's draws are others."""
        result = super().of_calls(calls, samples)
        if self.training:
            self.step += 1
        return result

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

    def extra_repr(self) -> str:
        """Name the options, for the module's `repr`."""
        return f"{super().extra_repr()}, points={self.points}"
