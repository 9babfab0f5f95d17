"""Attention that pools a sequence with learned queries."""

import torch
from torch import Tensor, nn

from alignattn.attention.attend import attend
from alignattn.attention.masks import CrossMask


class QueryPooling(nn.Module):
    """Pools with a learned query for each head; a subclass computes the keys.

    It is a `PooledAttentionLayer`: `alignattn.attach` gives it a score, a normalizer and a value. A value interacts
    with the learned query alone.

    Args:
        query: the initial query, `[H · d]`.
        key_projection: the projection to the keys of all heads, side by side.
        num_heads: heads H.
    """

    def __init__(self, query: Tensor, key_projection: nn.Module, num_heads: int = 1) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.pooling_query = nn.Parameter(query)
        self.key_projection = key_projection

    def pool(self, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool with given keys.

        Args:
            keys: `[B, n, H · d]`.
            values: `[B, n, H · d]`, the vectors to average.
            mask: `[B, n]` bool, True = a real token; None = all are real. Each row needs a real one.

        Returns:
            `[B, H · d]`.
        """
        query = self.pooling_query.to(keys.dtype).expand(len(keys), 1, -1)
        heads = [part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in (query, keys, values)]
        return attend(self, heads[0], heads[1], heads[2], CrossMask(None, mask), scale=1.0).flatten(1)


class AttentionPooling(QueryPooling):
    """Pools tokens into one vector: r = Σ α_i x_i, α = softmax_i(q · tanh(W x_i + b)) (Yang et al. 2016, eqs. 5 to 7).

    With the value `qvi` it computes eqs. 1 to 6 of Wu et al. 2020.

    Args:
        dim: size of a token's vector and of the result.
    """

    key_projection: nn.Linear

    def __init__(self, dim: int) -> None:
        super().__init__(dim**-0.5 * torch.randn(dim), nn.Linear(dim, dim))

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool tokens `[B, n, dim]` to `[B, dim]`; `mask` as for `pool`."""
        return self.pool(torch.tanh(self.key_projection(tokens)), tokens, mask)


class FeaturePooling(QueryPooling):
    """Pools each feature with its own weights: s_k = Σ_i p_ki x_ki, p_k = softmax_i(f(x_i)_k).

    f(x) = q ∗ Wᵀ ELU(W₁ x + b₁), the multi-dimensional source2token attention of Shen et al. 2018, §3.1 and 3.2. Each
    feature is a head of size 1; q, initially 1, is the query for values and other scores. The bias after W has no
    effect on the weights and is omitted.

    Args:
        dim: size of a token's vector and of the result.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(torch.ones(dim), nn.Linear(dim, dim, bias=False), num_heads=dim)
        self.hidden = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool tokens `[B, n, dim]` to `[B, dim]`; `mask` as for `pool`."""
        return self.pool(self.key_projection(nn.functional.elu(self.hidden(tokens))), tokens, mask)
