"""The adversary's discriminator and its loss, forward and backward, in one kernel.

A program takes every so many tiles of the rows of one attention call, queries and keys alike, and holds the networks'
weights on chip: a row is read once, and its gradient, reversed, written once. What the tiles add to the weights'
gradient and to the loss stays in the program's registers and is written down at its end, for PyTorch to sum over
programs: there are no atomics, so that a step is the same each time.

Arithmetic, for a row of d features (hidden layer h): two products of d × d and one of d × h forward, as many backward
in the row and as many in the weights, 12 d² + 6 d h operations in all, 55,000 at d = 64 and h = 16. Memory: 8 d bytes
a row in float32, 512 at d = 64, half of that in 16 bits, and a program's 2 d² + d h sums once. That is 108 operations a
byte, or 216, where an H100 has 148 for each byte it reads (495 TFLOP/s of TF32 at 3.35 TB/s): in float32 at `high` and
`medium` precision (`torch.set_float32_matmul_precision`) memory is the limit, else arithmetic, and so at `highest`,
with three times the products. By the data sheet: nothing was measured on a GPU yet. Compiled for one
(`benchmarks/registers.py`), the weights take 164 KB of shared memory, which is why a GPU has no wider one; the
interpreter takes 128.

Queries and keys come in the projections' own order and type, and stacked: that copy is not spared.
"""

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from alignattn.attention.alignment.networks import LEAKY_SLOPE, Discriminator
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
    load_vector,
    parameters_of,
    store_matrix,
    to_highway,
    to_leaky,
    width_of_rows,
)
from alignattn.attention.kernels.operator import operator


