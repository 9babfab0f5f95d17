"""Local attention: a window around the query's own position, or around one predicted from the query."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alignattn.attention.masks import Earlier
from alignattn.attention.normalizers.base import Normalizer, invalid, normalize
from alignattn.utils.errors import AlignAttnError

Kind = Literal["monotonic", "predictive"]

DEFAULT_WINDOW = 10
"""Luong et al. 2015, section 4.1: D = 10."""


def local_monotonic(scores: Tensor, window: int = DEFAULT_WINDOW, mask: Tensor | None = None) -> Tensor:
    """Return the softmax over the keys at most D positions from the query's own.

    Luong, Pham & Manning 2015, "Effective Approaches to Attention-based Neural Machine Translation", local-m.
    Positions count attendable keys only, so that padding has no effect. With equally many queries and keys, query t has
    the position of key t; otherwise position t.

    Args:
        scores: `[..., n, m]`.
        window: D, 1 or more.
        mask: bool, broadcastable to the scores, True = may be attended to; None = every position may.

    Returns:
        `[..., n, m]`, see `normalize`; a row with no attendable key in its window is zero.

    Raises:
        AlignAttnError: if the window is not a whole number of 1 or more, or the shapes do not fit.
    """
    _check_window(window)
    return normalize(lambda shifted, attendable: _monotonic(shifted, attendable, window), scores, mask)


def local_predictive(
    scores: Tensor, centre: Tensor, window: int = DEFAULT_WINDOW, mask: Tensor | None = None
) -> Tensor:
    """Return the softmax over the keys at most D from a centre, times exp(-(s - p)² / (2σ²)) with σ = D / 2.

    Luong, Pham & Manning 2015, local-p, eq. 10. The Gaussian is not renormalised: rows sum to less than 1. The gradient
    with respect to the centre is that of the Gaussian; the set of keys in the window is constant almost everywhere.

    Args:
        scores: `[..., m]`.
        centre: p, broadcastable to `[...]`, in positions of attendable keys, counted from 0.
        window: D, 1 or more.
        mask: bool, broadcastable to the scores, True = may be attended to; None = every position may.

    Returns:
        `[..., m]`, see `normalize`; a row with no attendable key in its window is zero.

    Raises:
        AlignAttnError: if the window is not a whole number of 1 or more, or the shapes do not fit.
    """
    _check_window(window)
    return normalize(lambda shifted, attendable: _predictive(shifted, attendable, centre, window), scores, mask)


def _check_window(window: object) -> None:
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        raise invalid("local", "window", window, "a whole number of 1 or more")


def _positions(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the number of attendable keys before each key, broadcastable to the scores."""
    if mask is None:
        return torch.arange(scores.shape[-1], device=scores.device, dtype=scores.dtype)
    return (mask.cumsum(dim=-1) - mask.long()).to(scores.dtype)


def _monotonic(scores: Tensor, mask: Tensor | None, window: int, earlier: Earlier | None = None) -> Tensor:
    queries, keys = scores.shape[-2:]
    position = _positions(scores, mask).expand_as(scores)
    if earlier is None and queries == keys:
        own = position.diagonal(dim1=-2, dim2=-1)
    else:
        own = torch.arange(queries, device=scores.device, dtype=scores.dtype)
        own = own if earlier is None else own + earlier.queries
    return _windowed_softmax(scores, mask, (position - own[..., None]).abs() <= window)


def _predictive(scores: Tensor, mask: Tensor | None, centre: Tensor, window: int) -> Tensor:
    distance = _positions(scores, mask) - centre.to(scores.dtype)[..., None]
    gaussian = torch.exp(-2 * (distance / window).square())
    return _windowed_softmax(scores, mask, distance.detach().abs() <= window) * gaussian


def _windowed_softmax(scores: Tensor, mask: Tensor | None, in_window: Tensor) -> Tensor:
    return normalize(
        lambda shifted, _: F.softmax(shifted, dim=-1), scores, in_window if mask is None else in_window & mask
    )


class Local(Normalizer):
    """`local_monotonic`, or `local_predictive` around a centre predicted from the query, as a module.

    The centre is p_t = S · sigmoid(v_pᵀ tanh(W_p h_t)) (Luong et al. 2015, eq. 9), with S the number of keys that the
    query may attend and h_t the query; each head has its own W_p and v_p.

    Args:
        kind: `monotonic` (local-m) or `predictive` (local-p).
        window: D, 1 or more.

    Raises:
        AlignAttnError: if the kind is neither or the window is not a whole number of 1 or more.
    """

    def __init__(
        self, head_dim: int, num_heads: int, *, kind: Kind = "monotonic", window: int = DEFAULT_WINDOW
    ) -> None:
        super().__init__(head_dim, num_heads)
        if kind not in get_args(Kind):
            raise invalid("local", "kind", kind, f"one of {', '.join(get_args(Kind))}")
        _check_window(window)
        self.kind = kind
        self.window = window
        if kind == "predictive":
            bound = head_dim**-0.5  # as in nn.Linear
            self.position_projection = nn.Parameter(torch.empty(num_heads, head_dim, head_dim).uniform_(-bound, bound))
            self.position_vector = nn.Parameter(torch.empty(num_heads, head_dim).uniform_(-bound, bound))

    def _weights(self, scores: Tensor, mask: Tensor | None, query: Tensor | None, earlier: Earlier | None) -> Tensor:
        if self.kind == "monotonic":
            return _monotonic(scores, mask, self.window, earlier)
        if query is None:
            raise AlignAttnError("normalizer 'local': kind='predictive' needs the queries: pass query=")
        projection, vector = self.position_projection.to(scores.dtype), self.position_vector.to(scores.dtype)
        hidden = torch.einsum("bhnd,hed->bhne", query.to(scores.dtype), projection).tanh()
        share = torch.einsum("bhne,he->bhn", hidden, vector).sigmoid()
        centre = share * (scores.shape[-1] if mask is None else mask.sum(dim=-1))
        return _predictive(scores, mask, centre, self.window)
