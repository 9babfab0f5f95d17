"""Layers of the small networks, as kernels compute them of a tile of rows whose weights are on chip."""

from collections.abc import Iterable

import torch
import triton
import triton.language as tl
from torch import Tensor

from alignattn.attention.alignment.networks import Linear
from alignattn.attention.kernels.choice import width_of_tile

BLOCK_ROWS = 16
"""Rows that are worked on at once: compiled for an H100, with 64 features and eight warps, more of them spill."""
WARPS = 8
NARROWEST = 64
"""Features of a tile: of fewer the compiler keeps the weights in registers, and a thread's spill by a kilobyte."""
PROGRAMS = 264
"""Of all calls: two for each of the 132 multiprocessors of an H100, as many as have their weights on one at TF32."""


def grid_of(features: Tensor) -> tuple[int, int]:
    """Return the programs of each call of features `[C, ..., d]`."""
    calls, rows = features.shape[0], features[0].numel() // features.shape[-1]
    return calls, min(triton.cdiv(rows, BLOCK_ROWS), max(1, PROGRAMS // calls))


def width_of_rows(size: int) -> int:
    """Return the columns of a tile of rows of so many features."""
    return max(NARROWEST, width_of_tile(size))


def parameters_of(linears: Iterable[Linear], features: Tensor, layers: slice) -> list[Tensor]:
    """Return weights and biases of linear layers in float32, whatever type the features have."""
    in_full = features.new_empty(0, dtype=torch.float32)
    return [tensor.contiguous() for one in linears for tensor in one.parameters_for(in_full, layers)]


@triton.jit
def load_matrix(weight, rows, columns, row_count, column_count):
    """Load a matrix `[row_count, column_count]`, 0 beyond it."""
    there = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    return tl.load(weight + rows[:, None] * column_count + columns[None, :], mask=there, other=0.0)


@triton.jit
def load_vector(values, places, count):
    """Load `[count]` numbers, 0 beyond them."""
    return tl.load(values + places, mask=places < count, other=0.0)


@triton.jit
def load_linear(weight, bias, layer, outputs, inputs, output_count, input_count):
    """Load a layer's weight `[output_count, input_count]` and bias of a linear map that each layer has."""
    weight += layer * output_count * input_count
    return (
        load_matrix(weight, outputs, inputs, output_count, input_count),
        load_vector(bias + layer * output_count, outputs, output_count),
    )


@triton.jit
def load_highway(weight, bias, layer, columns, size):
    """Load a layer's weight and bias of the gate, and those of the transform."""
    gate_weight, gate_bias = load_linear(weight, bias, 2 * layer, columns, columns, size, size)
    transform_weight, transform_bias = load_linear(weight, bias, 2 * layer + 1, columns, columns, size, size)
    return gate_weight, gate_bias, transform_weight, transform_bias


@triton.jit
def store_matrix(to, values, rows, columns, row_count, column_count):
    """Write what of a tile lies in a matrix `[row_count, column_count]`."""
    there = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    tl.store(to + rows[:, None] * column_count + columns[None, :], values, mask=there)


@triton.jit
def linear(rows, weight, bias, PRECISION: tl.constexpr):  # noqa: N803
    """Return x Wᵀ + b."""
    return tl.dot(rows, tl.trans(weight), input_precision=PRECISION) + bias[None, :]


@triton.jit
def leaky(values, SLOPE: tl.constexpr):  # noqa: N803
    """Return the leaky ReLU."""
    return tl.where(values > 0, values, SLOPE * values)


@triton.jit
def to_leaky(gradient, result, SLOPE: tl.constexpr):  # noqa: N803
    """Return the gradient in what the leaky ReLU was given, of its result."""
    return gradient * tl.where(result > 0, 1.0, SLOPE)


@triton.jit
def highway(rows, gate_weight, gate_bias, transform_weight, transform_bias, PRECISION: tl.constexpr):  # noqa: N803
    """Return the gate, the transform and the output of `..alignment.networks.highway`."""
    gate = tl.sigmoid(linear(rows, gate_weight, gate_bias, PRECISION))
    transform = tl.maximum(linear(rows, transform_weight, transform_bias, PRECISION), 0.0)
    return gate, transform, rows + gate * (transform - rows)


@triton.jit
def to_highway(
    gradient,
    rows,
    gate_weight,
    transform_weight,
    gate,
    transform,
    output,
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Return the gradients in the rows, and before the sigmoid and the ReLU, as `highway_gradient` does."""
    to_transform = tl.where(transform > 0, gradient * gate, 0.0)
    to_rows = gradient * (1.0 - gate)
    to_gate = to_rows * (output - rows)
    to_rows += tl.dot(to_gate, gate_weight, input_precision=PRECISION)
    to_rows += tl.dot(to_transform, transform_weight, input_precision=PRECISION)
    return to_rows, to_gate, to_transform
