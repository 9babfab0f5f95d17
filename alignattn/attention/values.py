"""The value slot g(Q, V): what is averaged.

Wu et al. 2020, "Improving Attention Mechanism with Query-Value Interaction". Every value first meets the
queries, Q̂ = softmax(V Qᵀ / √d) Q, in one more attention call, so no tensor of n × n is formed where the kernel forms
none. Each choice is a function on tensors and a module that holds its parameters.
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alignattn.attention.edges import Edges, attend_edges, pairwise
from alignattn.attention.normalizers.softmax import Softmax
from alignattn.attention.scores import scaled_dot
from alignattn.attention.slot import Slot
from alignattn.support.errors import AlignAttnError

Init = Literal["pretrained", "paper"]

GATE_STD = 1e-5
"""Initial standard deviation of the gate's h on a pretrained model: β is ½ to about this, and yet u has a gradient."""
INITIAL_GATE = 0.5


def attended_query(query: Tensor, value: Tensor, mask: Tensor | Edges | None = None) -> Tensor:
    """Return Q̂ = softmax(V Qᵀ / √d) Q: for each value the mean of the queries that it is near (eq. 7).

    Args:
        query: `[B, H, n, d]`.
        value: `[B, H, m, d]`.
        mask: bool, broadcastable to `[B, H, m, n]`, True where a value may meet a query; None = everywhere; or the
            edges of a graph along which they meet.

    Returns:
        `[B, H, m, d]`.
    """
    if isinstance(mask, Edges):
        normalizer = Softmax(query.shape[-1], query.shape[1])
        return attend_edges(value, query, query, mask, partial(pairwise, scaled_dot), normalizer.of_edges)[0]
    return F.scaled_dot_product_attention(value, query, query, attn_mask=mask)


def interaction(query: Tensor, value: Tensor, weight: Tensor, mask: Tensor | Edges | None = None) -> Tensor:
    """Return Q̂ ∗ W V, element by element (eq. 8).

    Args:
        query: `[B, H, n, d]`.
        value: `[B, H, m, d]`.
        weight: W, `[H, d, d]`.
        mask: as for `attended_query`.

    Returns:
        `[B, H, m, d]`.
    """
    return attended_query(query, value, mask) * (value @ weight.transpose(-2, -1))


def gated(interacted: Tensor, value: Tensor, mix: Tensor, gate: Tensor) -> Tensor:
    """Return β V + (1 - β) Q̂ ∗ W V with a gate for each token (eqs. 9, 10).

    Eq. 9 is read so that its shapes close: β = sigmoid(h · (u₁ Q̂ ∗ W V + u₂ V)).

    Args:
        interacted: Q̂ ∗ W V, `[B, H, m, d]`.
        value: V, `[B, H, m, d]`.
        mix: u, `[H, 2]`: the weights of the two vectors.
        gate: h, `[H, d]`: the weights of the features.

    Returns:
        `[B, H, m, d]`.
    """
    features = torch.cat((mix[:, :1] * gate, mix[:, 1:] * gate), dim=-1)
    logit = torch.cat((interacted, value), dim=-1) @ features[:, :, None]
    # Under autocast a product is of a narrower type than values that no product has made.
    dtype = torch.promote_types(interacted.dtype, value.dtype)
    return torch.lerp(interacted.to(dtype), value.to(dtype), torch.sigmoid(logit).to(dtype))


class Value(Slot, ABC):
    """Maps queries and values of one layer to the vectors that attention averages; arguments as for `Slot`."""

    @abstractmethod
    def forward(self, query: Tensor, value: Tensor, mask: Tensor | Edges | None = None) -> Tensor:
        """Return `[B, H, m, d]` of queries `[B, H, n, d]` and values `[B, H, m, d]`; `mask` as for `attended_query`."""


class Identity(Value):
    """The values as they are."""

    def forward(self, query: Tensor, value: Tensor, mask: Tensor | Edges | None = None) -> Tensor:
        """Return `value`."""
        return value


class _Interacting(Value):
    """A value with Q̂ ∗ W V in it."""

    def __init__(self, head_dim: int, num_heads: int, init: Init) -> None:
        super().__init__(head_dim, num_heads)
        if init not in get_args(Init):
            choices = ", ".join(get_args(Init))
            raise AlignAttnError(f"option of value: init={init!r} is unknown: choose one of {choices}")
        self.init = init
        weight = head_dim**-0.5 * torch.randn(num_heads, head_dim, head_dim)
        self.weight = nn.Parameter(torch.zeros_like(weight) if init == "pretrained" else weight)

    def _interaction(self, query: Tensor, value: Tensor, mask: Tensor | Edges | None) -> Tensor:
        return interaction(query, value, self.weight.to(value.dtype), mask)

    def extra_repr(self) -> str:
        """Return what the module's printed form shows."""
        return f"{super().extra_repr()}, init={self.init!r}"


class Interaction(_Interacting):
    """Q̂ ∗ W V alone. No W makes it the pretrained function, so W starts at random."""

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__(head_dim, num_heads, "paper")

    def forward(self, query: Tensor, value: Tensor, mask: Tensor | Edges | None = None) -> Tensor:
        """Return the values, as `Value.forward`."""
        return self._interaction(query, value, mask)


class Sum(_Interacting):
    """Q̂ ∗ W V + V.

    Args:
        head_dim: size d of a head's query and value.
        num_heads: heads H.
        init: `pretrained`, W = 0: the pretrained function, with a gradient for W of usual size; `paper`, W at random.

    Raises:
        AlignAttnError: if `init` is neither.
    """

    def __init__(self, head_dim: int, num_heads: int, *, init: Init = "pretrained") -> None:
        super().__init__(head_dim, num_heads, init)

    def forward(self, query: Tensor, value: Tensor, mask: Tensor | Edges | None = None) -> Tensor:
        """Return the values, as `Value.forward`."""
        return self._interaction(query, value, mask) + value


class QVI(_Interacting):
    """Query-value interaction: β V + (1 - β) Q̂ ∗ W V with a gate β for each token (eqs. 7 to 10).

    Args:
        head_dim: size d of a head's query and value.
        num_heads: heads H; each has its own W, u and h.
        init: `pretrained` starts at the pretrained function without being dead: W = 0, h almost 0, and the result is
            divided by the initial β, ½; `paper` is the literal one, all at random and nothing divided.

    Raises:
        AlignAttnError: if `init` is neither.
    """

    def __init__(self, head_dim: int, num_heads: int, *, init: Init = "pretrained") -> None:
        super().__init__(head_dim, num_heads, init)
        is_pretrained = init == "pretrained"
        self.mix = nn.Parameter(torch.ones(num_heads, 2))
        gate_std = GATE_STD if is_pretrained else head_dim**-0.5
        self.gate = nn.Parameter(gate_std * torch.randn(num_heads, head_dim))
        self.divisor = INITIAL_GATE if is_pretrained else 1.0

    def forward(self, query: Tensor, value: Tensor, mask: Tensor | Edges | None = None) -> Tensor:
        """Return the values, as `Value.forward`."""
        mix, gate = self.mix.to(value.dtype), self.gate.to(value.dtype)
        return gated(self._interaction(query, value, mask), value, mix, gate) / self.divisor
