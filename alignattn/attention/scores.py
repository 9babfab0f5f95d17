"""The score slot S(Q, K), how well a query matches a key, and the base of scores, normalizers and values."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from alignattn.attention.masks import Edges, pairwise

ADDITIVE_CHUNK_ELEMENTS = 2**22
"""Maximum size of a tensor that additive scores form at once, in elements: 16 MiB in float32."""

NEGATIVE_SLOPE = 0.2
"""Slope of the LeakyReLU of graph attention, as in both papers."""


class Slot(nn.Module):
    """A choice of a slot, with its parameters for one attention layer.

    Args:
        head_dim: size d of a head's query, key and value.
        num_heads: heads H.
    """

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.num_heads = num_heads

    def extra_repr(self) -> str:
        """Return the module's printed form."""
        return f"head_dim={self.head_dim}, num_heads={self.num_heads}"


def scaled_dot(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """Return q · k times `scale`, 1/sqrt(d) if None (Vaswani et al. 2017, eq. 1).

    Args:
        query: `[B, H, n, d]`.
        key: `[B, H, m, d]`.
        scale: factor of the scores.

    Returns:
        `[B, H, n, m]`.
    """
    # The queries have fewer elements than the scores.
    return query * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.mT


def of_sums(from_query: Tensor, from_key: Tensor, vector: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Return v · f(q + k) for all pairs, `[B, H, n, m]`.

    Computed for a few queries at a time and again in backward, so that memory beyond that of the scores stays bounded.

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

        `scale` is the model's own factor of a dot product, 1/sqrt(d) if None; other scores ignore it.
        """

    def of_edges(self, query: Tensor, key: Tensor, edges: Edges, scale: float | None = None) -> Tensor:
        """Return the scores `[E, H]` of edges between queries and keys `[n, H, d]`, equal to those of `forward`."""
        return pairwise(lambda first, second: self(first, second, scale), query, key, edges)


class DotProduct(Score):
    """A score that is a dot product of mapped queries with the keys, which fused attention kernels support."""

    def map_query(self, query: Tensor) -> Tensor:
        """Return the transformed queries, `[B, H, n, d]`."""
        return query

    def factor(self, scale: float | None) -> float:
        """Return the factor of the dot products, given the model's own."""
        return self.head_dim**-0.5 if scale is None else scale

    def forward(self, query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
        """Return the scores, as `Score.forward`."""
        return scaled_dot(self.map_query(query), key, self.factor(scale))


class ScaledDot(DotProduct):
    """q · k / sqrt(d), or with the model's own scale (Vaswani et al. 2017, eq. 1)."""


class Dot(DotProduct):
    """q · k, whatever scale the model uses (Luong et al. 2015, eq. 8)."""

    def factor(self, scale: float | None) -> float:
        """Return 1."""
        return 1.0


class Bilinear(DotProduct):
    """q W k at the model's scale (Luong et al. 2015, eq. 8, "general"), with W `[H, d, d]`.

    W starts as the identity: the scaled dot product.
    """

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__(head_dim, num_heads)
        self.weight = nn.Parameter(torch.eye(head_dim).repeat(num_heads, 1, 1))

    def map_query(self, query: Tensor) -> Tensor:
        """Return q W."""
        return query @ self.weight.to(query.dtype)


class Additive(Score):
    """v · tanh(W₁ k + W₂ q) (Bahdanau et al. 2015, appendix A.1.2), with W₁ and W₂ `[H, d, d]` and v `[H, d]`."""

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__(head_dim, num_heads)
        self.key_weight = nn.Parameter(torch.empty(num_heads, head_dim, head_dim))
        self.query_weight = nn.Parameter(torch.empty(num_heads, head_dim, head_dim))
        self.vector = nn.Parameter(torch.empty(num_heads, head_dim))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=head_dim**-0.5)

    def forward(self, query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
        """Return the scores, as `Score.forward`."""
        key_weight, query_weight, vector = (
            weight.to(query.dtype) for weight in (self.key_weight, self.query_weight, self.vector)
        )
        return of_sums(query @ query_weight.mT, key @ key_weight.mT, vector, torch.tanh)


class GAT(Score):
    """LeakyReLU(Σ q + Σ k) (Veličković et al. 2018, eq. 3).

    The score itself has no parameters: with queries a_l ⊙ W h and keys a_r ⊙ W h, where a_l and a_r are the halves of
    the paper's a, it is LeakyReLU(a · [W h_i ‖ W h_j]).

    Args:
        head_dim: size d of a head's query and key.
        num_heads: heads H.
        negative_slope: slope of the LeakyReLU for negative inputs.
    """

    def __init__(self, head_dim: int, num_heads: int, *, negative_slope: float = NEGATIVE_SLOPE) -> None:
        super().__init__(head_dim, num_heads)
        self.negative_slope = negative_slope

    def forward(self, query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
        """Return the scores, as `Score.forward`."""
        sums = query.sum(dim=-1)[..., :, None] + key.sum(dim=-1)[..., None, :]
        return F.leaky_relu(sums, self.negative_slope)

    def of_edges(self, query: Tensor, key: Tensor, edges: Edges, scale: float | None = None) -> Tensor:
        """Return the scores of edges, as `Score.of_edges`: a node's features are summed once for all its edges."""
        from_query = query.sum(dim=-1).index_select(0, edges.query)
        return F.leaky_relu(from_query + key.sum(dim=-1).index_select(0, edges.key), self.negative_slope)


class GATv2(Score):
    """a · LeakyReLU(q + k) (Brody, Alon & Yahav 2022, eq. 7), with a `[H, d]`; arguments as for `GAT`."""

    def __init__(self, head_dim: int, num_heads: int, *, negative_slope: float = NEGATIVE_SLOPE) -> None:
        super().__init__(head_dim, num_heads)
        self.negative_slope = negative_slope
        self.vector = nn.Parameter(torch.empty(num_heads, head_dim))
        nn.init.xavier_uniform_(self.vector)

    def forward(self, query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
        """Return the scores, as `Score.forward`."""
        activation = partial(F.leaky_relu, negative_slope=self.negative_slope)
        return of_sums(query, key, self.vector.to(query.dtype), activation)

    def of_edges(self, query: Tensor, key: Tensor, edges: Edges, scale: float | None = None) -> Tensor:
        """Return the scores of edges, as `Score.of_edges`."""
        hidden = F.leaky_relu(query.index_select(0, edges.query) + key.index_select(0, edges.key), self.negative_slope)
        return (hidden * self.vector.to(query.dtype)).sum(dim=-1)
