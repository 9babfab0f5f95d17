"""The vectors by which conditional transport moves queries and keys, forward and backward, in two kernels.

The same two kernels serve the navigator and the critic, which has a highway layer before and vectors of length 1: with
the weights of both a program would not keep to its registers. A program takes every so many tiles of the rows of one
attention call, queries and keys alike, in their own type, and holds a network's weights on chip. Nothing is kept of
what lies between row and vector: backward computes it again. What the tiles add to the weights' gradient stays in the
program's registers and is written down at its end, for PyTorch to sum over programs: there are no atomics, so that a
step is the same each time. The critic ascends what the rest descends: its gradient is reversed where it begins, and
again where it meets the row's, which is rounded there to the row's own type.

Arithmetic, for a row of d features (hidden layer h, vectors of f): forward two products of d × d (the critic's alone),
one of d × h and one of h × f, 4 d² + 4 d h + 4 h f operations for both networks, backward these again and as many in
the row and in the weights, 12 d² and more: 21,500 and 64,500 at d = 64, h = f = 16. Memory in bfloat16: 4 d + 8 f bytes
a row forward, 10 d + 8 f backward, the row's gradient being written and read once more between the networks. That is 56
and 84 operations a byte, where an H100 has 148 of TF32 for each byte it reads (495 TFLOP/s, 3.35 TB/s): memory is the
limit but at `highest` precision (`torch.set_float32_matmul_precision`), with three times the products. By the data
sheet: nothing was measured on a GPU yet.
"""

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from alignattn.attention.alignment.base import NORM_EPSILON
from alignattn.attention.alignment.networks import LEAKY_SLOPE, Discriminator, Navigator
from alignattn.attention.derivatives import once_differentiable
from alignattn.attention.kernels.choice import precision, width_of_tile
from alignattn.attention.kernels.layers import (
    BLOCK_ROWS,
    WARPS,
    grid_of,
    highway,
    leaky,
    linear,
    load_highway,
    load_linear,
    parameters_of,
    store_matrix,
    to_highway,
    to_leaky,
    width_of_rows,
)
from alignattn.attention.kernels.operator import operator

LINEAR_PARAMETERS = 4
"""Weights and biases of a network, without its highway layer's."""


