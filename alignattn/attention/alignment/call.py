"""One attention call, as an alignment is given it."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Call:
    """The queries and keys of one attention call, as its projections gave them.

    Attributes:
        query: `[B, n, H * d]`.
        key: `[B, n, H * d]`.
        heads: H.
        mask: `[B, n]` bool, True = a real token; None where all are.
        layer: the index of the layer that called.
    """

    query: Tensor
    key: Tensor
    heads: int
    mask: Tensor | None
    layer: int
