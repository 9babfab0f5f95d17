"""Entropic optimal transport with no matrix of n × n in memory: the iterations of `..alignment.sinkhorn`, tile by tile.

A program has one head. Half an iteration goes over the tiles of one side, forms each tile's part of the kernel matrix
anew from queries and keys, a product and an exponential, and leaves a scaling a token, which the other half reads; at
no other time does anything leave the chip. The scalings are those of `sinkhorn` step for step: the same ε, the same
relaxation and bounds. A second kernel moves keys to queries and queries to keys by the plan, a program a tile, which is
the gradient and the marginals at once. There are no atomics, so that a step is the same each time.

Arithmetic, for n tokens of d features and t iterations: 2 t passes over the pairs, 2 d operations and an exponential a
pair each, and two more of 4 d: with the default 14 n² 64 d operations and 30 n² exponentials, for a head of n = 128 and
d = 64 67 million and half a million, 0.14 µs of an H100's tensor cores at TF32 (495 TFLOP/s; three times that at
`highest` precision) and 0.13 µs of what raises to a power (16 a clock on 132 multiprocessors, 1.75 GHz). With s kernel
matrices in memory `sinkhorn` moves 4 n² (6 s + 2 t) bytes instead, 3.4 MB at its 4, 1.0 µs (3.35 TB/s). So arithmetic
is the limit, and products the most of it at `highest`. Memory: queries and keys are read from it once, as long as a
head's 8 n d bytes fit the first-level cache (64 KB there; 256 KB at n = 512: then they come from the second), the
gradient is written once, and a few numbers a token. By the data sheet: nothing was measured on a GPU yet. Compiled for
one no register is spilled, at 249 to 254 of 255: two programs a multiprocessor.

Vectors come of length 1, or centred, and head by head, as `sinkhorn` takes them: that copy is not spared.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from alignattn.attention.alignment.sinkhorn import (
    LARGEST_SCALING,
    PLAIN,
    RELAXATION,
    SMALLEST_RATIO,
    first_epsilon,
    is_real,
    schedule,
)
from alignattn.attention.derivatives import once_differentiable
from alignattn.attention.kernels.choice import precision, width_of_tile
from alignattn.attention.kernels.operator import operator

BLOCKS = {16: 32, 32: 32, 64: 32, 128: 16}
"""Tokens of a tile, by the width of a head: compiled for an H100 no more of them leave every register where it is."""
SMALLEST_BLOCK = 16
WARPS = 4
STAGES = 2
"""Tiles in flight, likewise."""
LOWEST = tl.constexpr(-1e30)
"""A column's exponent where it is none: finite, so that a tile without a real token gives no NaN."""


@triton.jit
def _tile_of(vectors, tile, length, features, BLOCK: tl.constexpr, WIDTH: tl.constexpr):  # noqa: N803
    """Return the tokens `[BLOCK]` of a tile of a head, which of them there are, and their vectors."""
    tokens = tile * BLOCK + tl.arange(0, BLOCK)
    columns = tl.arange(0, WIDTH)
    within = tokens < length
    there = within[:, None] & (columns < features)[None, :]
    return tokens, within, tl.load(vectors + tokens[:, None] * features + columns[None, :], mask=there, other=0.0)


