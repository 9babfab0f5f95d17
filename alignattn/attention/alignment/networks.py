"""The small networks of the alignment losses: highway layer, discriminator or critic, navigator.

At the size of one attention head a pass over the features costs a good part of a matrix product, so the highway
layer has its backward written out, and the networks work on features laid out as rows, `[rows, size]`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

LEAKY_SLOPE = 0.2
GATE_BIAS = -1.0
"""The highway starts near the identity (Srivastava et al. 2015, section 2.2)."""


class _Highway(torch.autograd.Function):
    """y = x + t * (h - x), with t = sigmoid(x W' + b') and h = relu(x W" + b").

    Autograd's own backward makes more passes over the features: with it the GAN's loss takes 15 % longer. With
    g = dL/dy,

        dL/dh = g * t,    dL/dx directly = g * (1 - t),    dL/d(x W' + b') = g * (1 - t) * (y - x),

    the last because the sigmoid's derivative is t * (1 - t) and t * (h - x) = y - x.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        gate_weight, transform_weight = weight.chunk(2)
        gate_bias, transform_bias = bias.chunk(2)
        gate = F.linear(features, gate_weight, gate_bias).sigmoid_()
        transform = F.linear(features, transform_weight, transform_bias).relu_()
        output = torch.lerp(features, transform, gate)
        ctx.save_for_backward(features, weight, gate, transform, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, weight, gate, transform, output = ctx.saved_tensors
        gate_weight, transform_weight = weight.chunk(2)
        to_transform = grad_outputs[0] * gate
        to_features = grad_outputs[0] - to_transform
        to_gate = (output - features).mul_(to_features)
        # The relu's backward in place; a product with the mask `transform > 0` takes five times as long.
        torch.ops.aten.threshold_backward.grad_input(to_transform, transform, 0, grad_input=to_transform)
        grad_weight = torch.cat((to_gate.T @ features, to_transform.T @ features))
        grad_bias = torch.cat((to_gate.sum(dim=0), to_transform.sum(dim=0)))
        to_features.addmm_(to_gate, gate_weight).addmm_(to_transform, transform_weight)
        return to_features, grad_weight, grad_bias


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
        highway: Tensor = _Highway.apply(features, weight, bias)  # type: ignore[no-untyped-call]
        return highway


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
