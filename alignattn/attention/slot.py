"""The base of the choices of the score, normalizer and value slots."""

from torch import nn


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
