"""The sparse normalizers of the entmax family, based on the package `entmax`."""

import math
from collections.abc import Callable
from typing import Any

import entmax as entmax_package
import torch
from torch import Tensor, nn

from alignattn.attention.derivatives import once_differentiable
from alignattn.attention.masks import Earlier, Segments
from alignattn.attention.normalizers.base import Normalizer, invalid, is_number, normalize

SPARSEMAX_ALPHA = 2.0
ENTMAX15_ALPHA = 1.5
MIN_SCALED = -2.0
"""Lower bound of scores times α - 1, with a maximum of 0: below -1 the weight is 0; the rest is for rounding."""
MIN_ALPHA = 1.01
"""Nearer to 1 the weights, powers of 1 / (α - 1), lose precision in float32; the limit at 1 is the softmax."""
PARTIAL_SORT = 16
"""Number of largest scores of a row that are sorted first; the package sorts more if the support is larger."""
BISECTIONS = {torch.float32: 30, torch.float64: 55}
"""Bisections of an interval shorter than 1 that reach the precision of the type."""


class _BySorting(torch.autograd.Function):
    """The package's sparsemax (α = 2) or entmax15 of each row."""

    @staticmethod
    def forward(scores: Tensor, alpha: float) -> Tensor:
        function = entmax_package.sparsemax if alpha == SPARSEMAX_ALPHA else entmax_package.entmax15
        # The package takes the threshold at the size of the support. Of NaN that is 0, and no index.
        is_lost = scores.amax(dim=-1, keepdim=True).isnan()
        weights: Tensor = function(scores.masked_fill(is_lost, 0).contiguous(), dim=-1, k=PARTIAL_SORT)
        return weights.masked_fill(is_lost, torch.nan)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.alpha = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        def to_scores(ctx: Any, gradient: Tensor) -> Tensor:
            (weights,) = ctx.saved_tensors
            return _to_scores(weights, ctx.alpha, gradient)[0]

        # Sparsemax is piecewise linear: autograd's second derivative of this is correct, and involves no power of 0.
        is_linear = ctx.alpha == SPARSEMAX_ALPHA
        return (to_scores if is_linear else once_differentiable(to_scores))(ctx, grad_outputs[0]), None


class _ByBisection(torch.autograd.Function):
    """The package's entmax of each row for α `[..., 1]`."""

    @staticmethod
    def forward(scores: Tensor, alpha: Tensor) -> Tensor:
        weights: Tensor = entmax_package.entmax_bisect(
            scores.contiguous(), alpha, dim=-1, n_iter=BISECTIONS[scores.dtype]
        )
        return weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the gradients with respect to the scores and α (Correia, Niculae & Martins 2019, proposition 1)."""
        weights, alpha = ctx.saved_tensors
        to_scores, slope = _to_scores(weights, alpha, grad_outputs[0])
        if not ctx.needs_input_grad[1]:
            return to_scores, None
        share = slope / slope.sum(dim=-1, keepdim=True)
        surprise = torch.special.entr(weights)
        by_power = (weights - share) / (alpha - 1) ** 2
        by_entropy = (surprise - share * surprise.sum(dim=-1, keepdim=True)) / (alpha - 1)
        return to_scores, (grad_outputs[0] * (by_power + by_entropy)).sum_to_size(alpha.shape)


# The package's functions depend on the data, so a compiler leaves its graph here.
by_sorting: Callable[[Tensor, float], Tensor] = torch.compiler.disable(_BySorting.apply)
_by_bisection: Callable[[Tensor, Tensor], Tensor] = torch.compiler.disable(_ByBisection.apply)


def _to_scores(
    weights: Tensor, alpha: float | Tensor, gradient: Tensor, total: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gradient with respect to the scores, and 1 / g'' at the weights.

    Peters, Niculae & Martins 2019, eq. 14.

    Args:
        weights: the entmax of each row.
        alpha: α.
        gradient: the gradient with respect to the weights.
        total: returns the sum of each row, broadcastable to the weights; None = the sum over the last dimension.
    """
    slope = torch.where(weights > 0, weights ** (2 - alpha), 0)
    passed = gradient * slope
    sums = [rows.sum(dim=-1, keepdim=True) if total is None else total(rows) for rows in (passed, slope)]
    mean = sums[0] / sums[1]
    return passed.addcmul(mean, slope, value=-1), slope