@triton.jit
def _forward(
    rows,
    first_weight,
    first_bias,
    second_weight,
    second_bias,
    highway_weight,
    highway_bias,
    vectors,
    calls_a_layer,
    length,
    size,
    hidden_size,
    vector_size,
    IS_CRITIC: tl.constexpr,  # noqa: N803
    SLOPE: tl.constexpr,  # noqa: N803
    EPSILON: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    HIDDEN: tl.constexpr,  # noqa: N803
    VECTOR: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Write the vectors of a program's tiles of rows."""
    call = tl.program_id(0)
    layer = call // calls_a_layer
    columns, units, places = tl.arange(0, WIDTH), tl.arange(0, HIDDEN), tl.arange(0, VECTOR)
    first, of_first = load_linear(first_weight, first_bias, layer, units, columns, hidden_size, size)
    second, of_second = load_linear(second_weight, second_bias, layer, places, units, vector_size, hidden_size)
    if IS_CRITIC:
        gate_weight, gate_bias, transform_weight, transform_bias = load_highway(
            highway_weight, highway_bias, layer, columns, size
        )
    for tile in range(tl.program_id(1), tl.cdiv(length, BLOCK), tl.num_programs(1)):
        index = tile * BLOCK + tl.arange(0, BLOCK)
        is_row = (index < length)[:, None]
        row = (call.to(tl.int64) * length + index)[:, None]
        x = tl.load(rows + row * size + columns[None, :], mask=is_row & (columns < size)[None, :], other=0.0)
        x = x.to(tl.float32)
        if IS_CRITIC:
            _, _, x = highway(x, gate_weight, gate_bias, transform_weight, transform_bias, PRECISION)
        hidden = leaky(linear(x, first, of_first, PRECISION), SLOPE)
        output = linear(hidden, second, of_second, PRECISION)
        if IS_CRITIC:
            output = output * tl.rsqrt(tl.sum(output * output, axis=1) + EPSILON)[:, None]
        there = is_row & (places < vector_size)[None, :]
        tl.store(vectors + row * vector_size + places[None, :], output, mask=there)


@triton.jit
def _backward(
    rows,
    first_weight,
    first_bias,
    second_weight,
    second_bias,
    highway_weight,
    highway_bias,
    to_vectors,
    to_rows_so_far,
    to_rows,
    sums,
    calls_a_layer,
    length,
    size,
    hidden_size,
    vector_size,
    size_of_sums,
    IS_CRITIC: tl.constexpr,  # noqa: N803
    SLOPE: tl.constexpr,  # noqa: N803
    EPSILON: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    HIDDEN: tl.constexpr,  # noqa: N803
    VECTOR: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Write the gradient of a program's tiles of rows, and its share of that in the weights, in their order.

    The critic's begins the rows' gradient, the navigator's is added to it.
    """
    call = tl.program_id(0)
    layer = call // calls_a_layer
    columns, units, places = tl.arange(0, WIDTH), tl.arange(0, HIDDEN), tl.arange(0, VECTOR)
    first, of_first = load_linear(first_weight, first_bias, layer, units, columns, hidden_size, size)
    second, of_second = load_linear(second_weight, second_bias, layer, places, units, vector_size, hidden_size)
    to_first = tl.zeros([HIDDEN, WIDTH], tl.float32)
    to_first_bias = tl.zeros([HIDDEN], tl.float32)
    to_second = tl.zeros([VECTOR, HIDDEN], tl.float32)
    to_second_bias = tl.zeros([VECTOR], tl.float32)
    if IS_CRITIC:
        gate_weight, gate_bias, transform_weight, transform_bias = load_highway(
            highway_weight, highway_bias, layer, columns, size
        )
        to_gate_weight = tl.zeros([WIDTH, WIDTH], tl.float32)
        to_transform_weight = tl.zeros([WIDTH, WIDTH], tl.float32)
        to_gate_bias = tl.zeros([WIDTH], tl.float32)
        to_transform_bias = tl.zeros([WIDTH], tl.float32)
    for tile in range(tl.program_id(1), tl.cdiv(length, BLOCK), tl.num_programs(1)):
        index = tile * BLOCK + tl.arange(0, BLOCK)
        is_row = (index < length)[:, None]
        row = (call.to(tl.int64) * length + index)[:, None]
        of_row = is_row & (columns < size)[None, :]
        at_row = row * size + columns[None, :]
        x = tl.load(rows + at_row, mask=of_row, other=0.0).to(tl.float32)
        there = is_row & (places < vector_size)[None, :]
        gradient = tl.load(to_vectors + row * vector_size + places[None, :], mask=there, other=0.0)
        before = x
        if IS_CRITIC:
            gate, transform, before = highway(x, gate_weight, gate_bias, transform_weight, transform_bias, PRECISION)
        hidden = leaky(linear(before, first, of_first, PRECISION), SLOPE)
        if IS_CRITIC:
            output = linear(hidden, second, of_second, PRECISION)
            reciprocal = tl.rsqrt(tl.sum(output * output, axis=1) + EPSILON)[:, None]
            unit = output * reciprocal
            # Reversed: the critic ascends.
            gradient = reciprocal * (unit * tl.sum(gradient * unit, axis=1)[:, None] - gradient)
        to_second += tl.dot(tl.trans(gradient), hidden, input_precision=PRECISION)
        to_second_bias += tl.sum(gradient, axis=0)
        to_hidden = to_leaky(tl.dot(gradient, second, input_precision=PRECISION), hidden, SLOPE)
        to_first += tl.dot(tl.trans(to_hidden), before, input_precision=PRECISION)
        to_first_bias += tl.sum(to_hidden, axis=0)
        to_x = tl.dot(to_hidden, first, input_precision=PRECISION)
        if IS_CRITIC:
            to_x, to_gate, to_transform = to_highway(
                to_x, x, gate_weight, transform_weight, gate, transform, before, PRECISION
            )
            to_gate_weight += tl.dot(tl.trans(to_gate), x, input_precision=PRECISION)
            to_transform_weight += tl.dot(tl.trans(to_transform), x, input_precision=PRECISION)
            to_gate_bias += tl.sum(to_gate, axis=0)
            to_transform_bias += tl.sum(to_transform, axis=0)
            to_x = -to_x
        else:
            to_x += tl.load(to_rows_so_far + at_row, mask=of_row, other=0.0).to(tl.float32)
        tl.store(to_rows + at_row, to_x, mask=of_row)

    sums += (call.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * size_of_sums
    store_matrix(sums, to_first, units, columns, hidden_size, size)
    sums += hidden_size * size
    tl.store(sums + units, to_first_bias, mask=units < hidden_size)
    sums += hidden_size
    store_matrix(sums, to_second, places, units, vector_size, hidden_size)
    sums += vector_size * hidden_size
    tl.store(sums + places, to_second_bias, mask=places < vector_size)
    if IS_CRITIC:
        sums += vector_size
        store_matrix(sums, to_gate_weight, columns, columns, size, size)
        store_matrix(sums + size * size, to_transform_weight, columns, columns, size, size)
        sums += 2 * size * size
        tl.store(sums + columns, to_gate_bias, mask=columns < size)
        tl.store(sums + size + columns, to_transform_bias, mask=columns < size)


def _launched(features: Tensor, parameters: list[Tensor]) -> tuple[list[Tensor], tuple[int, ...], dict[str, Any]]:
    """Return what both kernels are given: pointers, calls of a layer and sizes, and constants."""
    layers, hidden_size, size = parameters[0].shape
    vector_size = parameters[2].shape[1]
    is_critic = len(parameters) > LINEAR_PARAMETERS
    # A navigator's kernel reads no highway: anything stands in its place.
    pointers = [features, *parameters, *([] if is_critic else parameters[:2])]
    options = {
        "IS_CRITIC": is_critic,
        "SLOPE": LEAKY_SLOPE,
        "EPSILON": NORM_EPSILON**2,
        "BLOCK": BLOCK_ROWS,
        "WIDTH": width_of_rows(size),
        "HIDDEN": width_of_tile(hidden_size),
        "VECTOR": width_of_tile(vector_size),
        "PRECISION": precision(),
        "num_warps": WARPS,
    }
    return pointers, (len(features) // layers, features[0].numel() // size, size, hidden_size, vector_size), options


def _vectors_like(features: Tensor, parameters: list[Tensor]) -> Tensor:
    return features.new_empty((*features.shape[:-1], parameters[2].shape[1]), dtype=torch.float32)


def _gradients_like(features: Tensor, parameters: list[Tensor]) -> tuple[Tensor, Tensor]:
    count = sum(tensor[0].numel() for tensor in parameters)
    return features.new_empty(features.shape), features.new_empty(*grid_of(features), count, dtype=torch.float32)


@operator("transport_vectors")
def _vectors(features: Tensor, parameters: list[Tensor]) -> Tensor:
    features = features.contiguous()
    vectors = _vectors_like(features, parameters)
    pointers, numbers, options = _launched(features, parameters)
    _forward[grid_of(features)](*pointers, vectors, *numbers, **options)
    return vectors


@operator("transport_vectors_backward")
def _to_rows(
    features: Tensor, parameters: list[Tensor], to_vectors: Tensor, so_far: Tensor | None
) -> tuple[Tensor, Tensor]:
    features, to_vectors = features.contiguous(), to_vectors.contiguous()
    to_features, sums = _gradients_like(features, parameters)
    pointers, numbers, options = _launched(features, parameters)
    # The critic's kernel begins the gradient and reads none so far: anything stands in its place.
    given = (to_vectors, to_features if so_far is None else so_far.contiguous(), to_features, sums)
    _backward[grid_of(features)](*pointers, *given, *numbers, sums.shape[-1], **options)
    return to_features, sums


@_vectors.register_fake
def _vectors_of_shapes(features: Tensor, parameters: list[Tensor]) -> Tensor:
    return _vectors_like(features, parameters)


@_to_rows.register_fake
def _gradients_of_shapes(
    features: Tensor, parameters: list[Tensor], to_vectors: Tensor, so_far: Tensor | None
) -> tuple[Tensor, Tensor]:
    return _gradients_like(features, parameters)


class _TransportVectors(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(features, *parameters)
        navigator, critic = list(parameters[:LINEAR_PARAMETERS]), list(parameters[LINEAR_PARAMETERS:])
        return _vectors(features, navigator), _vectors(features, critic)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        features, *parameters = ctx.saved_tensors
        to_navigated, to_unit = grad_outputs
        navigator, critic = parameters[:LINEAR_PARAMETERS], parameters[LINEAR_PARAMETERS:]
        to_features, of_critic = _to_rows(features, critic, to_unit, None)
        to_features, of_navigator = _to_rows(features, navigator, to_navigated, to_features)
        return to_features, *_by_parameter(of_navigator, navigator), *_by_parameter(of_critic, critic)


def _by_parameter(sums: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    of_layers = sums.view(len(parameters[0]), -1, sums.shape[-1]).sum(dim=1)
    shares = of_layers.split([tensor[0].numel() for tensor in parameters], dim=1)
    return [share.view_as(tensor) for share, tensor in zip(shares, parameters, strict=True)]


def transport_vectors(
    features: Tensor, navigator: Navigator, critic: Discriminator, layers: slice
) -> tuple[Tensor, Tensor]:
    """Return the navigator's vectors and the critic's, of length 1, float32 `[C, 2, B, n, H, f]`.

    The critic ascends what queries, keys and the navigator descend.

    Args:
        features: queries and keys `[C, 2, B, n, H, d]`, float32 or of 16 bits, with as many calls in succession of each
            layer.
        navigator: whose parameters are float32, as the critic's.
        critic: of as many outputs as the navigator.
        layers: whose networks.
    """
    of_navigator = [cast(Any, navigator)[0], cast(Any, navigator)[2]]
    of_highway, first, _, second = cast(Any, critic)
    linears = (*of_navigator, first, second, of_highway.gate_and_transform)
    found: tuple[Tensor, Tensor] = _TransportVectors.apply(features, *parameters_of(linears, features, layers))
    return found
