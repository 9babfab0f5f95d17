"""Attention that pools a sequence by a learned query."""

import torch
from torch import Tensor, nn

from alignattn.attention.attend import attend
from alignattn.attention.cross_mask import CrossMask


class AttentionPooling(nn.Module):
    """Pools tokens into one vector: r = Σ α_i x_i, α = softmax_i(q · tanh(W x_i + b)).

    Yang et al. 2016, eqs. 5 to 7. A `PooledAttentionLayer`: `alignattn.attach` gives it a score, a normalizer and a
    value. With the values of Wu et al. 2020 it is their eqs. 1 to 6, for of one query the Q̂ that a value meets is q.

    Args:
        dim: size of a token's vector and of the result.
    """

    num_heads = 1

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.pooling_query = nn.Parameter(dim**-0.5 * torch.randn(dim))
        self.key_projection = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool tokens.

        Args:
            tokens: `[B, n, dim]`.
            mask: `[B, n]` bool, True = a real token; None = all are real. Each row needs a real one.

        Returns:
            `[B, dim]`.
        """
        query = self.pooling_query.to(tokens.dtype).expand(len(tokens), 1, 1, -1)
        key = torch.tanh(self.key_projection(tokens))[:, None]
        return attend(self, query, key, tokens[:, None], CrossMask(None, mask), scale=1.0)[:, 0, 0]
