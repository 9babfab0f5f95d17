"""The value slot g(Q, V): what is averaged.

Wu et al. 2020, "Improving Attention Mechanism with Query-Value Interaction", whose equations are cited. Every value
first attends to the queries, Q̂ = softmax(V Qᵀ / √d) Q. With one query q, as in pooling, Q̂ is q for every value. Each
choice is a module that holds its parameters.
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from alignattn.attention.masks import Edges, attend_edges, fused_attention, pairwise
from alignattn.attention.normalizers.softmax import Softmax
from alignattn.attention.scores import Slot, scaled_dot
from alignattn.utils.errors import AlignAttnError

Init = Literal["pretrained", "paper"]

GATE_STD = 1e-5
"""Initial standard deviation of the gate's weights on a pretrained model: β is almost ½, and all parameters learn."""
INITIAL_GATE = 0.5


def attended_query(query: Tensor, value: Tensor, mask: Tensor | Edges | None = None) -> Tensor:
    """Return Q̂ = softmax(V Qᵀ / √d) Q, the queries attended by each value (eq. 7).

    Args:
        query: `[B, H, n, d]`.
        value: `[B, H, m, d]`.
        mask: bool, broadcastable to `[B, H, m, n]`, True where a value may attend to a query; None = everywhere; or the
            edges of a graph along which values attend to queries.

    Returns:
        `[B, H, m, d]`.
    """
    if isinstance(mask, Edges):
        normalizer = Softmax(query.shape[-1], query.shape[1])
        return attend_edges(value, query, query, mask, partial(pairwise, scaled_dot), normalizer.of_edges)[0]
    return fused_attention(value, query, query, mask)


class Value(Slot, ABC):
    """Maps queries and values of one layer to the vectors that attention averages; arguments as for `Slot`."""

    @abstractmethod
    def forward(self, query: Tensor, value: Tensor, mask: Tensor | Edges | None = None) -> Tensor:
        """Return `[B, H, m, d]` of queries `[B, H, n, d]` and values `[B, H, m, d]`; `mask` as for `attended_query`."""

    @classmethod
    def for_one_query(cls) -> "type[Value]":
        """Return the class of this choice for attention with one query, such as pooling."""
        return cls


class Identity(Value):
    """The values as they are."""

    def forward(self, query: Tensor, value: Tensor, mask: Tensor | Edges | None = None) -> Tensor:
        """Return `value`."""
        return value


class _Interacting(Value):
    """A value with the interaction Q̂ ∗ W V."""

    def __init__(self, head_dim: int, num_heads: int, init: Init) -> None:
        super().__init__(head_dim, num_heads)
        if init not in get_args(Init):
            choices = ", ".join(get_args(Init))
            raise AlignAttnError(f"option of value: init={init!r} is unknown: choose one of {choices}")
        self.init = init
        weight = head_dim**-0.5 * torch.randn(num_heads, head_dim, head_dim)
        self.weight = nn.Parameter(torch.zeros_like(weight) if init == "pretrained" else weight)

    def _interaction(self, query: Tensor, value: Tensor, mask: Tensor | Edges | None) -> Tensor:
        """Return Q̂ ∗ W V, element by element (eq. 8)."""
        # One product for each head, over the rows of all samples: a product for each sample would copy W and V.
        mapped = torch.einsum("bhmd,hed->bhme", value, self.weight.to(value.dtype))
        return attended_query(query, value, mask) * mapped

    def extra_repr(self) -> str:
        """Return the module's printed form."""
        return f"{super().extra_repr()}, init={self.init!r}"


class Interaction(_Interacting):
    """Q̂ ∗ W V alone. W starts at random: no W gives the pretrained function."""

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__(head_dim, num_heads, "paper")

    def forward(self, query: Tensor, value: Tensor, mask: Tensor | Edges | None = None) -> Tensor:
        """Return the values, as `Value.forward`."""
        return self._interaction(query, value, mask)