@triton.jit
def _losses(
    rows,
    weight,
    highway_weight,
    highway_bias,
    first_weight,
    first_bias,
    second_weight,
    second_bias,
    to_rows,
    sums,
    calls_a_layer,
    length,
    heads,
    size,
    hidden_size,
    size_of_sums,
    SLOPE: tl.constexpr,  # noqa: N803
    HAS_GRADIENT: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    HIDDEN: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Write a program's share of the loss, the accuracy and the gradient in the weights, and the rows' gradient.

    Names are those of `..alignment.networks.highway_gradient`. The first half of a call's `length` rows are queries.
    """
    call = tl.program_id(0)
    layer = call // calls_a_layer
    columns = tl.arange(0, WIDTH)
    units = tl.arange(0, HIDDEN)
    is_column = columns < size
    is_unit = units < hidden_size

    gate_weight, gate_bias, transform_weight, transform_bias = load_highway(
        highway_weight, highway_bias, layer, columns, size
    )
    first, bias_of_first = load_linear(first_weight, first_bias, layer, units, columns, hidden_size, size)
    second = load_vector(second_weight + layer * hidden_size, units, hidden_size)
    bias_of_second = tl.load(second_bias + layer)

    losses = tl.zeros([BLOCK], tl.float32)
    hits = tl.zeros([BLOCK], tl.float32)
    to_second_bias = tl.zeros([BLOCK], tl.float32)
    to_second = tl.zeros([HIDDEN], tl.float32)
    to_first = tl.zeros([HIDDEN, WIDTH], tl.float32)
    to_first_bias = tl.zeros([HIDDEN], tl.float32)
    to_gate_weight = tl.zeros([WIDTH, WIDTH], tl.float32)
    to_transform_weight = tl.zeros([WIDTH, WIDTH], tl.float32)
    to_gate_bias = tl.zeros([WIDTH], tl.float32)
    to_transform_bias = tl.zeros([WIDTH], tl.float32)
    for tile in range(tl.program_id(1), tl.cdiv(length, BLOCK), tl.num_programs(1)):
        index = tile * BLOCK + tl.arange(0, BLOCK)
        is_row = index < length
        row = call.to(tl.int64) * length + index
        places = row[:, None] * size + columns[None, :]
        there = is_row[:, None] & is_column[None, :]
        x = tl.load(rows + places, mask=there, other=0.0).to(tl.float32)
        share = tl.load(weight + row // heads, mask=is_row, other=0.0)

        gate, transform, output = highway(x, gate_weight, gate_bias, transform_weight, transform_bias, PRECISION)
        hidden = leaky(linear(output, first, bias_of_first, PRECISION), SLOPE)
        logits = tl.sum(hidden * second[None, :], axis=1) + bias_of_second
        sign = tl.where(index < length // 2, -1.0, 1.0)
        against = sign * logits
        losses += share * (tl.maximum(against, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(against))))
        hits += tl.where(against < 0, share, 0.0)

        if HAS_GRADIENT:
            to_logits = sign * tl.sigmoid(against) * share
            to_hidden = to_leaky(to_logits[:, None] * second[None, :], hidden, SLOPE)
            to_output = tl.dot(to_hidden, first, input_precision=PRECISION)
            to_x, to_gate, to_transform = to_highway(
                to_output, x, gate_weight, transform_weight, gate, transform, output, PRECISION
            )
            tl.store(to_rows + places, -to_x, mask=there)
            to_second_bias += to_logits
            to_second += tl.sum(to_logits[:, None] * hidden, axis=0)
            to_first += tl.dot(tl.trans(to_hidden), output, input_precision=PRECISION)
            to_first_bias += tl.sum(to_hidden, axis=0)
            to_gate_weight += tl.dot(tl.trans(to_gate), x, input_precision=PRECISION)
            to_transform_weight += tl.dot(tl.trans(to_transform), x, input_precision=PRECISION)
            to_gate_bias += tl.sum(to_gate, axis=0)
            to_transform_bias += tl.sum(to_transform, axis=0)

    sums += (call.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)) * size_of_sums
    tl.store(sums, tl.sum(losses, axis=0))
    tl.store(sums + 1, tl.sum(hits, axis=0))
    if HAS_GRADIENT:
        sums += 2
        store_matrix(sums, to_gate_weight, columns, columns, size, size)
        store_matrix(sums + size * size, to_transform_weight, columns, columns, size, size)
        sums += 2 * size * size
        tl.store(sums + columns, to_gate_bias, mask=is_column)
        tl.store(sums + size + columns, to_transform_bias, mask=is_column)
        sums += 2 * size
        store_matrix(sums, to_first, units, columns, hidden_size, size)
        sums += hidden_size * size
        tl.store(sums + units, to_first_bias, mask=is_unit)
        tl.store(sums + hidden_size + units, to_second, mask=is_unit)
        tl.store(sums + 2 * hidden_size, tl.sum(to_second_bias, axis=0))


def _results(features: Tensor, parameters: list[Tensor], has_gradient: bool) -> tuple[Tensor, Tensor]:
    """Memory for the rows' gradient and for the programs' sums."""
    count = sum(tensor[0].numel() for tensor in parameters) if has_gradient else 0
    # The scale that keeps a gradient from float16's smallest numbers comes after it.
    dtype = torch.float32 if features.dtype == torch.float16 else features.dtype
    to_features = features.new_empty(features.shape if has_gradient else (0,), dtype=dtype)
    return to_features, features.new_empty(*grid_of(features), 2 + count, dtype=torch.float32)


@operator("discriminate")
def _discriminate(
    features: Tensor, weight: Tensor, parameters: list[Tensor], has_gradient: bool
) -> tuple[Tensor, Tensor]:
    features, weight = features.contiguous(), weight.contiguous()
    to_features, sums = _results(features, parameters, has_gradient)
    calls, heads, size = features.shape[0], *features.shape[-2:]
    layers, hidden_size, _ = parameters[2].shape
    _losses[sums.shape[:2]](
        features,
        weight,
        *parameters,
        to_features,
        sums,
        calls // layers,
        features[0].numel() // size,
        heads,
        size,
        hidden_size,
        sums.shape[-1],
        SLOPE=LEAKY_SLOPE,
        HAS_GRADIENT=has_gradient,
        BLOCK=BLOCK_ROWS,
        WIDTH=width_of_rows(size),
        HIDDEN=width_of_tile(hidden_size),
        PRECISION=precision(),
        num_warps=WARPS,
    )
    return to_features, sums


@_discriminate.register_fake
def _of_shapes(features: Tensor, weight: Tensor, parameters: list[Tensor], has_gradient: bool) -> tuple[Tensor, Tensor]:
    return _results(features, parameters, has_gradient)


class _Discriminated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, has_gradient: bool, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        to_features, sums = _discriminate(features, weight, list(parameters), has_gradient)
        counts = [tensor[0].numel() for tensor in parameters]
        losses, hits, *to_parameters = sums.sum(dim=1).split([1, 1, *counts] if has_gradient else [1, 1], dim=1)
        if has_gradient:
            ctx.save_for_backward(to_features, *to_parameters)
            ctx.shapes = [tensor.shape for tensor in parameters]
            ctx.dtype = features.dtype
        losses, hits = losses.flatten(), hits.flatten()
        ctx.mark_non_differentiable(hits)
        return losses, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        scale = grad_outputs[0]
        to_features, *to_parameters = ctx.saved_tensors
        scaled = (gradient * scale[:, None] for gradient in to_parameters)
        of_layers = [
            gradient.view(shape[0], -1, gradient.shape[1]).sum(dim=1).view(shape)
            for gradient, shape in zip(scaled, ctx.shapes, strict=True)
        ]
        to_given = torch.empty_like(to_features, dtype=ctx.dtype)
        # Into the type of the features at once: of the gradient in float32 nothing is kept.
        torch.mul(to_features, scale.view(-1, 1, 1, 1, 1, 1), out=to_given)
        return to_given, None, None, *of_layers


def discriminated(features: Tensor, weight: Tensor, network: Discriminator, layers: slice) -> tuple[Tensor, Tensor]:
    """Return the discriminator's loss in telling queries from keys, and the weight of what it tells, of calls, `[C]`.

    The discriminator descends the loss, queries and keys ascend it.

    Args:
        features: queries and keys `[C, 2, B, n, H, d]`, float32 or of 16 bits, with as many calls in succession of each
            layer.
        weight: of each token, `[1 or C, 1 or 2, B, n]`.
        network: of one output.
        layers: whose networks.
    """
    of_highway, first, _, second = cast(Any, network)
    parameters = parameters_of((of_highway.gate_and_transform, first, second), features, layers)
    has_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (features, *parameters))
    weight = weight.expand(features.shape[:4])
    found: tuple[Tensor, Tensor] = _Discriminated.apply(features, weight, has_gradient, *parameters)
    return found
