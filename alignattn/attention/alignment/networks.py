"""The small networks of the alignment losses: highway layer, discriminator or critic, navigator.

Their element-wise passes cost as much as their matrix products at the size of one attention head, so the highway
layer is one autograd function that makes as few passes over the features as it can.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LEAKY_SLOPE = 0.2
GATE_BIAS = -1.0
"""The highway starts near the identity (Srivastava et al. 2015, section 2.2)."""


class _Highway(torch.autograd.Function):
    """y = x + t * (h - x), with t = sigmoid(x W' + b), h = relu(x W'' + b) from one matrix product."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        gate, transform = F.linear(features, weight, bias).chunk(2, dim=-1)
        gate, transform = gate.sigmoid_(), transform.relu_()
        output = torch.lerp(features, transform, gate)
        ctx.save_for_backward(features, weight, gate, transform, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, weight, gate, transform, output = ctx.saved_tensors
        grad = grad_outputs[0]
        # With c = y - x = t * (h - x): dy/dx = 1 - t, dy/dh = t, and through the sigmoid t * (1 - t) * (h - x) = (1 - t) * c.
        to_transform = grad * gate
        to_features = grad - to_transform
        grad_gate = (output - features).mul_(to_features)
        grad_pre = torch.cat((grad_gate, torch.where(transform > 0, to_transform, 0)), dim=-1).flatten(0, -2)
        grad_features = torch.addmm(to_features.flatten(0, -2), grad_pre, weight)
        return grad_features.view_as(features), grad_pre.T @ features.flatten(0, -2), grad_pre.sum(dim=0)


class Highway(nn.Module):
    """Highway layer (Srivastava et al. 2015, eq. 3): y = T(x) * H(x) + (1 - T(x)) * x, with a ReLU in H."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gate_and_transform = nn.Linear(size, 2 * size)
        with torch.no_grad():
            self.gate_and_transform.bias[:size] = GATE_BIAS

    def forward(self, features: Tensor) -> Tensor:
        """Map features `[..., size]` to the same shape."""
        layer = self.gate_and_transform
        highway: Tensor = _Highway.apply(
            features, layer.weight.to(features.dtype), layer.bias.to(features.dtype)
        )
        return highway


class Linear(nn.Linear):
    """A linear layer that computes in the type of its input, also after the model was cast to half precision."""

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return F.linear(input, self.weight.to(input.dtype), bias)


class Discriminator(nn.Sequential):
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


class Navigator(nn.Sequential):
    """Two linear layers with a leaky ReLU between: the feature map of the transport's conditional plan."""

    def __init__(self, head_dim: int, hidden_dim: int, output_dim: int) -> None:
        super().__init__(
            Linear(head_dim, hidden_dim), nn.LeakyReLU(LEAKY_SLOPE, inplace=True), Linear(hidden_dim, output_dim)
        )
