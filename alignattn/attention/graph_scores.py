"""The scores of graph attention: both add a query and a key, and neither is their product."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alignattn.attention.edges import Edges
from alignattn.attention.scores import Score, of_sums

NEGATIVE_SLOPE = 0.2
"""Of the LeakyReLU, as both papers have it."""


def gat(query: Tensor, key: Tensor, negative_slope: float = NEGATIVE_SLOPE) -> Tensor:
    """Return LeakyReLU(Σ q + Σ k) (Veličković et al. 2018, eq. 3).

    The paper's a · [W h_i ‖ W h_j] is that of the queries a_l ⊙ W h and the keys a_r ⊙ W h, a_l and a_r its halves.

    Args:
        query: `[B, H, n, d]`.
        key: `[B, H, m, d]`.
        negative_slope: of the LeakyReLU.

    Returns:
        `[B, H, n, m]`.
    """
    return F.leaky_relu(query.sum(dim=-1)[..., :, None] + key.sum(dim=-1)[..., None, :], negative_slope)


def gatv2(query: Tensor, key: Tensor, vector: Tensor, negative_slope: float = NEGATIVE_SLOPE) -> Tensor:
    """Return a · LeakyReLU(q + k) (Brody, Alon & Yahav 2022, eq. 7), as `alignattn.attention.scores.of_sums`.

    Args:
        query: `[B, H, n, d]`, of a projection of its own.
        key: `[B, H, m, d]`, likewise.
        vector: a, `[H, d]`.
        negative_slope: of the LeakyReLU.

    Returns:
        `[B, H, n, m]`.
    """
    return of_sums(query, key, vector, partial(F.leaky_relu, negative_slope=negative_slope))


class GAT(Score):
    """`gat` as a module, without parameters: a's halves are in what makes the queries and keys.

    Args:
        head_dim: size d of a head's query and key.
        num_heads: heads H.
        negative_slope: of the LeakyReLU.
    """

    def __init__(self, head_dim: int, num_heads: int, *, negative_slope: float = NEGATIVE_SLOPE) -> None:
        super().__init__(head_dim, num_heads)
        self.negative_slope = negative_slope

    def forward(self, query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
        """Return the scores, as `Score.forward`; `scale` has no part in them."""
        return gat(query, key, self.negative_slope)

    def of_edges(self, query: Tensor, key: Tensor, edges: Edges, scale: float | None = None) -> Tensor:
        """Return the scores of edges, as `Score.of_edges`: a node's features are summed once for all its edges."""
        from_query = query.sum(dim=-1).index_select(0, edges.query)
        return F.leaky_relu(from_query + key.sum(dim=-1).index_select(0, edges.key), self.negative_slope)


class GATv2(Score):
    """`gatv2` as a module, with an a for each head; arguments as of `GAT`."""

    def __init__(self, head_dim: int, num_heads: int, *, negative_slope: float = NEGATIVE_SLOPE) -> None:
        super().__init__(head_dim, num_heads)
        self.negative_slope = negative_slope
        self.vector = nn.Parameter(torch.empty(num_heads, head_dim))
        nn.init.xavier_uniform_(self.vector)

    def forward(self, query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
        """Return the scores, as `Score.forward`; `scale` has no part in them."""
        return gatv2(query, key, self.vector.to(query.dtype), self.negative_slope)

    def of_edges(self, query: Tensor, key: Tensor, edges: Edges, scale: float | None = None) -> Tensor:
        """Return the scores of edges, as `Score.of_edges`."""
        hidden = F.leaky_relu(query.index_select(0, edges.query) + key.index_select(0, edges.key), self.negative_slope)
        return (hidden * self.vector.to(query.dtype)).sum(dim=-1)