def _weights_of_segments(scores: Tensor, segments: Segments, alpha: float) -> Tensor:
    """Return the entmax of each segment, [(α - 1) s - τ]₊^(1 / (α - 1)) with the τ that makes it sum to 1.

    Sparsemax: Martins & Astudillo 2016, algorithm 1. Entmax15: Peters, Niculae & Martins 2019, algorithm 2.

    Args:
        scores: `[E, H]`, with a maximum of 0 in each segment.
        segments: the segments of the rows.
        alpha: `SPARSEMAX_ALPHA` or `ENTMAX15_ALPHA`.

    Returns:
        `[E, H]`.
    """
    scaled = (scores * (alpha - 1)).clamp_min(MIN_SCALED)
    # Two stable sorts: by score, then by segment.
    falling = scaled.argsort(dim=0, descending=True, stable=True)
    order = falling.gather(0, segments.index[falling].argsort(dim=0, stable=True))
    # The cumulative sums run over all segments: in float64 the earlier segments can be subtracted precisely enough.
    ordered = scaled.gather(0, order).double()
    owner = segments.index[order]
    sizes = torch.bincount(segments.index, minlength=segments.count)
    starts = sizes.cumsum(0) - sizes
    first = starts[owner]
    rank = torch.arange(1, len(scores) + 1, device=scores.device)[:, None] - first

    def running(values: Tensor) -> Tensor:
        """Return the sum of each segment up to a position."""
        before = torch.cat([values.new_zeros(1, values.shape[1]), values.cumsum(dim=0)])
        return before[1:] - before.gather(0, first)

    # The τ of a support that ends at a position.
    if alpha == SPARSEMAX_ALPHA:
        threshold = (running(ordered) - 1) / rank
    else:
        mean = running(ordered) / rank
        spread = running(ordered.square()) - rank * mean.square()
        threshold = mean - ((1 - spread) / rank).clamp_min(0).sqrt()
    in_support = ordered >= threshold if alpha == ENTMAX15_ALPHA else ordered > threshold
    support = segments.sum(torch.empty_like(scores).scatter_(0, order, in_support.to(scores.dtype))).long()
    # A segment without rows needs no threshold.
    last = (starts[:, None] + support - 1).clamp(0, max(len(scores) - 1, 0))
    tau = threshold.gather(0, last) if len(scores) else threshold.new_zeros(last.shape)
    excess = (scaled.double() - segments.spread(tau)).clamp_min(0)
    return (excess ** (1 / (alpha - 1))).to(scores.dtype)


class _OfSegments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, segments: Segments, alpha: float) -> Tensor:
        weights = _weights_of_segments(scores, segments, alpha)
        ctx.segments, ctx.alpha = segments, alpha
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (weights,) = ctx.saved_tensors
        return _to_scores(weights, ctx.alpha, grad_outputs[0], ctx.segments.total)[0], None, None


def sparsemax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the Euclidean projection of each row onto the simplex, argmin ½‖p - s‖².

    Martins & Astudillo 2016, "From Softmax to Sparsemax", eq. 2.

    Arguments, shape of the result and errors as for `softmax`.
    """
    return normalize(lambda shifted, _: by_sorting(shifted, SPARSEMAX_ALPHA), scores, mask)


def entmax15(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the entmax of each row with α = 1.5, by sorting (Peters, Niculae & Martins 2019).

    Arguments, shape of the result and errors as for `softmax`.
    """
    return normalize(lambda shifted, _: by_sorting(shifted, ENTMAX15_ALPHA), scores, mask)


