"""Which tokens are real where queries and keys are of other tokens: what stands in place of one mask."""

from dataclasses import dataclass

from torch import Tensor

from alignattn.attention.edges import Edges


@dataclass(frozen=True)
class Earlier:
    """What came before the queries of a call, where a decoder attends a query at a time.

    Attributes:
        queries: how many there were; the call's own stand at the positions that follow.
        spent: `[B, H, 1, m]`, the sum of the weights that they gave each key, -inf for one without a budget;
            None where it was not kept.
    """

    queries: int = 0
    spent: Tensor | None = None


NOTHING_EARLIER = Earlier()


@dataclass(frozen=True)
class CrossMask:
    """The masks of both sides of attention across, as of an image's regions to a question's words.

    Attributes:
        query: `[B, n]` bool, True = a real token; None = all are.
        key: `[B, m]`, likewise, of the tokens that are attended.
        earlier: what came before these queries.
    """

    query: Tensor | None
    key: Tensor | None
    earlier: Earlier = NOTHING_EARLIER

    @property
    def pairs(self) -> Tensor | None:
        """`[B, 1, 1, m]` bool, True where a query may attend: at real keys; queries at padding do, too."""
        return None if self.key is None else self.key[:, None, None, :]

    @property
    def transposed(self) -> "CrossMask":
        """The same of keys that attend queries."""
        return CrossMask(self.key, self.query)


Mask = Tensor | Edges | CrossMask
"""What tells which query may attend which key: of pairs, the edges of a graph, or of other tokens."""


def pairs_of(mask: Tensor | CrossMask | None) -> Tensor | None:
    """Return what of a mask is one of pairs, `[B, 1, n or 1, m]`, or None."""
    return mask.pairs if isinstance(mask, CrossMask) else mask
