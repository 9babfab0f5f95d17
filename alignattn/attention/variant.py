"""The module with the slots of one attention layer, and attention with them."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alignattn.attention.choices import NORMALIZERS, SCORES, VALUES
from alignattn.attention.config import PLAIN, AttentionConfig
from alignattn.attention.masks import CrossMask, Edges, Mask, attend_edges, fused_attention, pairs_of
from alignattn.attention.normalizers.base import Normalizer
from alignattn.attention.scores import DotProduct, Score
from alignattn.attention.values import Identity, Value


class AttentionVariant(nn.Module):
    """The slots of one attention layer's function, with their parameters in float32: O = N(S(Q, K)) · g(Q, V).

    Args:
        config: the choices.
        head_dim: size d of a head's query, key and value.
        num_heads: heads H.
        keeps_score: whether the layer has a score of its own, which is used unless the config chooses another.
        has_one_query: whether the layer attends with one query per call, as in pooling.
    """

    def __init__(
        self,
        config: AttentionConfig,
        head_dim: int,
        num_heads: int,
        *,
        keeps_score: bool = False,
        has_one_query: bool = False,
    ) -> None:
        super().__init__()
        # Adapters target modules named `value` and save modules named `score`, so the children have other names.
        self.score_slot: Score | None = None
        if not (keeps_score and config.score == PLAIN.score):
            self.score_slot = SCORES.load(config.score)(head_dim, num_heads, **config.score_options)
        build_normalizer = NORMALIZERS.load(config.normalizer)
        self.normalizer_slot: Normalizer = build_normalizer(head_dim, num_heads, **config.normalizer_options)
        value_class: type[Value] = VALUES.load(config.value)
        value_class = value_class.for_one_query() if has_one_query else value_class
        self.value_slot: Value = value_class(head_dim, num_heads, **config.value_options)
        self.uses_softmax = config.normalizer == "softmax"

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None = None,
        *,
        bias: Tensor | None = None,
        softcap: float | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
        wants_weights: bool = False,
        own_score: Score | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend with the choices of the slots.

        Args:
            query: `[B, H, n, d]`.
            key: `[B, H, n, d]`; of other tokens `[B, H, m, d]`.
            value: shaped as the keys.
            mask: `[B, 1, n, n]` bool, True where a query may attend; None = everywhere; or the edges of a graph, which
                is one sample; or a `CrossMask`, if queries and keys belong to different tokens.
            bias: added to the scores, such as relative positions, `[B, H, n, n]` in the queries' type.
            softcap: the bound c of scores c · tanh(score / c); None = no bound.
            scale: the model's factor of a dot product; 1/sqrt(d) if None.
            dropout: dropout probability of the weights.
            wants_weights: whether to return the weights; otherwise a fused kernel may be used.
            own_score: the score of the layer, if it keeps one.

        Returns:
            The attended values `[B, H, n, d]`, and the weights, `[B, H, n, m]` or along edges `[1, H, E]`; None if a
            fused kernel was used.
        """
        values_may_meet = None
        # The identity does not use the queries, and needs no mask.
        if mask is not None and not isinstance(self.value_slot, Identity):
            values_may_meet = values_mask(mask)
        values = self.value_slot(query, value, values_may_meet)
        score: Score | None = own_score if self.score_slot is None else self.score_slot
        assert score is not None
        is_fused = self.uses_softmax and isinstance(score, DotProduct) and softcap is None and not wants_weights
        if is_fused and not isinstance(mask, Edges):
            assert isinstance(score, DotProduct)
            mapped, factor = score.map_query(query), score.factor(scale)
            pairs = pairs_of(mask)
            pairs = pairs if bias is None else masked_bias(bias, pairs)
            return fused_attention(mapped, key, values, pairs, dropout, factor), None
        return attend_by(
            score,
            self.normalizer_slot,
            query,
            key,
            values,
            mask,
            bias=bias,
            softcap=softcap,
            scale=scale,
            dropout=dropout,
        )


def masked_bias(bias: Tensor, mask: Tensor | None) -> Tensor:
    """Apply a bool mask, broadcastable to the bias, to a bias `[B, H, n, n]`; None = no mask."""
    return bias if mask is None else bias.masked_fill(~mask, torch.finfo(bias.dtype).min)


def attend_by(
    score: Score,
    normalizer: Normalizer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return N(S(Q, K)) · V and the weights N(S(Q, K)); arguments and shapes as for `AttentionVariant.attend`."""
    if isinstance(mask, Edges):
        score_edges = partial(score.of_edges, scale=scale)
        return attend_edges(query, key, value, mask, score_edges, normalizer.of_edges, dropout)
    scores = score(query, key, scale)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = scores if bias is None else scores + bias
    earlier = mask.earlier if isinstance(mask, CrossMask) else None
    weights = normalizer(scores, pairs_of(mask), query, earlier).to(value.dtype)
    weights = F.dropout(weights, p=dropout, training=dropout > 0)
    return weights @ value, weights


def values_mask(mask: Mask) -> Tensor | Edges | None:
    """Return the mask of the queries that each value may attend to.

    It is the transpose of the mask, without the queries at padding. Values at padding have weight 0 afterwards; they
    may attend to every query, because some kernels return NaN for an empty row.

    Args:
        mask: `[B, 1, n, n]` bool, where a token may attend to itself if and only if it is real; or as for `attend`.

    Returns:
        `[B, 1, n, n]` bool, or edges; for a `CrossMask` `[B, 1, 1, n]`, or None if all queries are real.
    """
    if isinstance(mask, CrossMask):
        return mask.transposed.pairs
    if isinstance(mask, Edges):
        return mask.transposed
    real = mask.diagonal(dim1=-2, dim2=-1)
    return mask.transpose(-2, -1) & real[:, :, None] | ~real[:, :, :, None]


def attention_with_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attend and return the weights as well (Vaswani et al. 2017, eq. 1).

    The operations and their order are those of transformers' eager attention: the results are bitwise equal.

    Args:
        query: `[B, H, n, d]`.
        key: `[B, H, n, d]`.
        value: `[B, H, n, d]`.
        mask: bool, broadcastable to `[B, H, n, n]`, True where a query may attend; or float, added to the scores.
        scale: factor of the scores; 1/sqrt(d) if None.
        dropout: dropout probability of the weights.

    Returns:
        The attended values `[B, H, n, d]` and the weights `[B, H, n, n]`.
    """
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        if not mask.is_floating_point():
            mask = scores.new_zeros(mask.shape).masked_fill(~mask, torch.finfo(scores.dtype).min)
        scores = scores + mask
    weights = F.dropout(F.softmax(scores, dim=-1), p=dropout, training=dropout > 0)
    return weights @ value, weights
