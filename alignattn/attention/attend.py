"""Attention with slots for custom modules: call `attend` instead of scaled dot-product attention.

    class SelfAttention(nn.Module):
        def __init__(self, size: int, num_heads: int) -> None:
            super().__init__()
            self.num_heads = num_heads
            self.query_projection, self.key_projection = nn.Linear(size, size), nn.Linear(size, size)
            self.value_projection = nn.Linear(size, size)

        def forward(self, states: Tensor, mask: Tensor) -> Tensor:
            projections = (self.query_projection, self.key_projection, self.value_projection)
            heads = [project(states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for project in projections]
            return alignattn.attend(self, *heads, mask).transpose(1, 2).flatten(2)

    model = nn.ModuleDict({"attention": SelfAttention(64, 4), "output": nn.Linear(64, 2)})
    alignattn.attach(model, "aa-ct+qvi")

Without slots, such a module computes plain attention.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from alignattn.attention.masks import CrossMask, Edges, Mask, fused_attention, pairs_of
from alignattn.attention.normalizers.softmax import Softmax
from alignattn.attention.scores import ScaledDot, Score
from alignattn.attention.variant import attend_by, attention_with_weights
from alignattn.utils.errors import AlignAttnError

CHILD_NAME = "alignattn"
"""The attribute of an attention module that holds its slots, and of a model and its config that describes them."""


class AttentionLayer(Protocol):
    """The attributes or properties by which `alignattn.attach` recognises an attention module.

    Its forward projects queries and keys once, and calls `alignattn.attend(self, …)` with the heads. In self-attention
    both belong to the same tokens; otherwise the mask is a `CrossMask`.

    Attributes:
        num_heads: heads H.
        query_projection: projects to the queries of all heads, side by side, `[B, n, H · d]`; along edges `[n, H · d]`.
        key_projection: projects to the keys, likewise.

    A module whose score is not the scaled dot product holds it as the submodule `own_score`. A module that attends with
    one query per call, such as a step-by-step decoder, sets `has_one_query = True`. A module that attends causally sets
    `is_causal = True`: `attach` then refuses choices by which a token would see later ones. Without it, `attend`
    refuses the first causal mask.
    """

    num_heads: int
    query_projection: nn.Linear
    key_projection: nn.Linear


class SharedAttentionLayer(Protocol):
    """`AttentionLayer` for a module whose queries and keys come from one projection, as in graph attention.

    Attributes:
        num_heads: heads H.
        shared_projection: projects to features from which both are computed, `[B, n, H · d]`; along edges `[n, H · d]`.
    """

    num_heads: int
    shared_projection: nn.Linear

    def queries_and_keys(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys from the output of the projection, two different tensors of its shape."""


class PooledAttentionLayer(Protocol):
    """`AttentionLayer` for a module that pools tokens with learned queries, as in hierarchical attention.

    A learned query is not a token, so there is no distribution of queries to align. The mask is a `CrossMask` of the
    keys.

    Attributes:
        num_heads: heads H.
        pooling_query: the queries of all heads, side by side, `[H · d]`; None if the caller passes them, such as the
            state of a memory network.
        key_projection: projects to the keys, `[B, n, H · d]`.
    """

    num_heads: int
    pooling_query: nn.Parameter | None
    key_projection: nn.Linear


