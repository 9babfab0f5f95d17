"""One attention call, as an alignment is given it."""

from dataclasses import dataclass

from torch import Tensor

Side = tuple[Tensor, Tensor | None]
"""The features of queries or of keys, and their mask."""


@dataclass(frozen=True)
class Call:
    """The queries and keys of one attention call, as its projections gave them.

    Attributes:
        query: `[B, n, H * d]`.
        key: `[B, m, H * d]`.
        heads: H.
        query_mask: `[B, n]` bool, True = a real token; None where all are.
        key_mask: `[B, m]`, likewise; the same tensor where queries and keys are of the same tokens.
        layer: the index of the layer that called.
    """

    query: Tensor
    key: Tensor
    heads: int
    query_mask: Tensor | None
    key_mask: Tensor | None
    layer: int

    @property
    def sides(self) -> tuple[Side, Side]:
        """The queries and their mask, the keys and theirs."""
        return (self.query, self.query_mask), (self.key, self.key_mask)

    @property
    def is_of_same_tokens(self) -> bool:
        """Whether as many queries as keys are real, at the same places."""
        return self.query.shape == self.key.shape and self.query_mask is self.key_mask

    @property
    def length(self) -> int:
        """The larger of n and m."""
        return self.query.shape[1] if self.is_of_same_tokens else max(self.query.shape[1], self.key.shape[1])
