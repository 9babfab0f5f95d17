"""Alignment by the sliced Wasserstein distance (Bonneel et al. 2015)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.alignment.calls import Call
from alignattn.attention.alignment.draws import directions
from alignattn.attention.alignment.pooled import PooledAlignment, StandardizedClouds
from alignattn.attention.choices import HeadReduction
from alignattn.utils.errors import AlignAttnError

POINTS = 512
DIRECTIONS = 32
PROJECTIONS_KEPT = 4
"""Memory in units of the projections' size: the projections, their sorted copy, and the order in 64 bits."""


class SlicedAlignment(PooledAlignment):
    """The squared sliced 2-Wasserstein distance of the clouds, times d, in units of their squared spread.

    Units are those of `StandardizedClouds`. Bonneel et al. 2015, "Sliced and Radon Wasserstein Barycenters of
    Measures", eq. 8: the mean over directions of the squared distance of the sorted projections. The directions are
    drawn anew at every training step. The factor d, the size of a head, makes it |μ_q - μ_k|² for clouds that differ
    by a shift.

    The other arguments are those of `Alignment`.

    Args:
        points: maximum number of points of a cloud.
        directions: number of directions.

    Raises:
        AlignAttnError: if `points` is below 2 or `directions` below 1.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        num_layers: int = 1,
        points: int = POINTS,
        directions: int = DIRECTIONS,
        head_reduction: HeadReduction = "sum",
    ) -> None:
        super().__init__(head_dim, num_layers=num_layers, points=points, head_reduction=head_reduction)
        if directions < 1:
            raise AlignAttnError(f"directions={directions!r} must be at least 1")
        self.directions = directions

    def _elements(self, call: Call) -> int:
        projections = 2 * call.heads * self._points_of(call) * self.directions
        return max(super()._elements(call), PROJECTIONS_KEPT * projections)

    def _distances(self, points: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        clouds = StandardizedClouds.of(points, weight)
        slices = directions(self.step.to(points.device), self.head_dim, self.directions).to(points.dtype)
        projected = (clouds.points @ slices).mT
        # Padding is sorted last.
        beyond = torch.finfo(projected.dtype).max
        ordered = projected.masked_fill((weight == 0)[:, :, None, None], beyond).sort(dim=-1).values
        counts = (weight > 0).sum(dim=-1).clamp(min=1)
        if weight.shape[1] == 1:  # equally many points, and equal values at padding
            squares = (ordered[:, 0] - ordered[:, 1]).square().sum(dim=-1) / counts[..., None]
        else:
            squares = _between_quantiles(ordered, counts)
        return squares.mean(dim=-1) * self.head_dim, clouds.gap

    def extra_repr(self) -> str:
        """Return the module's printed form."""
        return f"{super().extra_repr()}, directions={self.directions}"


def _between_quantiles(ordered: Tensor, counts: Tensor) -> Tensor:
    """Return ∫ (F⁻¹(u) - G⁻¹(u))² du of two samples of different sizes, `[C, H, K]`.

    Both quantile functions are constant between neighbouring steps, i / n or j / m.

    Args:
        ordered: `[C, 2, H, K, P]`, sorted, real values first.
        counts: number of real values of each, `[C, 2]`.
    """
    steps = torch.arange(1, ordered.shape[-1] + 1, device=ordered.device) / counts.to(ordered.dtype)[..., None]
    ends = steps.clamp(max=1).flatten(1).sort(dim=-1).values
    starts = F.pad(ends, (1, 0))[:, :-1]
    # The middle of an interval lies on no step, whatever the rounding of its ends.
    places = ((starts + ends) / 2)[:, None] * counts[..., None]
    places = places.long().clamp(max=ordered.shape[-1] - 1)
    of_query, of_key = torch.take_along_dim(ordered, places[:, :, None, None], dim=-1).unbind(1)
    return ((of_query - of_key).square() * (ends - starts)[:, None, None]).sum(dim=-1)
