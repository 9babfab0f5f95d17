"""The parts of a Transformer's layers, whose attention takes slots."""

from torch import Tensor, nn

from alignattn.attention.attend import attend
from alignattn.attention.cross_mask import CrossMask

FEED_FORWARD = 4
"""Times the states' size, in the layer between (Vaswani et al. 2017, §3.3)."""


class MultiHeadAttention(nn.Module):
    """Attention of tokens to themselves or to others, by whatever slots it is given (Vaswani et al. 2017, §3.2.2).

    Args:
        size: of the states.
        num_heads: heads H.
        dropout: probability with which a weight is dropped.

    Raises:
        ValueError: if the states are not so many heads of one size.
    """

    def __init__(self, size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        if size % num_heads:
            raise ValueError(f"hidden_dim {size} is no {num_heads} heads of one size")
        self.num_heads = num_heads
        self.dropout = dropout
        self.query_projection = nn.Linear(size, size)
        self.key_projection = nn.Linear(size, size)
        self.value_projection = nn.Linear(size, size)
        self.output_projection = nn.Linear(size, size)

    def forward(self, states: Tensor, attended: Tensor, mask: Tensor | CrossMask | None) -> Tensor:
        """Return `[B, n, size]` of states `[B, n, size]` that attend others `[B, m, size]`; `mask` as of `attend`."""
        projected = (self.query_projection(states), self.key_projection(attended), self.value_projection(attended))
        heads = [part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in projected]
        gathered = attend(self, heads[0], heads[1], heads[2], mask, dropout=self.dropout)
        return self.output_projection(gathered.transpose(1, 2).flatten(2))


class Around(nn.Module):
    """What is around each part of a unit: LayerNorm(x + dropout(part of x))."""

    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(size)

    def forward(self, states: Tensor, change: Tensor) -> Tensor:
        """Return `[B, n, size]` of states and what a part made of them."""
        return self.norm(states + self.dropout(change))


class FeedForward(nn.Module):
    """Two linear layers at each token, with a ReLU and dropout between."""

    def __init__(self, size: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(size, FEED_FORWARD * size)
        self.outer = nn.Linear(FEED_FORWARD * size, size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor) -> Tensor:
        """Return `[B, n, size]` of `[B, n, size]`."""
        return self.outer(self.dropout(self.inner(states).relu()))


class SelfAttentionUnit(nn.Module):
    """Tokens attend one another, and each is fed forward (Vaswani et al. 2017, figure 1, left); sizes of its parts."""

    def __init__(self, size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(size, num_heads, dropout)
        self.after_attention = Around(size, dropout)
        self.feed_forward = FeedForward(size, dropout)
        self.after_feed_forward = Around(size, dropout)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Return `[B, n, size]`; `mask` is as of `attend`."""
        states = self.after_attention(states, self.attention(states, states, mask))
        return self.after_feed_forward(states, self.feed_forward(states))
