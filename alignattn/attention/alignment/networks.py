"""The small networks of the alignment losses: highway layer, discriminator or critic, navigator; gradient reversal.

A network stacks its parameters for all L layers of a model, and maps features `[l * blocks, rows, size]` of l
consecutive layers in one call: on a GPU the number of calls determines the cost of small batches. The blocks of a layer
are consecutive, and all layers have equally many.
"""

from typing import Any

import torch
from torch import Tensor, nn

HIDDEN_DIM = 16
"""Default size of the hidden layer of a network."""
LEAKY_SLOPE = 0.2

NORM_EPSILON = 1e-6
"""Added in quadrature to a norm, so that the gradient at a zero vector stays finite."""

FIRST = slice(0, 1)
"""The layers of a network with one layer."""


class Linear(nn.Module):
    """Linear layers of one shape, one for each layer of a model, which compute in the type of their input.

    Args:
        in_features: size of the rows `[l * blocks, rows, in_features]`.
        out_features: size of the result.
        num_layers: L.
    """

    def __init__(self, in_features: int, out_features: int, num_layers: int = 1) -> None:
        super().__init__()
        bound = in_features**-0.5
        self.weight = nn.Parameter(torch.empty(num_layers, out_features, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_layers, out_features).uniform_(-bound, bound))

    def parameters_for(self, rows: Tensor, layers: slice) -> tuple[Tensor, Tensor]:
        """Return the weights `[l, out, in]` and biases `[l, out]` of some layers, in the type of their rows."""
        weight, bias = self.weight.to(rows), self.bias.to(rows)
        # Slicing all layers would only add a step to the backward pass.
        return (weight, bias) if layers.stop - layers.start == len(weight) else (weight[layers], bias[layers])

    def forward(self, rows: Tensor, layers: slice = FIRST) -> Tensor:
        """Map `[l * blocks, rows, in_features]` to `[l * blocks, rows, out_features]`."""
        weight, bias = self.parameters_for(rows, layers)
        result = torch.baddbmm(bias[:, None], rows_of_layers(rows, len(weight)), weight.mT)
        return result.view(*rows.shape[:2], -1)


class Highway(nn.Module):
    """Highway layer (Srivastava et al. 2015, eq. 3): y = T(x) * H(x) + (1 - T(x)) * x, with a ReLU in H."""

    def __init__(self, size: int, num_layers: int = 1) -> None:
        super().__init__()
        self.gate_and_transform = Linear(size, 2 * size, num_layers)
        with torch.no_grad():
            # The layer starts near the identity (Srivastava et al. 2015, section 2.2).
            self.gate_and_transform.bias[:, :size] = -1.0

    def forward(self, rows: Tensor, layers: slice = FIRST) -> Tensor:
        """Map features `[l * blocks, rows, size]` to the same shape."""
        gate, transform = self.gate_and_transform(rows, layers).chunk(2, dim=-1)
        return torch.lerp(rows, transform.relu(), gate.sigmoid())


class _Network(nn.Sequential):
    def forward(self, rows: Tensor, layers: slice = FIRST) -> Tensor:
        """Map features `[l * blocks, rows, head_dim]` to `[…, output_dim]` with the networks of `layers`."""
        for layer in self:
            # The leaky ReLU may overwrite the result of a linear layer, which is neither a view nor saved.
            rows = layer(rows) if isinstance(layer, nn.LeakyReLU) else layer(rows, layers)
        return rows


class Discriminator(_Network):
    """Highway layer, then two linear layers with a leaky ReLU between (Zhang et al. 2021, section 2.3.1).

    With one output it is the GAN's discriminator, with several the conditional transport's critic (section 2.3.3).

    Args:
        head_dim: size of the features `[l * blocks, rows, head_dim]`.
        hidden_dim: size of the hidden layer.
        output_dim: size of the result `[l * blocks, rows, output_dim]`.
        num_layers: L.
    """

    def __init__(self, head_dim: int, hidden_dim: int, output_dim: int, num_layers: int = 1) -> None:
        super().__init__(
            Highway(head_dim, num_layers),
            Linear(head_dim, hidden_dim, num_layers),
            nn.LeakyReLU(LEAKY_SLOPE, inplace=True),
            Linear(hidden_dim, output_dim, num_layers),
        )


class Navigator(_Network):
    """Two linear layers with a leaky ReLU between: the feature map of the conditional plan (section 2.3.3)."""

    def __init__(self, head_dim: int, hidden_dim: int, output_dim: int, num_layers: int = 1) -> None:
        super().__init__(
            Linear(head_dim, hidden_dim, num_layers),
            nn.LeakyReLU(LEAKY_SLOPE, inplace=True),
            Linear(hidden_dim, output_dim, num_layers),
        )


class _GradientReversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        return -grad_outputs[0]


def reverse_gradient(features: Tensor) -> Tensor:
    """Return `features` unchanged; the sign of their gradient is reversed (Ganin & Lempitsky 2015, eq. 8).

    With a reversal between two players a single backward pass is a step of a minimax game: the player before it ascends
    the loss that the player after it descends.
    """
    reversed_features: Tensor = _GradientReversal.apply(features)  # type: ignore[no-untyped-call]
    return reversed_features


def rows_of_layers(rows: Tensor, layers: int) -> Tensor:
    """Return rows in blocks, `[l * blocks, rows, size]`, as one block for each layer, `[l, blocks * rows, size]`."""
    return rows.unflatten(0, (layers, -1)).flatten(1, 2)


def rows_in_blocks(features: Tensor) -> Tensor:
    """Return features `[C, 2, B, n, H, d]` as rows in blocks, `[C * 2 * B, n * H, d]`."""
    return features.flatten(0, 2).flatten(1, 2)


def unit_vectors(vectors: Tensor) -> Tensor:
    """Return vectors `[..., f]` scaled to length 1; a zero vector stays zero, with a finite gradient."""
    return vectors * (vectors.square().sum(dim=-1, keepdim=True) + NORM_EPSILON**2).rsqrt()
