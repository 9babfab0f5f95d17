"""Attention along the edges of a graph: what stands in place of a mask where few of all pairs of tokens may meet.

Nothing of n × n is formed. What belongs to edges is `[E, …]`, edge by edge; a segment is the edges of one query.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Segments:
    """Which rows of a tensor `[E, …]` belong together.

    Attributes:
        index: `[E]` int64, the segment of each row, from 0; in any order.
        count: segments there are; some may have no row.
    """

    index: Tensor
    count: int

    def sum(self, rows: Tensor) -> Tensor:
        """Return the sum of each segment, `[count, …]`; 0 where it has no row."""
        return rows.new_zeros(self.count, *rows.shape[1:]).scatter_add(0, self._expanded(rows), rows)

    def amax(self, rows: Tensor) -> Tensor:
        """Return the largest of each segment, `[count, …]`, without a gradient; 0 where it has no row."""
        empty, rows = rows.new_zeros(self.count, *rows.shape[1:]), rows.detach()
        return empty.scatter_reduce(0, self._expanded(rows), rows, "amax", include_self=False)

    def spread(self, values: Tensor) -> Tensor:
        """Return the value of its segment for each row, `[E, …]`, of `[count, …]`."""
        return values.index_select(0, self.index)

    def total(self, rows: Tensor) -> Tensor:
        """Return the sum of its segment for each row, `[E, …]`."""
        return self.spread(self.sum(rows))

    def _expanded(self, rows: Tensor) -> Tensor:
        return self.index.view(-1, *[1] * (rows.dim() - 1)).expand_as(rows)


@dataclass(frozen=True)
class Edges:
    """Which query may attend which key, in place of a mask: one pair an edge.

    Attributes:
        query: `[E]` int64, the node that attends.
        key: `[E]` int64, the node that it attends.
        nodes: n, of them; a node without an edge attends nothing, and what it attends to is 0.
    """

    query: Tensor
    key: Tensor
    nodes: int

    @property
    def by_query(self) -> Segments:
        """The edges of each query."""
        return Segments(self.query, self.nodes)

    @property
    def transposed(self) -> "Edges":
        """The edges the other way round."""
        return Edges(self.key, self.query, self.nodes)


EdgeScore = Callable[[Tensor, Tensor, Edges], Tensor]
"""Maps queries and keys `[n, H, d]` to the scores of the edges, `[E, H]`."""

EdgeNormalizer = Callable[[Tensor, Segments], Tensor]
"""Maps scores `[E, H]` to weights `[E, H]`, which of each segment sum to 1."""


def attend_edges(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edges: Edges,
    score: EdgeScore,
    normalizer: EdgeNormalizer,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attend along edges: O_i = Σ_j N(S(q_i, k_j)) v_j over the edges (i, j) of each query i.

    Args:
        query: `[1, H, n, d]`; a graph is one sample, and several are one that does not hang together.
        key: `[1, H, n, d]`.
        value: `[1, H, n, d]`.
        edges: of n nodes.
        score: of the edges.
        normalizer: over the edges of each query.
        dropout: probability with which a weight is dropped.

    Returns:
        The attended values, `[1, H, n, d]`, and the weights, `[1, H, E]`.
    """
    by_node = [features[0].transpose(0, 1) for features in (query, key, value)]
    weights = normalizer(score(by_node[0], by_node[1], edges), edges.by_query).to(value.dtype)
    weights = F.dropout(weights, p=dropout, training=dropout > 0)
    moved = weights[..., None] * by_node[2].index_select(0, edges.key)
    # Heads and features as one: of rows that lie in one piece the sum is several times faster.
    attended = edges.by_query.sum(moved.flatten(1)).view(edges.nodes, *moved.shape[1:])
    return attended.transpose(0, 1)[None], weights.transpose(0, 1)[None]


def pairwise(score: Callable[[Tensor, Tensor], Tensor], query: Tensor, key: Tensor, edges: Edges) -> Tensor:
    """Return the scores of edges, `[E, H]`, by a score of all pairs, to which each edge is a sample of one pair.

    Args:
        score: maps queries `[B, H, n, d]` and keys `[B, H, m, d]` to `[B, H, n, m]`.
        query: `[n, H, d]`.
        key: `[n, H, d]`.
        edges: of n nodes.
    """
    first, second = query.index_select(0, edges.query), key.index_select(0, edges.key)
    return score(first[:, :, None], second[:, :, None])[..., 0, 0]
