"""The score slot S(Q, K): how a query meets a key.

Each choice is a function on tensors and a module of the same name that holds its parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from alignattn.attention.edges import Edges, pairwise
from alignattn.attention.slot import Slot

ADDITIVE_CHUNK_ELEMENTS = 2**22
"""Largest tensor that additive scores form at once, in elements: 16 MiB in float32."""


def dot(query: Tensor, key: Tensor) -> Tensor:
    """Return q · k for queries `[B, H, n, d]` and keys `[B, H, m, d]` as `[B, H, n, m]` (Luong et al. 2015, eq. 8)."""
    return query @ key.transpose(-2, -1)


def scaled_dot(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """Return q · k times `scale`, 1/sqrt(d) if None, as `[B, H, n, m]` (Vaswani et al. 2017, eq. 1)."""
    # The queries are fewer numbers than the scores.
    return dot(query * (query.shape[-1] ** -0.5 if scale is None else scale), key)


def bilinear(query: Tensor, key: Tensor, weight: Tensor, scale: float | None = None) -> Tensor:
    """Return q W k times `scale`, 1/sqrt(d) if None (Luong et al. 2015, eq. 8, "general").

    Args:
        query: `[B, H, n, d]`.
        key: `[B, H, m, d]`.
        weight: `[H, d, d]`.
        scale: factor of the scores.

    Returns:
        `[B, H, n, m]`.
    """
    return scaled_dot(query @ weight, key, scale)


def additive(query: Tensor, key: Tensor, key_weight: Tensor, query_weight: Tensor, vector: Tensor) -> Tensor:
    """Return v · tanh(W₁ k + W₂ q) (Bahdanau et al. 2015, appendix A.1.2), as `of_sums`.

    Args:
        query: `[B, H, n, d]`.
        key: `[B, H, m, d]`.
        key_weight: W₁, `[H, a, d]`.
        query_weight: W₂, `[H, a, d]`.
        vector: v, `[H, a]`.

    Returns:
        `[B, H, n, m]`.
    """
    from_query = query @ query_weight.transpose(-2, -1)
    from_key = key @ key_weight.transpose(-2, -1)
    return of_sums(from_query, from_key, vector, torch.tanh)


def of_sums(from_query: Tensor, from_key: Tensor, vector: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Return v · f(q + k) for all pairs, `[B, H, n, m]`.

    Computed for a few queries at a time and again in backward, so that memory beyond the scores' own stays bounded.

    Args:
        from_query: q, `[B, H, n, a]`.
        from_key: k, `[B, H, m, a]`.
        vector: v, `[H, a]`.
        activation: f, element by element.
    """

    def of_chunk(chunk: Tensor, from_key: Tensor, vector: Tensor) -> Tensor:
        hidden = activation(chunk[:, :, :, None] + from_key[:, :, None])
        return torch.einsum("bhnma,ha->bhnm", hidden, vector)

    size = max(1, ADDITIVE_CHUNK_ELEMENTS // from_key.numel())
    parts = [
        checkpoint(of_chunk, chunk, from_key, vector, use_reentrant=False, preserve_rng_state=False)
        if torch.is_grad_enabled()
        else of_chunk(chunk, from_key, vector)
        for chunk in from_query.split(size, dim=2)
    ]
    return torch.cat(parts, dim=2)


class Score(Slot, ABC):
    """Maps queries and keys of one layer to scores; arguments as for `Slot`."""

    @abstractmethod
    def forward(self, query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
        """Return scores `[B, H, n, m]` of queries `[B, H, n, d]` and keys `[B, H, m, d]`.

        `scale` is the model's own factor of a dot product, 1/sqrt(d) if None.
        """

    def of_edges(self, query: Tensor, key: Tensor, edges: Edges, scale: float | None = None) -> Tensor:
        """Return the scores `[E, H]` of edges, of queries and keys `[n, H, d]`: those of `forward`, pair by pair."""
        return pairwise(lambda first, second: self(first, second, scale), query, key, edges)


class DotProduct(Score):
    """A score that is a dot product of mapped queries with the keys: fused attention kernels take it as it is."""

    def map_query(self, query: Tensor) -> Tensor:
        """Return what meets the keys, `[B, H, n, d]`."""
        return query

    def factor(self, scale: float | None) -> float:
        """Return the factor of the dot products, given the model's own."""
        return self.head_dim**-0.5 if scale is None else scale

    def forward(self, query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
        """Return the scores, as `Score.forward`."""
        return scaled_dot(self.map_query(query), key, self.factor(scale))


class ScaledDot(DotProduct):
    """q · k / sqrt(d), or with the model's own scale."""


class Dot(DotProduct):
    """q · k, whatever scale the model uses."""

    def factor(self, scale: float | None) -> float:
        """Return 1."""
        return 1.0


class Bilinear(DotProduct):
    """q W k with W for each head, at the model's scale; W starts as the identity: the scaled dot product."""

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__(head_dim, num_heads)
        self.weight = nn.Parameter(torch.eye(head_dim).repeat(num_heads, 1, 1))

    def map_query(self, query: Tensor) -> Tensor:
        """Return q W."""
        return query @ self.weight.to(query.dtype)


class Additive(Score):
    """v · tanh(W₁ k + W₂ q) with parameters for each head; its hidden size is that of the head."""

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__(head_dim, num_heads)
        self.key_weight = nn.Parameter(torch.empty(num_heads, head_dim, head_dim))
        self.query_weight = nn.Parameter(torch.empty(num_heads, head_dim, head_dim))
        self.vector = nn.Parameter(torch.empty(num_heads, head_dim))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=head_dim**-0.5)

    def forward(self, query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
        """Return the scores, as `Score.forward`; `scale` has no part in them."""
        weights = (self.key_weight, self.query_weight, self.vector)
        return additive(query, key, *(weight.to(query.dtype) for weight in weights))
