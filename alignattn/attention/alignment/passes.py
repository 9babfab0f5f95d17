"""Explicit forward and backward passes of the alignment networks, which overwrite tensors that they no longer need.

Autograd keeps every intermediate result and allocates it anew. On a GPU that is memory and traffic; on a CPU, at the
size of an attention head, the first access to new memory takes longer than the arithmetic. There the memory is reused.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

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


Backward = Callable[[Tensor], tuple[Tensor, list[Tensor]]]
"""Passes the gradient of a result back: it overwrites the gradient, and returns those of the features and of the
parameters, `[l, …]`."""


def network_pass(network: nn.Sequential, rows: Tensor, layers: slice) -> tuple[Tensor, Backward]:
    """Map features by a network, and return how to pass a gradient back, both within one frame of scratch memory.

    Args:
        network: a `Discriminator` or `Navigator`.
        rows: features `[l * blocks, rows, in]` of l consecutive layers, which are not overwritten; the blocks of a
            layer are consecutive.
        layers: these layers.

    Returns:
        `[l * blocks, rows, out]`, which may be overwritten, and the backward pass.
    """
    backwards: list[Backward] = []
    for part in network:
        rows, backward = _PASSES[type(part)](part, rows, layers)
        backwards.append(backward)

    def backward_of_network(gradient: Tensor) -> tuple[Tensor, list[Tensor]]:
        to_parameters: list[Tensor] = []
        for backward in reversed(backwards):
            gradient, of_part = backward(gradient)
            to_parameters = of_part + to_parameters
        return gradient, to_parameters

    return rows, backward_of_network


def has_passes(*networks: nn.Module) -> bool:
    """Return whether every layer of the networks has passes here; a parametrized or wrapped one has none."""
    inner = (layer for network in networks for layer in network.modules() if layer is not network)
    return all(type(layer) in _PASSES for layer in inner)


def _to_parameters(gradient: Tensor, rows: Tensor, layers: int) -> list[Tensor]:
    """Return the gradients `[l, out, in]` of weights and `[l, out]` of biases."""
    # A sum of products, one for each block: a GPU would compute one product over all rows of a layer in few processors.
    to_weight = (gradient.mT @ rows).unflatten(0, (layers, -1)).sum(dim=1)
    return [to_weight, rows_of_layers(gradient, layers).sum(dim=1)]


def _linear_pass(layer: Linear, rows: Tensor, layers: slice) -> tuple[Tensor, Backward]:
    weight, bias = layer.parameters_for(rows, layers)
    count, size, _ = weight.shape
    result = SCRATCH.take((*rows.shape[:2], size), rows)
    torch.baddbmm(bias[:, None], rows_of_layers(rows, count), weight.mT, out=rows_of_layers(result, count))

    def backward(gradient: Tensor) -> tuple[Tensor, list[Tensor]]:
        to_parameters = _to_parameters(gradient, rows, count)
        to_rows = SCRATCH.take(rows.shape, gradient)
        torch.bmm(rows_of_layers(gradient, count), weight, out=rows_of_layers(to_rows, count))
        return to_rows, to_parameters

    return result, backward


def _leaky_relu_pass(layer: nn.LeakyReLU, rows: Tensor, layers: slice) -> tuple[Tensor, Backward]:
    slope = layer.negative_slope
    result = nn.functional.leaky_relu_(rows, slope)

    def backward(gradient: Tensor) -> tuple[Tensor, list[Tensor]]:
        return torch.ops.aten.leaky_relu_backward.grad_input(gradient, result, slope, True, grad_input=gradient), []

    return result, backward


def _highway_pass(layer: Highway, rows: Tensor, layers: slice) -> tuple[Tensor, Backward]:
    """With the gate t = sigmoid(x W' + b') and the transform h = relu(x W" + b"), y = x + t * (h - x).

    With g = dL/dy,

        dL/dh = g * t,    dL/dx directly = g * (1 - t),    dL/d(x W' + b') = g * (1 - t) * (y - x),

    where the last holds because the sigmoid's derivative is t * (1 - t) and t * (h - x) = y - x.
    """
    weight, bias = layer.gate_and_transform.parameters_for(rows, layers)
    count, size = len(weight), rows.shape[-1]
    both = SCRATCH.take((*rows.shape[:2], 2 * size), rows)
    torch.baddbmm(bias[:, None], rows_of_layers(rows, count), weight.mT, out=rows_of_layers(both, count))
    gate, transform = both[..., :size].sigmoid_(), both[..., size:].relu_()
    output = torch.lerp(rows, transform, gate, out=SCRATCH.take(rows.shape, rows))

    def backward(gradient: Tensor) -> tuple[Tensor, list[Tensor]]:
        to_transform = gate.mul_(gradient)
        to_rows = torch.sub(gradient, to_transform, out=gradient)
        # The backward of the relu in place; a product with the mask `transform > 0` takes five times as long.
        torch.ops.aten.threshold_backward.grad_input(to_transform, transform, 0, grad_input=transform)
        to_gate = torch.sub(output, rows, out=output)
        if torch.compiler.is_compiling():
            # A compiler takes no `out=` with gaps between its rows, and fuses the copy.
            gate.copy_(to_gate * to_rows)
        else:
            torch.mul(to_gate, to_rows, out=gate)
        # The gate and the transform hold their own gradients now.
        to_parameters = _to_parameters(both, rows, count)
        rows_of_layers(to_rows, count).baddbmm_(rows_of_layers(both, count), weight)
        return to_rows, to_parameters

    return output, backward


_PASSES: dict[type[nn.Module], Callable[..., tuple[Tensor, Backward]]] = {
    Linear: _linear_pass,
    nn.LeakyReLU: _leaky_relu_pass,
    Highway: _highway_pass,
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
