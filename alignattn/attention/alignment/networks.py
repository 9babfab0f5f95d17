"""The small networks of the alignment losses: highway layer, discriminator or critic, navigator.

At the size of one attention head a pass over the features costs a good part of a matrix product, so the highway
layer has its backward written out, and the networks work on features laid out as rows, `[rows, size]`. On the CPU
`passes` runs them without autograd.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

LEAKY_SLOPE = 0.2
GATE_BIAS = -1.0
"""The highway starts near the identity (Srivastava et al. 2015, section 2.2)."""

Buffers = tuple[Tensor | None, Tensor | None, Tensor | None]
NEW: Buffers = (None, None, None)
"""Results go to fresh memory."""


def highway(features: Tensor, weight: Tensor, bias: Tensor, out: Buffers = NEW) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gate t = sigmoid(x W' + b'), the transform h = relu(x W" + b") and the output x + t * (h - x).

    Args:
        features: x, `[rows, size]`.
        weight: W' over W", `[2 * size, size]`.
        bias: b' before b", `[2 * size]`.
        out: where to write the three results, each `[rows, size]`; None = to fresh memory.
    """
    gate_weight, transform_weight = weight.chunk(2)
    gate_bias, transform_bias = bias.chunk(2)
    gate = torch.addmm(gate_bias, features, gate_weight.T, out=out[0]).sigmoid_()
    transform = torch.addmm(transform_bias, features, transform_weight.T, out=out[1]).relu_()
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
        gradient: g, `[rows, size]`.
        features: as given to `highway`, like `weight`.
        weight: `[2 * size, size]`.
        gate: as `highway` returned it, like `transform` and `output`.
        transform: `[rows, size]`.
        output: `[rows, size]`.
        out: where to write the gradients in the features, the transform and the gate; the tensors `gradient`,
            `gate` and `output` will do, in this order. None = to fresh memory.
    """
    gate_weight, transform_weight = weight.chunk(2)
    to_transform = torch.mul(gradient, gate, out=out[1])
    to_features = torch.sub(gradient, to_transform, out=out[0])
    to_gate = torch.sub(output, features, out=out[2]).mul_(to_features)
    # The relu's backward in place; a product with the mask `transform > 0` takes five times as long.
    torch.ops.aten.threshold_backward.grad_input(to_transform, transform, 0, grad_input=to_transform)
    to_weight = torch.cat((to_gate.T @ features, to_transform.T @ features))
    to_bias = torch.cat((to_gate.sum(dim=0), to_transform.sum(dim=0)))
    to_features.addmm_(to_gate, gate_weight).addmm_(to_transform, transform_weight)
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


class Highway(nn.Module):
    """Highway layer (Srivastava et al. 2015, eq. 3): y = T(x) * H(x) + (1 - T(x)) * x, with a ReLU in H."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gate_and_transform = nn.Linear(size, 2 * size)
        with torch.no_grad():
            self.gate_and_transform.bias[:size] = GATE_BIAS

    def forward(self, features: Tensor) -> Tensor:
        """Map features `[rows, size]` to the same shape."""
        layer = self.gate_and_transform
        weight, bias = layer.weight.to(features.dtype), layer.bias.to(features.dtype)
        output: Tensor = _Highway.apply(features, weight, bias)  # type: ignore[no-untyped-call]
        return output


class Linear(nn.Linear):
    """A linear layer that computes in the type of its input, also after the model was cast to half precision."""

    def forward(self, input: Tensor) -> Tensor:
        """Map `[..., in_features]` to `[..., out_features]`."""
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return F.linear(input, self.weight.to(input.dtype), bias)


class _RowNetwork(nn.Sequential):
    """Layers that see their features as rows.

    The linear layers then return tensors that are no views, which the leaky ReLU overwrites at no cost; for an
    in-place operation on a view autograd's backward copies the gradient twice.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Map features `[..., head_dim]` to `[..., output_dim]`."""
        rows: Tensor = super().forward(input.flatten(0, -2))  # type: ignore[no-untyped-call]
        return rows.reshape(*input.shape[:-1], rows.shape[-1])


class Discriminator(_RowNetwork):
    """Highway layer, then two linear layers with a leaky ReLU between (Zhang et al. 2021, appendix B).

    With one output it is the GAN's discriminator, with several the conditional transport's critic.

    Args:
        head_dim: size of the features `[..., head_dim]`.
        hidden_dim: size of the hidden layer.
        output_dim: size of the result `[..., output_dim]`.
    """

    def __init__(self, head_dim: int, hidden_dim: int, output_dim: int) -> None:
        super().__init__(
            Highway(head_dim),
            Linear(head_dim, hidden_dim),
            nn.LeakyReLU(LEAKY_SLOPE, inplace=True),
            Linear(hidden_dim, output_dim),
        )


class Navigator(_RowNetwork):
    """Two linear layers with a leaky ReLU between: the feature map of the transport's conditional plan."""

    def __init__(self, head_dim: int, hidden_dim: int, output_dim: int) -> None:
        super().__init__(
            Linear(head_dim, hidden_dim), nn.LeakyReLU(LEAKY_SLOPE, inplace=True), Linear(hidden_dim, output_dim)
        )