@triton.jit
def _exponents(
    own,
    vectors,
    offsets,
    tile,
    length,
    features,
    scale,
    BLOCK: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Return a tile's tokens of the other side, their vectors, and the kernel's logarithm but for the own offset."""
    tokens, within, theirs = _tile_of(vectors, tile, length, features, BLOCK, WIDTH)
    products = tl.dot(own, tl.trans(theirs), input_precision=PRECISION)
    offset = tl.load(offsets + tokens, mask=within, other=LOWEST)
    return tokens, within, theirs, products * scale + offset[None, :]


@triton.jit
def _entries(exponents, offset):
    # None is above 1, the largest of its row; formed from the other side it might be, by rounding.
    return tl.exp(tl.minimum(exponents + offset[:, None], 0.0))


@triton.jit
def _scale_side(
    vectors,
    offsets,
    scalings,
    their_vectors,
    their_offsets,
    their_scalings,
    share,
    relaxation,
    length,
    features,
    scale,
    SMALLEST: tl.constexpr,  # noqa: N803
    LARGEST: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Scale the tokens of one side of a head, half an iteration."""
    for tile in range(0, tl.cdiv(length, BLOCK)):
        tokens, within, own = _tile_of(vectors, tile, length, features, BLOCK, WIDTH)
        offset = tl.load(offsets + tokens, mask=within, other=LOWEST)
        before = tl.load(scalings + tokens, mask=within, other=0.0)
        sums = tl.zeros([BLOCK], tl.float32)
        for other in range(0, tl.cdiv(length, BLOCK)):
            others, are_there, _, exponents = _exponents(
                own, their_vectors, their_offsets, other, length, features, scale, BLOCK, WIDTH, PRECISION
            )
            scaling = tl.load(their_scalings + others, mask=are_there, other=0.0)
            sums += tl.sum(_entries(exponents, offset) * scaling[None, :], axis=1)
        ratio = tl.maximum(sums * before / share, SMALLEST)
        after = tl.minimum(tl.exp(-relaxation * tl.log(ratio)) * before, LARGEST)
        # Several threads have read what one of them writes.
        tl.debug_barrier()
        tl.store(scalings + tokens, after, mask=within)
    tl.debug_barrier()


@triton.jit
def _scale(
    vectors,
    real_rows,
    epsilons,
    rows_a_column,
    offsets,
    scalings,
    factor,
    rounds,
    length,
    heads,
    features,
    PLAIN_UPDATE: tl.constexpr,  # noqa: N803
    RELAXED_UPDATE: tl.constexpr,  # noqa: N803
    SMALLEST: tl.constexpr,  # noqa: N803
    LARGEST: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Write the scalings of a head's rows and columns, and the rows' offsets, as `sinkhorn` at one ε.

    Columns come with their offsets, the potential by ε, and scaled by 1.
    """
    group = tl.program_id(0)
    sample = (group // heads).to(tl.int64)
    scale = factor / tl.load(epsilons + group)
    share = tl.load(rows_a_column + sample)
    start = group.to(tl.int64) * length
    to_columns = tl.num_programs(0).to(tl.int64) * length
    queries = vectors + start * features
    keys = queries + to_columns * features
    row_offsets, row_scalings = offsets + start, scalings + start
    column_offsets, column_scalings = row_offsets + to_columns, row_scalings + to_columns
    for tile in range(0, tl.cdiv(length, BLOCK)):
        tokens, within, own = _tile_of(queries, tile, length, features, BLOCK, WIDTH)
        largest = tl.full([BLOCK], LOWEST, tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        for other in range(0, tl.cdiv(length, BLOCK)):
            _, _, _, exponents = _exponents(
                own, keys, column_offsets, other, length, features, scale, BLOCK, WIDTH, PRECISION
            )
            grown = tl.maximum(largest, tl.max(exponents, axis=1))
            total = total * tl.exp(largest - grown) + tl.sum(tl.exp(exponents - grown[:, None]), axis=1)
            largest = grown
        is_row = tl.load(real_rows + sample * length + tokens, mask=within, other=0) != 0
        tl.store(row_offsets + tokens, -largest, mask=within)
        tl.store(row_scalings + tokens, tl.where(is_row, 1.0 / total, 0.0), mask=within)
    tl.debug_barrier()
    for half in range(1, 2 * rounds):
        is_column = half % 2 == 1
        is_plain = (half == 1) | (half == 2 * rounds - 1)
        _scale_side(
            tl.where(is_column, keys, queries),
            tl.where(is_column, column_offsets, row_offsets),
            tl.where(is_column, column_scalings, row_scalings),
            tl.where(is_column, queries, keys),
            tl.where(is_column, row_offsets, column_offsets),
            tl.where(is_column, row_scalings, column_scalings),
            tl.where(is_column, share, 1.0),
            tl.where(is_plain, PLAIN_UPDATE, RELAXED_UPDATE),
            length,
            features,
            scale,
            SMALLEST,
            LARGEST,
            BLOCK,
            WIDTH,
            PRECISION,
        )


@triton.jit
def _move(
    vectors,
    epsilons,
    offsets,
    scalings,
    moved,
    marginals,
    factor,
    length,
    features,
    BLOCK: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Write π k and the row sums of the plan π for a tile of queries, πᵀ q and the column sums for one of keys."""
    groups = tl.num_programs(0) // 2
    group = tl.program_id(0)
    scale = factor / tl.load(epsilons + group % groups)
    start = group.to(tl.int64) * length
    to_other = tl.where(group < groups, groups, -groups).to(tl.int64) * length
    their_vectors = vectors + (start + to_other) * features
    their_offsets, their_scalings = offsets + start + to_other, scalings + start + to_other
    tokens, within, own = _tile_of(vectors + start * features, tl.program_id(1), length, features, BLOCK, WIDTH)
    own_offset = tl.load(offsets + start + tokens, mask=within, other=LOWEST)
    own_scaling = tl.load(scalings + start + tokens, mask=within, other=0.0)
    sums = tl.zeros([BLOCK], tl.float32)
    received = tl.zeros([BLOCK, WIDTH], tl.float32)
    for other in range(0, tl.cdiv(length, BLOCK)):
        others, are_there, theirs, exponents = _exponents(
            own, their_vectors, their_offsets, other, length, features, scale, BLOCK, WIDTH, PRECISION
        )
        scaling = tl.load(their_scalings + others, mask=are_there, other=0.0)
        shares = _entries(exponents, own_offset) * scaling[None, :]
        sums += tl.sum(shares, axis=1)
        received += tl.dot(shares, theirs, input_precision=PRECISION)
    columns = tl.arange(0, WIDTH)
    there = within[:, None] & (columns < features)[None, :]
    places = start * features + tokens[:, None] * features + columns[None, :]
    tl.store(moved + places, received * own_scaling[:, None], mask=there)
    tl.store(marginals + start + tokens, sums * own_scaling, mask=within)


@operator("sinkhorn")
def _sinkhorn(
    vectors: Tensor, probability: Tensor, factor: float, epsilon: float, anneal_from: float, iterations: int
) -> tuple[Tensor, Tensor]:
    vectors = vectors.contiguous()
    _, samples, heads, length, features = vectors.shape
    groups = samples * heads
    width = width_of_tile(features)
    block = min(BLOCKS[width], max(SMALLEST_BLOCK, triton.next_power_of_2(length)))
    options = {"BLOCK": block, "WIDTH": width, "PRECISION": precision()}
    options |= {"num_warps": WARPS, "num_stages": STAGES}
    real_rows, real_columns = (is_real(share) for share in probability)
    rows_a_column = real_rows.sum(dim=-1) / real_columns.sum(dim=-1)
    norms = vectors.norm(dim=-1).amax(dim=-1)
    first = first_epsilon(factor * norms[0] * norms[1], epsilon, anneal_from)
    offsets, scalings = vectors.new_empty(2, 2, samples, heads, length).unbind()
    potential = vectors.new_zeros(samples, heads, length)
    real_rows = real_rows.to(torch.int8)
    for progress, rounds in schedule(iterations):
        current = first ** (1 - progress) * epsilon**progress
        offsets[1] = torch.where(real_columns[:, None], potential / current[..., None], LOWEST.value)
        scalings[1] = 1
        _scale[(groups,)](
            *(vectors, real_rows, current, rows_a_column, offsets, scalings, factor, rounds),
            *(length, heads, features),
            PLAIN_UPDATE=PLAIN,
            RELAXED_UPDATE=RELAXATION,
            SMALLEST=SMALLEST_RATIO,
            LARGEST=LARGEST_SCALING,
            **options,
        )
        potential = potential + current[..., None] * scalings[1].log()
    scalings[0] *= probability[0][:, None]
    moved, marginals = torch.empty_like(vectors), torch.empty_like(scalings)
    _move[(2 * groups, triton.cdiv(length, block))](
        vectors, current, offsets, scalings, moved, marginals, factor, length, features, **options
    )
    return moved, marginals


@_sinkhorn.register_fake
def _of_shapes(vectors: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return vectors.new_empty(vectors.shape), vectors.new_empty(vectors.shape[:-1])


class _Transported(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, *numbers: Any) -> tuple[Tensor, Tensor]:
        moved, marginals = _sinkhorn(vectors, *numbers)
        ctx.save_for_backward(moved)
        ctx.mark_non_differentiable(marginals)
        return (vectors[0] * moved[0]).sum(dim=(-2, -1)), marginals

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (moved,) = ctx.saved_tensors
        return moved * grad_outputs[0][..., None, None], *[None] * 5


def transported(
    vectors: Tensor,
    probability: tuple[Tensor, Tensor],
    *,
    factor: float,
    epsilon: float,
    anneal_from: float,
    iterations: int,
) -> tuple[Tensor, Tensor]:
    """Return Σ_ij π_ij q_i · k_j `[B, H]` for `sinkhorn`'s plan, whose gradient is π k and πᵀ q, and π's marginals.

    Args:
        vectors: q and k, float32 `[2, B, H, n, d]`, finite at padding too.
        probability: the marginals of rows and of columns, `[B, n]` each.
        factor: the cost of a pair is its product times -`factor`, up to terms of one token.
        epsilon: as for `sinkhorn`.
        anneal_from: likewise.
        iterations: likewise.

    Returns:
        The sum, and row and column sums of the plan, `[2, B, H, n]`, without gradient.
    """
    found: tuple[Tensor, Tensor] = _Transported.apply(
        vectors, torch.stack(probability), factor, epsilon, anneal_from, iterations
    )
    return found