def declares(module: nn.Module, protocol: Any) -> bool:
    """Return whether a module has every attribute that a protocol names.

    Since Python 3.12, `isinstance` with a protocol bypasses `__getattr__`, through which a module returns its
    submodules.
    """
    named = {*protocol.__annotations__, *(name for name in vars(protocol) if not name.startswith("_"))}
    return all(hasattr(module, name) for name in named)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None = None,
    *,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Attend with the slots of `module`; without slots, with the softmax of its own score or the scaled dot product.

    Vaswani et al. 2017, eq. 1.

    Args:
        module: the calling attention module.
        query: `[B, H, n, d]`, from its `query_projection`; it may be rotated by position.
        key: `[B, H, n, d]`, from its `key_projection`, likewise; of other tokens `[B, H, m, d]`.
        value: shaped as the keys.
        mask: bool, `[B, n]`, True = a real token; or `[B, 1, n, n]`, True where a query may attend, with a diagonal
            that is True for real tokens; or the edges of a graph of n nodes, with B = 1; or a `CrossMask`, if queries
            and keys belong to different tokens. None = all tokens are real and attend everywhere. Each row needs a
            real token.
        dropout: dropout probability of the weights in training.
        scale: factor of the dot products; 1/sqrt(d) if None.

    Returns:
        The attended values, `[B, H, n, d]`.

    Raises:
        AlignAttnError: if the mask has none of these forms, or is causal and the value of the slots reads all queries.
    """
    dropout = dropout if module.training else 0.0
    return _attend(module, query, key, value, mask, scale=scale, dropout=dropout, wants_weights=False)[0]


def attend_with_weights(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None = None,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend as `attend` does, without dropout, and return the weights `[B, H, n, m]` as well."""
    attended, weights = _attend(module, query, key, value, mask, scale=scale, dropout=0.0, wants_weights=True)
    assert weights is not None
    return attended, weights


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None,
    *,
    scale: float | None,
    dropout: float,
    wants_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    batch, queries, keys = len(query), query.shape[-2], key.shape[-2]
    pairs = mask
    if isinstance(mask, Tensor):
        if queries != keys:
            raise AlignAttnError(
                f"{queries} queries and {keys} keys are different tokens, which need two masks: give an "
                "alignattn.CrossMask"
            )
        is_of_pairs = mask.shape == (batch, 1, queries, keys)
        if mask.is_floating_point() or not (is_of_pairs or mask.shape == (batch, keys)):
            raise AlignAttnError(
                f"a mask of {mask.dtype} {list(mask.shape)} is not a mask of attend: give bool, {[batch, keys]} or "
                f"{[batch, 1, queries, keys]}"
            )
        # An integer mask is meant as a bool mask; added to the scores, it would have another effect.
        pairs = mask.bool() if is_of_pairs else mask.bool()[:, None, None, :].expand(-1, 1, keys, -1)
    elif isinstance(mask, Edges) and (batch, queries) != (1, mask.nodes):
        raise AlignAttnError(
            f"edges of {mask.nodes} nodes are one graph, and the queries are {list(query.shape)}: give one row of "
            f"{mask.nodes} tokens"
        )
    elif isinstance(mask, CrossMask):
        for side, features in ((mask.query, query), (mask.key, key)):
            if side is not None and (side.dtype != torch.bool or side.shape != features.shape[::2]):
                raise AlignAttnError(
                    f"a CrossMask of {side.dtype} {list(side.shape)} is not a mask of attend: give bool, "
                    f"{list(features.shape[::2])}"
                )
    own_score: Score | None = getattr(module, "own_score", None)

    def plain(is_recorded: bool = False) -> tuple[Tensor, Tensor | None]:
        if own_score is None and not isinstance(pairs, Edges) and not wants_weights:
            if is_recorded:
                return attention_with_weights(query, key, value, pairs_of(pairs), scale=scale, dropout=dropout)
            return fused_attention(query, key, value, pairs_of(pairs), dropout, scale), None
        sizes = query.shape[-1], query.shape[1]
        score = own_score or ScaledDot(*sizes)
        return attend_by(score, Softmax(*sizes), query, key, value, pairs, scale=scale, dropout=dropout)

    slots: Any = getattr(module, CHILD_NAME, None)
    if slots is None:
        return plain()
    options = {"scale": scale, "dropout": dropout, "wants_weights": wants_weights, "own_score": own_score}
    result: tuple[Tensor, Tensor | None] = slots(query, key, value, pairs, plain, **options)
    return result
