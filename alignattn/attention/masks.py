"""Masks other than a tensor of pairs: edges of a graph, queries and keys of different tokens, packed batches."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class Segments:
    """A partition of the rows of a tensor `[E, …]` into segments.

    Attributes:
        index: `[E]` int64, the segment of each row, from 0; in any order.
        count: number of segments; some may have no row.
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
        """Return for each row the value of its segment, `[E, …]`, given `[count, …]`."""
        return values.index_select(0, self.index)

    def total(self, rows: Tensor) -> Tensor:
        """Return for each row the sum of its segment, `[E, …]`."""
        return self.spread(self.sum(rows))

    def _expanded(self, rows: Tensor) -> Tensor:
        return self.index.view(-1, *[1] * (rows.dim() - 1)).expand_as(rows)


@dataclass(frozen=True)
class Edges:
    """The edges of a graph, along which queries attend to keys; used instead of a mask.

    Attributes:
        query: `[E]` int64, the node that attends.
        key: `[E]` int64, the node that it attends to.
        nodes: number n of nodes; a node without an edge attends to nothing, and its output is 0.
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
        """The reversed edges."""
        return Edges(self.key, self.query, self.nodes)


@dataclass(frozen=True)
class Earlier:
    """The earlier queries of a decoder that attends with one query at a time.

    Attributes:
        queries: their number, which is the position of the first query of the call.
        spent: `[B, H, 1, m]`, the sum of their weights for each key, -inf for a key without a budget; None if it was
            not recorded.
    """

    queries: int = 0
    spent: Tensor | None = None


@dataclass(frozen=True)
class CrossMask:
    """The masks of queries and keys that belong to different tokens, such as image regions and words of a question.

    Attributes:
        query: `[B, n]` bool, True = a real token; None = all are.
        key: `[B, m]` bool, likewise.
        earlier: the queries before these.
    """

    query: Tensor | None
    key: Tensor | None
    earlier: Earlier = Earlier()

    @property
    def pairs(self) -> Tensor | None:
        """`[B, 1, 1, m]` bool, True at real keys, which all queries may attend to, even those at padding."""
        return None if self.key is None else self.key[:, None, None, :]

    @property
    def transposed(self) -> "CrossMask":
        """The masks with queries and keys swapped."""
        return CrossMask(self.key, self.query)


Mask = Tensor | Edges | CrossMask
"""A mask of pairs, the edges of a graph, or the masks of both sides."""


def pairs_of(mask: Tensor | CrossMask | None) -> Tensor | None:
    """Return the mask of pairs, `[B, 1, n or 1, m]`, or None."""
    return mask.pairs if isinstance(mask, CrossMask) else mask


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float = 0.0, scale: float | None = None
) -> Tensor:
    """Return PyTorch's `scaled_dot_product_attention`, which forms no weights, also on a GPU.

    `mask` is bool, or is added to the scores. On a GPU the kernels refuse a mask whose last dimension has another
    stride than 1, such as a transposed one, and PyTorch silently forms the weights of all pairs in float32.
    """
    if mask is not None and mask.stride(-1) != 1:
        mask = mask.contiguous()
    return F.scaled_dot_product_attention(query, key, value, mask, dropout, scale=scale)


def attend_edges(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edges: Edges,
    score: Callable[[Tensor, Tensor, Edges], Tensor],
    normalizer: Callable[[Tensor, Segments], Tensor],
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attend along edges: O_i = Σ_j N(S(q_i, k_j)) v_j over the edges (i, j) of each query i.

    Args:
        query: `[1, H, n, d]`; several graphs are one sample with separate components.
        key: `[1, H, n, d]`.
        value: `[1, H, n, d]`.
        edges: the edges between the n nodes.
        score: maps queries and keys `[n, H, d]` to the scores of the edges, `[E, H]`.
        normalizer: maps scores `[E, H]` to weights `[E, H]` that sum to 1 over the edges of each query.
        dropout: dropout probability of the weights.

    Returns:
        The attended values, `[1, H, n, d]`, and the weights, `[1, H, E]`.
    """
    by_node = [features[0].transpose(0, 1) for features in (query, key, value)]
    weights = normalizer(score(by_node[0], by_node[1], edges), edges.by_query).to(value.dtype)
    weights = F.dropout(weights, p=dropout, training=dropout > 0)
    weighted = weights[..., None] * by_node[2].index_select(0, edges.key)
    # Heads and features are joined: the sum is several times faster for contiguous rows.
    attended = edges.by_query.sum(weighted.flatten(1)).view(edges.nodes, *weighted.shape[1:])
    return attended.transpose(0, 1)[None], weights.transpose(0, 1)[None]


def pairwise(score: Callable[[Tensor, Tensor], Tensor], query: Tensor, key: Tensor, edges: Edges) -> Tensor:
    """Return the scores of edges, `[E, H]`, from a score of all pairs: each edge is passed as a sample of one pair.

    Args:
        score: maps queries `[B, H, n, d]` and keys `[B, H, m, d]` to `[B, H, n, m]`.
        query: `[n, H, d]`.
        key: `[n, H, d]`.
        edges: the edges between the n nodes.
    """
    first, second = query.index_select(0, edges.query), key.index_select(0, edges.key)
    return score(first[:, :, None], second[:, :, None])[..., 0, 0]