class Sum(_Interacting):
    """Q̂ ∗ W V + V.

    Args:
        init: `pretrained`, W = 0, which keeps the pretrained function; or `paper`, a random W.

    Raises:
        AlignAttnError: if `init` is neither.
    """

    def __init__(self, head_dim: int, num_heads: int, *, init: Init = "pretrained") -> None:
        super().__init__(head_dim, num_heads, init)

    def forward(self, query: Tensor, value: Tensor, mask: Tensor | Edges | None = None) -> Tensor:
        """Return the values, as `Value.forward`."""
        return self._interaction(query, value, mask) + value


class _Gated(_Interacting):
    """β V + (1 - β) Q̂ ∗ W V with a gate β = sigmoid(u · [Q̂ ∗ W V; V]) for each token (eqs. 5, 6; 9, 10)."""

    def __init__(self, head_dim: int, num_heads: int, init: Init) -> None:
        super().__init__(head_dim, num_heads, init)
        self.divisor = INITIAL_GATE if init == "pretrained" else 1.0

    def _initial_weights(self, size: int) -> nn.Parameter:
        """Return random weights for `size` features, `[H, size]`."""
        std = GATE_STD if self.init == "pretrained" else size**-0.5
        return nn.Parameter(std * torch.randn(self.num_heads, size))

    @abstractmethod
    def _gate_weights(self) -> Tensor:
        """Return u, `[H, 2, d]`: the weights of the features of Q̂ ∗ W V, then of V."""

    def forward(self, query: Tensor, value: Tensor, mask: Tensor | Edges | None = None) -> Tensor:
        """Return the values, as `Value.forward`."""
        interacted = self._interaction(query, value, mask)
        # Under autocast the product has a narrower type than the values.
        dtype = torch.promote_types(interacted.dtype, value.dtype)
        interacted, value = interacted.to(dtype), value.to(dtype)
        of_interacted, of_value = self._gate_weights().to(dtype)[:, :, None].unbind(1)
        logit = torch.addcmul(interacted * of_interacted, value, of_value).sum(dim=-1, keepdim=True)
        gated = torch.lerp(interacted, value, torch.sigmoid(logit).to(dtype))
        return gated / self.divisor


class QVI(_Gated):
    """Query-value interaction: β V + (1 - β) Q̂ ∗ W V with a gate β for each token (eqs. 7 to 10).

    Eq. 9 is read as β = sigmoid(h · (u₁ Q̂ ∗ W V + u₂ V)), so that its shapes agree. Attention with one query uses
    `OneQueryQVI` instead.

    Args:
        head_dim: as for `Slot`.
        num_heads: heads H; each has its own W, u and h.
        init: `pretrained` starts at the pretrained function, with nonzero gradients for all parameters: W = 0, h is
            almost 0, and the result is divided by the initial β, ½. `paper` starts with random W and h, and does not
            divide. u starts at ones.

    Raises:
        AlignAttnError: if `init` is neither.
    """

    def __init__(self, head_dim: int, num_heads: int, *, init: Init = "pretrained") -> None:
        super().__init__(head_dim, num_heads, init)
        self.mix = nn.Parameter(torch.ones(num_heads, 2))
        self.gate = self._initial_weights(head_dim)

    @classmethod
    def for_one_query(cls) -> type[Value]:
        """Return `OneQueryQVI`."""
        return OneQueryQVI

    def _gate_weights(self) -> Tensor:
        return self.mix[:, :, None] * self.gate[:, None]


class OneQueryQVI(_Gated):
    """Query-value interaction with one query q: β V + (1 - β) q ∗ W V, β = sigmoid(u · [q ∗ W V; V]) (eqs. 4 to 6).

    Args:
        head_dim: as for `Slot`.
        num_heads: heads H; each has its own W and u.
        init: as for `QVI`, with u in place of h.

    Raises:
        AlignAttnError: if `init` is neither.
    """

    def __init__(self, head_dim: int, num_heads: int, *, init: Init = "pretrained") -> None:
        super().__init__(head_dim, num_heads, init)
        self.gate = self._initial_weights(2 * head_dim)

    def _gate_weights(self) -> Tensor:
        return self.gate.unflatten(-1, (2, -1))
