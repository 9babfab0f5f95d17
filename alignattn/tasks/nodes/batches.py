"""Batches of nodes: the whole graph, or a sample of it around some nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from alignattn.tasks.nodes.graph import Graph

ALL = -1
"""Sample all neighbours of a node."""


class NodeBatches:
    """A collator of rows that are nodes of one graph.

    Args:
        graph: the graph of the rows.
        fan_out: the number of neighbours of a node to sample at each step away from the rows' nodes, one step per layer
            of the model (Hamilton, Ying & Leskovec 2017, algorithm 2); -1 for all. None for the whole graph.
    """

    def __init__(self, graph: Graph, fan_out: Sequence[int] | None = None) -> None:
        self.graph = graph
        self.fan_out = fan_out
        first, self._keys = graph.edges
        degrees = torch.bincount(first, minlength=graph.num_nodes)
        self._starts = degrees.cumsum(0) - degrees
        self._degrees = degrees

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return `labels` `[B]`, `node` `[B]`, `features` `[n, …]` and `edges` `[2, E]` for rows `node`, `label`."""
        nodes = torch.tensor([row["node"] for row in rows])
        # First, because transformers takes the size of a batch from its first tensor.
        labels = {"labels": torch.tensor([row["label"] for row in rows])} if "label" in rows[0] else {}
        if self.fan_out is None:
            return {**labels, "node": nodes, "features": self.graph.features, "edges": self.graph.edges}
        reached, edges = self._around(nodes)
        places = torch.empty(self.graph.num_nodes, dtype=torch.int64)
        places[reached] = torch.arange(len(reached))
        return {
            **labels,
            "node": places[nodes],
            "features": _rows_of(self.graph.features, reached),
            "edges": places[edges],
        }

    def _around(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the reached nodes and the sampled edges, `[2, E]`; the edges of each node are sampled once."""
        assert self.fan_out is not None
        is_reached = torch.zeros(self.graph.num_nodes, dtype=torch.bool)
        frontier = nodes.unique()
        is_reached[frontier] = True
        parts = []
        for most in self.fan_out:
            edges = self._sampled(frontier, most)
            parts.append(edges)
            found = edges[1].unique()
            frontier = found[~is_reached[found]]
            is_reached[frontier] = True
        return is_reached.nonzero().squeeze(1), torch.cat(parts, dim=1)

    def _sampled(self, nodes: Tensor, most: int) -> Tensor:
        """Return edges of nodes, `[2, E]`: to at most `most` neighbours each, and to themselves."""
        counts = self._degrees[nodes]
        owner, offsets = _in_turn(counts)
        edges = torch.stack([nodes[owner], self._keys[self._starts[nodes][owner] + offsets]])
        if most == ALL:
            return edges
        # Sorted by node and random rank, the node itself first.
        ranks = torch.rand(len(owner)).masked_fill(edges[0] == edges[1], -1)
        order = ranks.argsort()
        order = order[owner[order].argsort(stable=True)]
        return edges[:, order[offsets <= most]]


def _in_turn(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the owner of each of `counts.sum()` items, sorted by owner, and its number among the owner's."""
    owner = torch.arange(len(counts)).repeat_interleave(counts)
    return owner, torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner]


def _rows_of(features: Tensor, nodes: Tensor) -> Tensor:
    if features.layout == torch.strided:
        return features.index_select(0, nodes)
    starts, counts = features.crow_indices()[nodes], features.crow_indices().diff()[nodes]
    owner, offsets = _in_turn(counts)
    places = starts[owner] + offsets
    return torch.sparse_csr_tensor(
        torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        features.col_indices()[places],
        features.values()[places],
        (len(nodes), features.shape[1]),
        check_invariants=False,
    )
