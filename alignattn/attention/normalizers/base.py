"""The base of the normalizers: signature, mask, precision and errors."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeGuard

import torch
from torch import Tensor

from alignattn.attention.choices import choices_with
from alignattn.attention.masks import Earlier, Segments
from alignattn.attention.scores import Slot
from alignattn.utils.errors import AlignAttnError

MASKED_SCORE = -1e9
"""The score of a masked position: far below any real score, with a finite square."""

Rule = Callable[[Tensor, Tensor | None], Tensor]
"""Maps scores `[..., m]`, and a bool mask of their shape or None, to weights `[..., m]`.

The largest score of each row is 0, because it was subtracted without its gradient: a rule must be shift-invariant, or
that gradient is missing.
"""


def normalize(rule: Rule, scores: Tensor, mask: Tensor | None) -> Tensor:
    """Apply a rule to the attendable positions of each row, in float32 or better.

    The largest attendable score of a row is subtracted first, as a constant.

    Args:
        rule: the rule; its result at masked positions and in fully masked rows is ignored.
        scores: `[..., m]`, finite where they may be attended to.
        mask: bool, broadcastable to the scores, True = may be attended to; None = every position may.

    Returns:
        Weights `[..., m]`, float64 for float64 scores and else float32, exactly zero where the mask is False.

    Raises:
        AlignAttnError: if the mask is not bool or does not fit the scores.
    """
    if mask is not None:
        sizes = zip(reversed(mask.shape), reversed(scores.shape), strict=False)
        fits = mask.dim() <= scores.dim() and all(size in (1, wanted) for size, wanted in sizes)
        if mask.dtype != torch.bool or not fits:
            raise AlignAttnError(
                f"normalizer: the mask is {mask.dtype} {list(mask.shape)}: it must be bool, broadcastable to the "
                f"scores {list(scores.shape)}, True = may be attended to"
            )
    with torch.autocast(scores.device.type, enabled=False):
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if mask is None:
            return rule(scores - scores.detach().amax(dim=-1, keepdim=True), None)
        mask = mask.expand_as(scores)
        is_masked = ~mask
        scores = scores.masked_fill(is_masked, MASKED_SCORE)
        weights = rule(scores.sub_(scores.detach().amax(dim=-1, keepdim=True)), mask)
        return weights.masked_fill(is_masked, 0)


class Normalizer(Slot, ABC):
    """The map N from the scores of one attention layer to its weights; arguments as for `Slot`.

    Masked positions have weight 0 exactly, rows sum to 1 (less in `local_predictive`), and fully masked rows are zero.
    The weights are computed in float32 (float64 for float64 scores) whatever the autocast type.
    """

    def forward(
        self,
        scores: Tensor,
        mask: Tensor | None = None,
        query: Tensor | None = None,
        earlier: Earlier | None = None,
    ) -> Tensor:
        """Return the weights.

        Args:
            scores: `[B, H, n, m]`, finite where they may be attended to.
            mask: bool, broadcastable to the scores, True = may be attended to; None = every position may.
            query: `[B, H, n, d]`, needed only by local-p, whose weights also depend on it.
            earlier: the queries before these, if queries and keys belong to different tokens; None for the same tokens.

        Returns:
            `[B, H, n, m]`, float64 for float64 scores and else float32.

        Raises:
            AlignAttnError: if the shapes do not fit, the mask is not bool, or a query is needed and not given.
        """
        if scores.dim() != 4 or scores.shape[1] != self.num_heads:
            raise AlignAttnError(
                f"normalizer: the scores {list(scores.shape)} must be [batch, {self.num_heads}, queries, keys]"
            )
        if query is not None and query.shape != (*scores.shape[:3], self.head_dim):
            raise AlignAttnError(
                f"normalizer: the queries {list(query.shape)} must be {[*scores.shape[:3], self.head_dim]}"
            )
        return normalize(lambda shifted, attendable: self._weights(shifted, attendable, query, earlier), scores, mask)

    def of_edges(self, scores: Tensor, segments: Segments) -> Tensor:
        """Return the weights of edges, normalised over the edges of each query.

        Args:
            scores: `[E, H]`, finite.
            segments: the edges of each query.

        Returns:
            `[E, H]`, float64 for float64 scores and else float32.

        Raises:
            AlignAttnError: if this normalizer has no form for edges.
        """
        with torch.autocast(scores.device.type, enabled=False):
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
            return self._weights_of_edges(scores - segments.spread(segments.amax(scores)), segments)

    def _weights_of_edges(self, scores: Tensor, segments: Segments) -> Tensor:
        """Return the weights of scores `[E, H]` with a maximum of 0 in each segment."""
        raise AlignAttnError(
            f"normalizer {type(self).__name__} does not support the edges of a graph: choose one of "
            f"{', '.join(choices_with('normalizer', 'has_edge_form'))}"
        )

    @abstractmethod
    def _weights(self, scores: Tensor, mask: Tensor | None, query: Tensor | None, earlier: Earlier | None) -> Tensor:
        """Return the weights of scores `[B, H, n, m]`, as a `Rule`; the other arguments are those of `forward`."""


def is_number(value: object) -> TypeGuard[float]:
    """Return whether an option is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def invalid(normalizer: str, option: str, value: object, requirement: str) -> AlignAttnError:
    """Return the error for an option's value that breaks a requirement."""
    return AlignAttnError(f"normalizer {normalizer!r}: {option}={value!r} must be {requirement}")
