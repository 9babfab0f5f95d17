"""Alignments of the clouds of all tokens in a batch, without an adversary."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from alignattn.attention.alignment.base import Alignment
from alignattn.attention.alignment.calls import Call, TokenMeasure
from alignattn.attention.alignment.draws import ranks
from alignattn.attention.alignment.networks import NORM_EPSILON


@dataclass(frozen=True)
class StandardizedClouds:
    """The queries and keys of each head of C calls, centred at their joint mean and in units of their spread.

    The unit is the root mean square distance of both clouds' points from their joint mean: distances are invariant to a
    common scale and shift.

    Attributes:
        points: `[C, 2, H, P, d]`; 0 at padding.
        weight: `[1 or C, 1 or 2, P]`, 1 over the number of real points, 0 at padding; for both clouds, or for each.
        gap: `[C, H]`, the distance of the clouds' means, from 0 to 2; without gradient.
    """

    points: Tensor
    weight: Tensor
    gap: Tensor

    @classmethod
    def of(cls, points: Tensor, weight: Tensor) -> "StandardizedClouds":
        """Build them from points `[C, 2, P, H, d]` with weights `[1 or C, 1 or 2, P]`."""
        by_head = points.transpose(2, 3)
        column = weight[:, :, None, :, None]
        by_head = by_head.masked_fill(column == 0, 0)
        means = (by_head * column).sum(dim=3, keepdim=True)
        centred = (by_head - means.mean(dim=1, keepdim=True)).masked_fill(column == 0, 0)
        spread = (centred.square() * column).sum(dim=(3, 4)).mean(dim=1) + rounding(means.squeeze(3))
        gap = (means[:, 0] - means[:, 1]).detach().norm(dim=(2, 3)) / spread.detach().sqrt()
        return cls(centred * spread.rsqrt()[:, None, :, None, None], weight, gap)


def shares(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return weights `[1 or C, 1 or 2, P]` as 1 at real points and 0 at padding, and the weight of a real point.

    The second has the shape `[1 or C, 1 or 2, 1, 1, 1]`. A sum over real points has no rounding of the weights, which
    TF32 would round to three digits.
    """
    return (weight > 0).to(weight.dtype), weight.amax(dim=-1)[..., None, None, None]


def rounding(means: Tensor) -> Tensor:
    """Return the squared spread that rounding may leave between equal points, `[C, H]`, for means `[C, 2, H, d]`."""
    return (means.detach().square().sum(dim=-1).mean(dim=1) + 1) * NORM_EPSILON**2


class PooledAlignment(Alignment):
    """A distance between the clouds of queries and keys of all real tokens in a batch, for each head.

    It has no networks. A cloud covers a whole batch, so the mean of the distances of two half batches is not the
    distance of the whole: with gradient accumulation or several processes, gradients depend on the split. All heads and
    layers of a step use the same tokens if `points` limits them.

    Diagnostic: `mean_gap`, the distance of the clouds' means in units of their spread (`StandardizedClouds`), mean over
    heads: 0 for equal means, 2 for two distant points.
    """

    by_sample: ClassVar[bool] = False
    min_points: ClassVar[int] = 2
    diagnostic = "mean_gap"

    def compute(self, features: Tensor, tokens: TokenMeasure, layers: slice) -> tuple[Tensor, Tensor]:
        """Return the distances of the clouds and of their means."""
        if features.numel() == 0:
            nothing = features.sum(dim=(1, 2, 3, 4, 5))
            return nothing, nothing.detach()
        points, weight = self._drawn(features.flatten(2, 3), None if tokens.mask is None else tokens.mask.flatten(2))
        distances, gaps = self._distances(points, weight)
        # Without a real token there is no cloud.
        return (distances * weight.any(dim=-1).all(dim=-1, keepdim=True)).sum(dim=1), gaps.mean(dim=1)

    def _points_of(self, call: Call) -> int:
        """Return the maximum number of points of a call that are used."""
        size = call.query.shape[0] * call.length
        return size if self.points is None else min(self.points, size)

    def _drawn(self, points: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the points to use, `[C, 2, P, H, d]`, and their weights.

        Args:
            points: the points of all tokens, `[C, 2, N, H, d]`.
            real: `[1 or C, 1 or 2, N]` bool; None = all are real.
        """
        size = points.shape[2]
        if self.points is not None and size > self.points:
            of_tokens = ranks(self.step.to(points.device), size, real)
            chosen = (of_tokens if real is not None else of_tokens[None, None]).topk(self.points, dim=-1).indices
            if chosen.shape[:2] == (1, 1):
                points = points.index_select(2, chosen[0, 0])
            else:
                points = torch.take_along_dim(points, chosen[..., None, None], dim=2)
            real = None if real is None else real.gather(2, chosen)
        if real is None:
            return points, points.new_full((1, 1, points.shape[2]), 1 / max(points.shape[2], 1))
        return points, real.to(points.dtype) / real.sum(dim=-1, keepdim=True).clamp(min=1)

    @abstractmethod
    def _distances(self, points: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distance and the gap of the means of each head, both `[C, H]`.

        Args:
            points: `[C, 2, P, H, d]`.
            weight: `[1 or C, 1 or 2, P]`, 1 over the number of real points, 0 at padding.
        """
