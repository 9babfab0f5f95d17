"""Constrained softmax: an upper bound for each weight."""

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.masks import Earlier
from alignattn.attention.normalizers.base import MASKED_SCORE, Normalizer, invalid, is_number, normalize
from alignattn.utils.errors import AlignAttnError

DEFAULT_BOUND = 0.5
BOUNDS_TOLERANCE = 1e-5
"""Tolerance of rounding for bounds that sum to 1."""


def csoftmax(scores: Tensor, bound: float | Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the distribution under upper bounds that is nearest to the softmax in Kullback-Leibler divergence.

    argmin over the simplex of Σ p_i log p_i - p·s subject to p ≤ u (Martins & Kreutzer 2017, "Learning What's Easy";
    Malaviya, Ferreira & Martins 2018, "Sparse and Constrained Attention for Neural Machine Translation"):
    p_i = u_i where the bound is active, and the other positions share the remaining mass by their softmax. It is
    differentiable in the scores and in the bounds.

    In a row whose attendable bounds sum to less than 1, bounds below the uniform weight are raised to it.

    Args:
        scores: `[..., m]`.
        bound: u, a number in (0, 1], or a tensor broadcastable to the scores whose rows sum to 1 or more.
        mask: bool, broadcastable to the scores, True = may be attended to; None = every position may.

    Returns:
        `[..., m]`, see `normalize`.

    Raises:
        AlignAttnError: if a bound is out of its range, the bounds of a row over all positions sum to less than 1, or
            the shapes do not fit.
    """
    if not isinstance(bound, Tensor):
        _check_bound(bound)
    else:
        try:
            bounds = bound.detach().expand_as(scores)
        except RuntimeError as error:
            raise AlignAttnError(
                f"normalizer 'csoftmax': the bounds {list(bound.shape)} must be broadcastable to the scores "
                f"{list(scores.shape)}"
            ) from error
        lowest = bounds.min().item()
        if not lowest >= 0:
            raise invalid("csoftmax", "bound", lowest, "0 or more at every position")
        total = bounds.sum(dim=-1, dtype=torch.float64).min().item()
        if total < 1 - BOUNDS_TOLERANCE:
            raise AlignAttnError(
                f"normalizer 'csoftmax': the bounds of a row sum to {total:.6g}: they must sum to 1 or more, "
                "because its weights sum to 1"
            )
    return normalize(lambda shifted, attendable: _csoftmax(shifted, attendable, bound), scores, mask)


def _check_bound(bound: object) -> None:
    if not is_number(bound) or not 0 < bound <= 1:
        raise invalid("csoftmax", "bound", bound, "a number above 0 and at most 1")


def _csoftmax(scores: Tensor, mask: Tensor | None, bound: float | Tensor) -> Tensor:
    limit = torch.as_tensor(bound, dtype=scores.dtype, device=scores.device).expand_as(scores)
    if mask is None:
        uniform = torch.full_like(limit[..., :1], 1 / limit.shape[-1])
    else:
        limit = limit.masked_fill(~mask, 0)
        uniform = 1 / mask.sum(dim=-1, keepdim=True).clamp(min=1).to(limit.dtype)
    is_short = limit.sum(dim=-1, keepdim=True) < 1
    limit = torch.where(is_short, torch.maximum(limit, uniform), limit)
    with torch.no_grad():
        # Where the bound is active: in descending order of exp(s_i) / u_i, a position is clipped if its softmax over
        # the remaining positions, times the remaining mass, exceeds its bound; after the first that is not clipped,
        # none is. In logarithms, because a position that gets mass only because all above it are clipped may be far
        # below them.
        key = scores - limit.log()
        if mask is not None:
            key = key.masked_fill(~mask, -torch.inf)
        key, order = key.sort(dim=-1, descending=True)
        sorted_limit = limit.gather(-1, order)
        mass_left = 1 - (sorted_limit.cumsum(dim=-1) - sorted_limit)
        log_sum_left = scores.gather(-1, order).flip(-1).logcumsumexp(dim=-1).flip(-1)
        exceeds = mass_left.clamp(min=0).log() - log_sum_left + key > 0
        at_limit = torch.zeros_like(exceeds).scatter_(-1, order, exceeds)
    # The active set is constant almost everywhere, so the gradient of this expression is exact.
    rest = 1 - torch.where(at_limit, limit, 0).sum(dim=-1, keepdim=True)
    share = F.softmax(scores.masked_fill(at_limit, MASKED_SCORE), dim=-1)
    return torch.where(at_limit, limit, rest * share)


class CSoftmax(Normalizer):
    """`csoftmax` as a module, with one bound for all weights, or with a budget of each key over all queries.

    With a fertility f, a decoder that attends with one query at a time bounds each key by the rest of its budget,
    u_t = f - β_t, where β_t is the sum of its earlier weights (Malaviya et al. 2018). If the keys have less than 1 left
    in total, `csoftmax` raises the bounds.

    Args:
        bound: u, above 0 and at most 1.
        fertility: f, above 0; None = use the bound.

    Raises:
        AlignAttnError: if one of them is out of its range.
    """

    def __init__(
        self, head_dim: int, num_heads: int, *, bound: float = DEFAULT_BOUND, fertility: float | None = None
    ) -> None:
        super().__init__(head_dim, num_heads)
        _check_bound(bound)
        if fertility is not None and not (is_number(fertility) and fertility > 0):
            raise invalid("csoftmax", "fertility", fertility, "a number above 0")
        self.bound = bound
        self.fertility = fertility

    def _weights(self, scores: Tensor, mask: Tensor | None, query: Tensor | None, earlier: Earlier | None) -> Tensor:
        if self.fertility is None:
            return _csoftmax(scores, mask, self.bound)
        if earlier is None or earlier.spent is None:
            raise AlignAttnError(
                "normalizer 'csoftmax': fertility needs a decoder that attends with one query at a time (--model "
                "seq2seq-lstm): give bound instead"
            )
        left = (self.fertility - earlier.spent.to(scores.dtype)).clamp(0, 1)
        return _csoftmax(scores, mask, left)
