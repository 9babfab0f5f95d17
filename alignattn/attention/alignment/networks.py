"""The small networks of the alignment losses: highway layer, discriminator or critic, navigator.

A network holds its parameters for all L layers of a model, stacked, and maps rows of features `[l, rows, size]` by
those of l neighbouring layers at once: on a GPU the cost is in the number of calls. At the size of one attention head
a pass over the features costs a good part of a matrix product, so the highway layer has its backward written out. On
the CPU `passes` runs them without autograd.
"""

from typing import Any

import torch
from torch import Tensor, nn

from alignattn.attention.derivatives import once_differentiable

HIDDEN_DIM = 16
"""Units of the hidden layer of a network, unless a config names others."""
LEAKY_SLOPE = 0.2
GATE_BIAS = -1.0
"""The highway starts near the identity (Srivastava et al. 2015, section 2.2)."""

FIRST = slice(0, 1)
"""The layers of a network that stands for one."""

Buffers = tuple[Tensor | None, Tensor | None, Tensor | None]
NEW: Buffers = (None, None, None)
"""Results go to fresh memory."""


def highway(features: Tensor, weight: Tensor, bias: Tensor, out: Buffers = NEW) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gate t = sigmoid(x W' + b'), the transform h = relu(x W" + b") and the output x + t * (h - x).

    Args:
        features: x, `[l, rows, size]`.
        weight: W' over W", `[l, 2 * size, size]`.
        bias: b' before b", `[l, 2 * size]`.
        out: where to write the three results, each `[l, rows, size]`; None = to fresh memory.
    """
    gate_weight, transform_weight = weight.chunk(2, dim=1)
    gate_bias, transform_bias = bias[:, None].chunk(2, dim=2)
    gate = torch.baddbmm(gate_bias, features, gate_weight.mT, out=out[0]).sigmoid_()
    transform = torch.baddbmm(transform_bias, features, transform_weight.mT, out=out[1]).relu_()
    return gate, transform, torch.lerp(features, transform, gate, out=out[2])


def highway_gradient(
    gradient: Tensor,
    features: Tensor,
    weight: Tensor,
    gate: Tensor,
    transform: Tensor,
    output: Tensor,
    out: Buffers = NEW,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients in the features, the weight and the bias of `highway`.

    Autograd's own backward makes more passes over the features. With g = dL/dy,

        dL/dh = g * t,    dL/dx directly = g * (1 - t),    dL/d(x W' + b') = g * (1 - t) * (y - x),

    the last because the sigmoid's derivative is t * (1 - t) and t * (h - x) = y - x.

    Args:
        gradient: g, `[l, rows, size]`.
        features: as given to `highway`, like `weight`.
        weight: `[l, 2 * size, size]`.
        gate: as `highway` returned it, like `transform` and `output`.
        transform: `[l, rows, size]`.
        output: `[l, rows, size]`.
        out: where to write the gradients in the features, the transform and the gate; the tensors `gradient`,
            `gate` and `output` will do, in this order. None = to fresh memory.
    """
    gate_weight, transform_weight = weight.chunk(2, dim=1)
    to_transform = torch.mul(gradient, gate, out=out[1])
    to_features = torch.sub(gradient, to_transform, out=out[0])
    to_gate = torch.sub(output, features, out=out[2]).mul_(to_features)
    # The relu's backward in place; a product with the mask `transform > 0` takes five times as long.
    torch.ops.aten.threshold_backward.grad_input(to_transform, transform, 0, grad_input=to_transform)
    to_weight = torch.cat((to_gate.mT @ features, to_transform.mT @ features), dim=1)
    to_bias = torch.cat((to_gate.sum(dim=1), to_transform.sum(dim=1)), dim=1)
    to_features.baddbmm_(to_gate, gate_weight).baddbmm_(to_transform, transform_weight)
    return to_features, to_weight, to_bias


class _Highway(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        gate, transform, output = highway(features, weight, bias)
        ctx.save_for_backward(features, weight, gate, transform, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, weight, gate, transform, output = ctx.saved_tensors
        return highway_gradient(grad_outputs[0], features, weight, gate, transform, output)


class Linear(nn.Module):
    """Linear layers of one shape, one for each layer of a model; they compute in the type of their input.

    Args:
        in_features: size of the rows `[l, rows, in_features]`.
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
        # A slice of everything would cost its backward.
        return (weight, bias) if layers.stop - layers.start == len(weight) else (weight[layers], bias[layers])

    def forward(self, rows: Tensor, layers: slice = FIRST) -> Tensor:
        """Map `[l, rows, in_features]` to `[l, rows, out_features]`."""
        weight, bias = self.parameters_for(rows, layers)
        return torch.baddbmm(bias[:, None], rows, weight.mT)


class Highway(nn.Module):
    """Highway layer (Srivastava et al. 2015, eq. 3): y = T(x) * H(x) + (1 - T(x)) * x, with a ReLU in H."""

    def __init__(self, size: int, num_layers: int = 1) -> None:
        super().__init__()
        self.gate_and_transform = Linear(size, 2 * size, num_layers)
        with torch.no_grad():
            self.gate_and_transform.bias[:, :size] = GATE_BIAS

    def forward(self, rows: Tensor, layers: slice = FIRST) -> Tensor:
        """Map features `[l, rows, size]` to the same shape."""
        weight, bias = self.gate_and_transform.parameters_for(rows, layers)
        output: Tensor = _Highway.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
        return output


class _Network(nn.Sequential):
    def forward(self, rows: Tensor, layers: slice = FIRST) -> Tensor:
        """Map features `[l, rows, head_dim]` to `[l, rows, output_dim]` by the networks of `layers`."""
        for layer in self:
            # The result of a linear layer is no view and not kept: the leaky ReLU overwrites it at no cost.
            rows = layer(rows) if isinstance(layer, nn.LeakyReLU) else layer(rows, layers)
        return rows


class Discriminator(_Network):
    """Highway layer, then two linear layers with a leaky ReLU between (Zhang et al. 2021, section 2.3.1).

    With one output it is the GAN's discriminator, with several the conditional transport's critic (section 2.3.3).

    Args:
        head_dim: size of the features `[l, rows, head_dim]`.
        hidden_dim: size of the hidden layer.
        output_dim: size of the result `[l, rows, output_dim]`.
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