@dataclass(frozen=True)
class Packing:
    """The mapping between the T tokens of a packed row and a padded batch of its B samples.

    Attention and alignment treat the samples of a packed row as in a padded batch: they do not interact.

    Attributes:
        tokens: `[B, n]` int64, n the length of the longest sample: the index of each token in the row; 0 at padding.
        is_real: `[B, n]` bool.
        places: `[T]` int64, the index of each token of the row in the flattened batch.
    """

    tokens: Tensor
    is_real: Tensor
    places: Tensor

    @classmethod
    def of(cls, bounds: Tensor) -> "Packing":
        """Build it from the cumulative lengths `[B + 1]`, from 0 to T; no sample is empty."""
        bounds = bounds.long()
        lengths = bounds.diff()
        offsets = torch.arange(int(lengths.max()), device=bounds.device)
        is_real = offsets < lengths[:, None]
        tokens = (bounds[:-1, None] + offsets).where(is_real, 0)
        return cls(tokens, is_real, is_real.flatten().nonzero()[:, 0])

    def padded(self, row: Tensor) -> Tensor:
        """Return a row `[1, T, …]` as a padded batch `[B, n, …]`."""
        return row[0].index_select(0, self.tokens.flatten()).unflatten(0, self.tokens.shape)

    def packed(self, batch: Tensor) -> Tensor:
        """Return a padded batch `[B, n, …]` as a row `[1, T, …]`."""
        return batch.flatten(0, 1).index_select(0, self.places)[None]

    def pairs(self, mask: Tensor | None) -> Tensor:
        """Return the mask of pairs of the padded batch, `[B, 1, n, n]` bool.

        Args:
            mask: the row's mask, `[1, 1, T, T]` bool, such as a sliding window; None = all pairs within a sample.
        """
        may = self.is_real[:, None, None, :].expand(-1, 1, self.is_real.shape[1], -1)
        if mask is None:
            return may
        return may & mask[0, 0][self.tokens[:, :, None], self.tokens[:, None, :]][:, None]


_newest: tuple[weakref.ref[Tensor], weakref.ref[Tensor], tuple[int, int, int], Packing] | None = None
"""The bounds of the last row, their versions and its length, and its packing, which the layers of a model share: the
bounds are read only once."""


# The packing depends on the values of the bounds, which a compiler does not know.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def packing_of(bounds: Tensor, of_keys: Tensor | None, length: int) -> Packing:
    """Return the packing of a row.

    Args:
        bounds: the cumulative lengths of its samples, `[B + 1]`.
        of_keys: the cumulative lengths for the keys; None = `bounds`.
        length: number T of tokens of the row.

    Raises:
        AlignAttnError: if the bounds do not increase from 0 to T, or those of the keys differ.
    """
    global _newest
    of_keys = bounds if of_keys is None else of_keys
    if _newest is not None and _newest[0]() is bounds and _newest[1]() is of_keys:
        # A tensor that was written in place has another version; one of inference mode has none, and is not kept here.
        *_, kept, packing = _newest
        if kept == (bounds._version, of_keys._version, length):
            return packing
    if of_keys is not bounds and not torch.equal(of_keys, bounds):
        raise AlignAttnError(
            f"cu_seq_lens_k is {of_keys.tolist()} and cu_seq_lens_q {bounds.tolist()}: slots are for self-attention"
        )
    rises = bounds.dim() == 1 and len(bounds) > 1 and bool((bounds.diff() > 0).all())
    if not rises or int(bounds[0]) != 0 or int(bounds[-1]) != length:
        raise AlignAttnError(
            f"cu_seq_lens_q of a packed batch must increase from 0 to the {length} tokens of its row, but is "
            f"{bounds.tolist()}"
        )
    packing = Packing.of(bounds)
    # Tensors of inference mode do not count writes, so nothing is cached for them.
    if not (bounds.is_inference() or of_keys.is_inference()):
        _newest = weakref.ref(bounds), weakref.ref(of_keys), (bounds._version, of_keys._version, length), packing
    return packing


def sample_starts(position_ids: Tensor, is_real: Tensor | None = None) -> Tensor:
    """Return where a sample may begin, `[B, n]` bool: at the first real token of a row, and where positions restart.

    Args:
        position_ids: `[B or 1, n]`; they restart at a real token whose position is not one after that of the real token
            before it. Positions of padding mean nothing.
        is_real: `[B, n]` bool, False at padding; None = all tokens are real.
    """
    if is_real is None:
        starts = torch.ones_like(position_ids, dtype=torch.bool)
        starts[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
        return starts
    before, position_ids = previous_real(is_real), position_ids.expand(is_real.shape)
    return is_real & ((before < 0) | (position_ids != position_ids.gather(1, before.clamp(min=0)) + 1))


def previous_real(is_real: Tensor) -> Tensor:
    """Return the place of the last real token before each token, `[B, n]` int64; -1 where there is none."""
    places = torch.arange(is_real.shape[1], device=is_real.device).where(is_real, -1).cummax(dim=1).values
    return F.pad(places[:, :-1], (1, 0), value=-1)


# The packing depends on values, which a compiler does not know.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def packing_of_starts(starts: Tensor) -> Packing | None:
    """Return the packing of token rows in which samples begin at the given tokens.

    Args:
        starts: `[B, n]` bool.

    Returns:
        The packing of the B · n tokens of all rows, row after row; None if each row is at most one sample. Padding
        before the first sample is in none, and other padding ends the sample before it.
    """
    if (starts.sum(dim=1) <= 1).all():
        return None
    bounds = starts.flatten().nonzero()[:, 0]
    return Packing.of(torch.cat([bounds, bounds.new_tensor([starts.numel()])]))
