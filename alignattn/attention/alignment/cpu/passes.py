"""Explicit forward and backward passes of the alignment networks, in reused memory, for the CPU.

Autograd allocates every intermediate result anew, and at the size of an attention head the first access to that memory
takes longer than the arithmetic. Here a layer overwrites tensors that it no longer needs.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from alignattn.attention.alignment.base import NORM_EPSILON
from alignattn.attention.alignment.networks import Highway, Linear

KEPT_BYTES = 2**25
"""Maximum memory that is kept; a call that needs more allocates the rest itself."""
CACHE_LINE = 64
"""Bytes of a cache line, the alignment of every tensor."""


class Scratch(threading.local):
    """A stack of uninitialised tensors on the CPU; each thread has its own."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._peak = 0

    @contextmanager
    def frame(self) -> Iterator[None]:
        """Release at the end the tensors that were taken inside."""
        start = self._used
        try:
            yield
        finally:
            self._used = start
            if start == 0:
                self._grow()

    def take(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return an uninitialised tensor, valid until the surrounding frame ends."""
        size = math.prod(shape) * dtype.itemsize
        start = self._used
        self._used += -(-size // CACHE_LINE) * CACHE_LINE
        self._peak = max(self._peak, self._used)
        if self._used > len(self._memory):
            return torch.empty(shape, dtype=dtype)
        return self._memory[start : start + size].view(dtype).view(shape)

    def _grow(self) -> None:
        wanted = min(self._peak, KEPT_BYTES)
        if wanted > len(self._memory):
            # Memory that is allocated in inference mode cannot be written outside of it.
            with torch.inference_mode(False):
                self._memory = torch.empty(wanted, dtype=torch.uint8)


SCRATCH = Scratch()


class _Pass(Protocol):
    gradients: list[Tensor]

    def forward(self, rows: Tensor) -> Tensor: ...

    def backward(self, gradient: Tensor) -> Tensor: ...


class NetworkPass:
    """One forward and one backward pass of a network, within one frame of scratch memory."""

    def __init__(self, network: nn.Sequential, rows: Tensor, layer: int) -> None:
        """Prepare the passes of a model layer's `Discriminator` or `Navigator` over `rows`, `[1, rows, in]`."""
        layers = slice(layer, layer + 1)
        self._passes: list[_Pass] = [_PASSES[type(part)](part, rows, layers) for part in network]

    @staticmethod
    def knows(*networks: nn.Module) -> bool:
        """Return whether every layer has passes here; a parametrized or wrapped one has none."""
        inner = (layer for network in networks for layer in network.modules() if layer is not network)
        return all(type(layer) in _PASSES for layer in inner)

    def forward(self, rows: Tensor) -> Tensor:
        """Map features `[1, rows, in]` to `[1, rows, out]`; the result may be overwritten, the features may not."""
        for each in self._passes:
            rows = each.forward(rows)
        return rows

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradient with respect to the features, given that of the result, which is overwritten."""
        for each in reversed(self._passes):
            gradient = each.backward(gradient)
        return gradient

    @property
    def gradients(self) -> list[Tensor]:
        """After `backward`, the gradients of the network's parameters, in their order."""
        return [gradient for each in self._passes for gradient in each.gradients]


class _LinearPass:
    def __init__(self, layer: Linear, rows: Tensor, layers: slice) -> None:
        self.weight, self.bias = layer.parameters_for(rows, layers)

    def forward(self, rows: Tensor) -> Tensor:
        self.rows = rows
        result = SCRATCH.take(*rows.shape[:2], self.weight.shape[1], dtype=rows.dtype)
        return torch.baddbmm(self.bias[:, None], rows, self.weight.mT, out=result)

    def backward(self, gradient: Tensor) -> Tensor:
        self.gradients = [gradient.mT @ self.rows, gradient.sum(dim=1)]
        return torch.bmm(gradient, self.weight, out=SCRATCH.take(*self.rows.shape, dtype=gradient.dtype))


class _LeakyReLUPass:
    def __init__(self, layer: nn.LeakyReLU, rows: Tensor, layers: slice) -> None:
        self.slope = layer.negative_slope
        self.gradients: list[Tensor] = []

    def forward(self, rows: Tensor) -> Tensor:
        self.result = nn.functional.leaky_relu_(rows, self.slope)
        return self.result

    def backward(self, gradient: Tensor) -> Tensor:
        return torch.ops.aten.leaky_relu_backward.grad_input(
            gradient, self.result, self.slope, True, grad_input=gradient
        )


class _HighwayPass:
    """With the gate t = sigmoid(x W' + b') and the transform h = relu(x W" + b"), y = x + t * (h - x)."""

    def __init__(self, layer: Highway, rows: Tensor, layers: slice) -> None:
        weight, bias = layer.gate_and_transform.parameters_for(rows, layers)
        self.gate_weight, self.transform_weight = weight.chunk(2, dim=1)
        self.gate_bias, self.transform_bias = bias[:, None].chunk(2, dim=2)

    def forward(self, rows: Tensor) -> Tensor:
        gate, transform, output = (SCRATCH.take(*rows.shape, dtype=rows.dtype) for _ in range(3))
        torch.baddbmm(self.gate_bias, rows, self.gate_weight.mT, out=gate).sigmoid_()
        torch.baddbmm(self.transform_bias, rows, self.transform_weight.mT, out=transform).relu_()
        torch.lerp(rows, transform, gate, out=output)
        self.rows, self.gate, self.transform, self.output = rows, gate, transform, output
        return output

    def backward(self, gradient: Tensor) -> Tensor:
        """Return dL/dx, which overwrites the gradient g = dL/dy.

            dL/dh = g * t,    dL/dx directly = g * (1 - t),    dL/d(x W' + b') = g * (1 - t) * (y - x),

        The last holds because the sigmoid's derivative is t * (1 - t) and t * (h - x) = y - x.
        """
        rows = self.rows
        to_transform = torch.mul(gradient, self.gate, out=self.gate)
        to_features = torch.sub(gradient, to_transform, out=gradient)
        to_gate = torch.sub(self.output, rows, out=self.output).mul_(to_features)
        # The backward of the relu in place; a product with the mask `transform > 0` takes five times as long.
        torch.ops.aten.threshold_backward.grad_input(to_transform, self.transform, 0, grad_input=to_transform)
        both = (to_gate, to_transform)
        self.gradients = [
            torch.cat([each.mT @ rows for each in both], dim=1),
            torch.cat([each.sum(dim=1) for each in both], dim=1),
        ]
        return to_features.baddbmm_(to_gate, self.gate_weight).baddbmm_(to_transform, self.transform_weight)


_PASSES: dict[type[nn.Module], Callable[..., _Pass]] = {
    Linear: _LinearPass,
    nn.LeakyReLU: _LeakyReLUPass,
    Highway: _HighwayPass,
}


def normalize_(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Scale rows `[..., f]` to length 1 in place, as `unit_vectors`; return them and the reciprocal lengths."""
    squares = torch.mul(rows, rows, out=SCRATCH.take(*rows.shape, dtype=rows.dtype))
    reciprocal = squares.sum(dim=-1, keepdim=True).add_(NORM_EPSILON**2).rsqrt_()
    return rows.mul_(reciprocal), reciprocal


def normalize_gradient_(gradient: Tensor, unit: Tensor, reciprocal: Tensor) -> Tensor:
    """Turn the gradient g with respect to u = x / |x| into that of x, (g - (g · u) u) / |x|, in place."""
    along = torch.mul(gradient, unit, out=SCRATCH.take(*unit.shape, dtype=unit.dtype)).sum(dim=-1, keepdim=True)
    return gradient.addcmul_(unit, along, value=-1).mul_(reciprocal)
