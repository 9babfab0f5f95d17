"""Additive attention that pools a sequence with a learned query, plain or with query-value interaction."""

import torch
from torch import Tensor, nn

from alignattn.attention.choices import VALUES
from alignattn.attention.values import Value


class AdditiveAttentionPooling(nn.Module):
    """Pools tokens into one vector: r = Σ α_i g(q, x_i), α = softmax_i(q · tanh(W x_i + b)).

    Wu et al. 2020, eqs. 1 to 6 (the attention of Yang et al. 2016, eqs. 5 to 7). The one query q is learned, so the Q̂
    that a value meets is q itself.

    Args:
        dim: size of a token's vector and of the result.
        value: `identity` for plain attention, or `interaction`, `sum`, `qvi`.
        **value_options: keyword arguments of the value's class, such as `init="paper"`.

    Raises:
        AlignAttnError: if `value` is unknown.
    """

    def __init__(self, dim: int, value: str = "qvi", **value_options: str) -> None:
        super().__init__()
        self.query = nn.Parameter(dim**-0.5 * torch.randn(dim))
        self.projection = nn.Linear(dim, dim)
        self.value: Value = VALUES.load(value)(dim, 1, **value_options)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Pool tokens.

        Args:
            tokens: `[B, n, dim]`.
            mask: `[B, n]` bool, True = a real token; None = all are real.

        Returns:
            The pooled vectors `[B, dim]` and the weights `[B, n]`; both 0 for a sequence without a real token.
        """
        scores = torch.tanh(self.projection(tokens)) @ self.query
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = scores.softmax(dim=-1)
        if mask is not None:
            weights = weights * mask
        query = self.query.to(tokens.dtype).expand(len(tokens), 1, 1, -1)
        values = self.value(query, tokens[:, None])[:, 0]
        return (weights[:, None] @ values)[:, 0], weights