def entmax(scores: Tensor, alpha: float | Tensor = ENTMAX15_ALPHA, mask: Tensor | None = None) -> Tensor:
    """Return argmax over the simplex of p·s + Σ (p_j - p_j^α) / (α (α - 1)), by bisection unless α is 1.5 or 2.

    Peters, Niculae & Martins 2019, "Sparse Sequence-to-Sequence Models"; with the gradient for α from
    Correia, Niculae & Martins 2019, "Adaptively Sparse Transformers", proposition 1.

    Args:
        scores: `[..., m]`.
        alpha: α, at least `MIN_ALPHA`: a number, or a tensor broadcastable to the scores but of size 1 along m.
        mask: bool, broadcastable to the scores, True = may be attended to; None = every position may.

    Returns:
        `[..., m]`, see `normalize`.

    Raises:
        AlignAttnError: if α is too small, or the shapes do not fit.
    """
    if isinstance(alpha, Tensor):
        sizes = list(zip(reversed(alpha.shape), (1, *reversed(scores.shape[:-1])), strict=False))
        if alpha.dim() > scores.dim() or not all(size in (1, wanted) for size, wanted in sizes):
            raise invalid("entmax", "alpha's shape", list(alpha.shape), f"broadcastable to {[*scores.shape[:-1], 1]}")
    _check_alpha(alpha.min().item() if isinstance(alpha, Tensor) else alpha)
    return normalize(lambda shifted, _: _entmax(shifted, alpha), scores, mask)


def _check_alpha(alpha: object) -> None:
    if not is_number(alpha) or alpha < MIN_ALPHA:
        raise invalid("entmax", "alpha", alpha, f"a number of at least {MIN_ALPHA} (for 1, choose softmax)")


def _entmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    if isinstance(alpha, Tensor):
        return _by_bisection(scores, alpha.to(scores.dtype))
    if alpha in (SPARSEMAX_ALPHA, ENTMAX15_ALPHA):
        return by_sorting(scores, alpha)
    return _by_bisection(scores, scores.new_full((1,), alpha))


class Sparsemax(Normalizer):
    """`sparsemax` as a module."""

    def _weights(self, scores: Tensor, mask: Tensor | None, query: Tensor | None, earlier: Earlier | None) -> Tensor:
        return by_sorting(scores, SPARSEMAX_ALPHA)

    def _weights_of_edges(self, scores: Tensor, segments: Segments) -> Tensor:
        weights: Tensor = _OfSegments.apply(scores, segments, SPARSEMAX_ALPHA)  # type: ignore[no-untyped-call]
        return weights


class Entmax15(Normalizer):
    """`entmax15` as a module."""

    def _weights(self, scores: Tensor, mask: Tensor | None, query: Tensor | None, earlier: Earlier | None) -> Tensor:
        return by_sorting(scores, ENTMAX15_ALPHA)

    def _weights_of_edges(self, scores: Tensor, segments: Segments) -> Tensor:
        weights: Tensor = _OfSegments.apply(scores, segments, ENTMAX15_ALPHA)  # type: ignore[no-untyped-call]
        return weights


class Entmax(Normalizer):
    """`entmax` as a module; with learned α, adaptively sparse attention (Correia et al. 2019).

    Args:
        alpha: α, at least `MIN_ALPHA`; the initial value, below 2, if it is learned.
        learned: whether each head learns its own α = 1 + sigmoid(`alpha_logit`), clamped at `MIN_ALPHA`.

    Raises:
        AlignAttnError: if α is out of its range or `learned` is not a bool.
    """

    def __init__(self, head_dim: int, num_heads: int, *, alpha: float = ENTMAX15_ALPHA, learned: bool = False) -> None:
        super().__init__(head_dim, num_heads)
        _check_alpha(alpha)
        if not isinstance(learned, bool):
            raise invalid("entmax", "learned", learned, "one of True, False")
        if learned and alpha >= SPARSEMAX_ALPHA:
            raise invalid("entmax", "alpha", alpha, "between 1 and 2 if it is learned")
        self._fixed_alpha = alpha
        self.alpha_logit: nn.Parameter | None = None
        if learned:
            self.alpha_logit = nn.Parameter(torch.full((num_heads,), math.log((alpha - 1) / (2 - alpha))))

    @property
    def alpha(self) -> float | Tensor:
        """α: the given number, or `[H]` if it is learned."""
        if self.alpha_logit is None:
            return self._fixed_alpha
        logit = self.alpha_logit.to(torch.promote_types(self.alpha_logit.dtype, torch.float32))
        return (1 + logit.sigmoid()).clamp(min=MIN_ALPHA)

    def _weights(self, scores: Tensor, mask: Tensor | None, query: Tensor | None, earlier: Earlier | None) -> Tensor:
        alpha = self.alpha
        return _entmax(scores, alpha[:, None, None] if isinstance(alpha, Tensor) else alpha)
