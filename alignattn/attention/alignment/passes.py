"""Explicit forward and backward passes of the alignment networks, which overwrite tensors that they no longer need.

Autograd keeps every intermediate result and allocates it anew. On a GPU that is memory and traffic; on a CPU, at the
size of an attention head, the first access to new memory takes longer than the arithmetic. There the memory is reused.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from alignattn.attention.alignment.networks import NORM_EPSILON, Highway, Linear, rows_of_layers

SCRATCH_BYTES = 2**25
"""Maximum memory that is kept; a call that needs more allocates the rest itself."""


class Scratch(threading.local):
    """A stack of uninitialised tensors on the CPU; each thread has its own."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._peak = 0

    @contextmanager
    def frame(self) -> Iterator[None]:
        """Release at the end the tensors that were taken inside."""
        if torch.compiler.is_compiling():
            yield
            return
        start = self._used
        try:
            yield
        finally:
            self._used = start
            wanted = min(self._peak, SCRATCH_BYTES)
            if start == 0 and wanted > len(self._memory):
                # Memory that is allocated in inference mode cannot be written outside of it.
                with torch.inference_mode(False):
                    self._memory = torch.empty(wanted, dtype=torch.uint8)

    def take(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return an uninitialised tensor of the type and on the device of another, valid until the frame ends."""
        if torch.compiler.is_compiling() or like.device.type != "cpu":
            # Their allocators reuse memory themselves.
            return torch.empty(shape, dtype=like.dtype, device=like.device)
        dtype = like.dtype
        size = math.prod(shape) * dtype.itemsize
        start = self._used
        self._used += -(-size // 64) * 64  # every tensor starts at a cache line
        self._peak = max(self._peak, self._used)
        if self._used > len(self._memory):
            return torch.empty(shape, dtype=dtype)
        return self._memory[start : start + size].view(dtype).view(*shape)


SCRATCH = Scratch()


class NetworkPass:
    """One forward and one backward pass of a network, within one frame of scratch memory.

    Args:
        network: a `Discriminator` or `Navigator`.
        rows: features `[l * blocks, rows, in]` of l consecutive layers; the blocks of a layer are consecutive.
        layers: these layers.
    """

    def __init__(self, network: nn.Sequential, rows: Tensor, layers: slice) -> None:
        self._passes = [_PASSES[type(part)](part, rows, layers) for part in network]

    @staticmethod
    def knows(*networks: nn.Module) -> bool:
        """Return whether every layer has passes here; a parametrized or wrapped one has none."""
        inner = (layer for network in networks for layer in network.modules() if layer is not network)
        return all(type(layer) in _PASSES for layer in inner)

    def forward(self, rows: Tensor) -> Tensor:
        """Map features to `[l * blocks, rows, out]`; the result may be overwritten, the features may not."""
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
        """After `backward`, the gradients `[l, …]` of the network's parameters, in their order."""
        return [gradient for each in self._passes for gradient in each.gradients]


def _to_parameters(gradient: Tensor, rows: Tensor, layers: int) -> list[Tensor]:
    """Return the gradients `[l, out, in]` of weights and `[l, out]` of biases."""
    # A sum of products, one for each block: a GPU would compute one product over all rows of a layer in few processors.
    to_weight = (gradient.mT @ rows).unflatten(0, (layers, -1)).sum(dim=1)
    return [to_weight, rows_of_layers(gradient, layers).sum(dim=1)]


class _LinearPass:
    def __init__(self, layer: Linear, rows: Tensor, layers: slice) -> None:
        self.weight, self.bias = layer.parameters_for(rows, layers)

    def forward(self, rows: Tensor) -> Tensor:
        self.rows = rows
        layers, size, _ = self.weight.shape
        result = SCRATCH.take((*rows.shape[:2], size), rows)
        torch.baddbmm(
            self.bias[:, None], rows_of_layers(rows, layers), self.weight.mT, out=rows_of_layers(result, layers)
        )
        return result

    def backward(self, gradient: Tensor) -> Tensor:
        layers = len(self.weight)
        self.gradients = _to_parameters(gradient, self.rows, layers)
        result = SCRATCH.take(self.rows.shape, gradient)
        torch.bmm(rows_of_layers(gradient, layers), self.weight, out=rows_of_layers(result, layers))
        return result


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
        self.weight, self.bias = layer.gate_and_transform.parameters_for(rows, layers)

    def forward(self, rows: Tensor) -> Tensor:
        layers, size = len(self.weight), rows.shape[-1]
        self.both = SCRATCH.take((*rows.shape[:2], 2 * size), rows)
        of_layers = rows_of_layers(rows, layers), self.weight.mT
        torch.baddbmm(self.bias[:, None], *of_layers, out=rows_of_layers(self.both, layers))
        gate, transform = self.both[..., :size].sigmoid_(), self.both[..., size:].relu_()
        output = torch.lerp(rows, transform, gate, out=SCRATCH.take(rows.shape, rows))
        self.rows, self.gate, self.transform, self.output = rows, gate, transform, output
        return output

    def backward(self, gradient: Tensor) -> Tensor:
        """Return dL/dx, which overwrites the gradient g = dL/dy.

            dL/dh = g * t,    dL/dx directly = g * (1 - t),    dL/d(x W' + b') = g * (1 - t) * (y - x),

        The last holds because the sigmoid's derivative is t * (1 - t) and t * (h - x) = y - x.
        """
        layers = len(self.weight)
        to_transform = self.gate.mul_(gradient)
        to_features = torch.sub(gradient, to_transform, out=gradient)
        # The backward of the relu in place; a product with the mask `transform > 0` takes five times as long.
        torch.ops.aten.threshold_backward.grad_input(to_transform, self.transform, 0, grad_input=self.transform)
        to_gate = torch.sub(self.output, self.rows, out=self.output)
        if torch.compiler.is_compiling():
            # A compiler takes no `out=` with gaps between its rows, and fuses the copy.
            self.gate.copy_(to_gate * to_features)
        else:
            torch.mul(to_gate, to_features, out=self.gate)
        # The gate and the transform hold their own gradients now.
        self.gradients = _to_parameters(self.both, self.rows, layers)
        rows_of_layers(to_features, layers).baddbmm_(rows_of_layers(self.both, layers), self.weight)
        return to_features


_PASSES: dict[type[nn.Module], Callable[..., Any]] = {
    Linear: _LinearPass,
    nn.LeakyReLU: _LeakyReLUPass,
    Highway: _HighwayPass,
}


def normalize_(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Scale rows `[..., f]` to length 1 in place, as `unit_vectors`; return them and the reciprocal lengths."""
    squares = torch.mul(rows, rows, out=SCRATCH.take(rows.shape, rows))
    reciprocal = squares.sum(dim=-1, keepdim=True).add_(NORM_EPSILON**2).rsqrt_()
    return rows.mul_(reciprocal), reciprocal


def normalize_gradient_(gradient: Tensor, unit: Tensor, reciprocal: Tensor) -> Tensor:
    """Turn the gradient g with respect to u = x / |x| into that of x, (g - (g · u) u) / |x|, in place."""
    along = torch.mul(gradient, unit, out=SCRATCH.take(unit.shape, unit)).sum(dim=-1, keepdim=True)
    return gradient.addcmul_(unit, along, value=-1).mul_(reciprocal)
