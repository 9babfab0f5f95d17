"""What conditional transport finds alike, and its gradient, in two kernels; names as in `..alignment.transport`.

A program has a tile of the tokens of one side of one head, goes over the tiles of the other side and keeps the scores
and products of the two on chip: nothing of n × n is ever in memory, and there is no longest sample. Both sides go by
the same code, for queries meet keys as keys meet queries. The first kernel leaves a token's log-sum-exp of its scores
and what it finds alike, two numbers; the second reads those of both sides and makes the gradient in s, t, u and v,
with no other program's result to wait for and nothing added in memory (no atomics, so that a step is the same each
time).

Arithmetic, for n tokens and f features of a head: two products of n × n × f a side in the first kernel and four in the
second, 24 n² f operations in all, beside 6 n² exponentials; two calls of attention with their backward take 28 n² f.
Memory: a side reads s and u once a kernel and writes their gradients once, 6 n f numbers, and a few of each token; the
other side's tiles come from the second-level cache. That is n multiplications a number: from n = 128 on arithmetic is
the limit, the products at `highest` precision (three of TF32 each), else the exponentials. By the data sheet:
nothing was measured on a GPU yet.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from alignattn.attention.derivatives import once_differentiable
from alignattn.attention.kernels.choice import precision, width_of_tile
from alignattn.attention.kernels.operator import operator

LARGEST_BLOCK = 32
"""Tokens of a tile: compiled for an H100 the gradient's kernel spills at 64 and not at 32."""
SMALLEST_BLOCK = 16
LOWEST = tl.constexpr(-1e30)
"""A score of what is not attended to: finite, so that a tile without a real token gives no NaN before one with."""


@triton.jit
def _offsets(tile, group, length, heads, features, BLOCK: tl.constexpr, WIDTH: tl.constexpr):  # noqa: N803
    """Return tokens `[BLOCK]` of a tile, where their features `[BLOCK, WIDTH]` lie, and which of these there are."""
    tokens = tile * BLOCK + tl.arange(0, BLOCK)
    columns = tl.arange(0, WIDTH)
    sample = (group // heads).to(tl.int64)
    places = ((sample * length + tokens)[:, None] * heads + group % heads) * features + columns[None, :]
    return tokens, places, (tokens < length)[:, None] & (columns < features)[None, :]


@triton.jit
def _is_attended(mask, group, tokens, length, heads, HAS_MASK: tl.constexpr):  # noqa: N803
    within = tokens < length
    if HAS_MASK:
        within = within & (tl.load(mask + (group // heads).to(tl.int64) * length + tokens, mask=within, other=0) != 0)
    return within


@triton.jit
def _other_side(group, batch, heads):
    """Return the group, of `[C, 2, B, H]`, of the same head's other side."""
    side = (group // (batch * heads)) % 2
    return group + (1 - 2 * side) * batch * heads


@triton.jit
def _statistics(
    navigated,
    unit,
    mask,
    log_sums,
    similarity,
    batch,
    length,
    heads,
    features,
    HAS_MASK: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Write log Σ_j exp(s_i · t_j) and a_i of a tile of tokens, and as well those of the keys."""
    group = tl.program_id(0)
    other = _other_side(group, batch, heads)
    tokens, places, there = _offsets(tl.program_id(1), group, length, heads, features, BLOCK, WIDTH)
    own_navigated = tl.load(navigated + places, mask=there, other=0.0)
    own_unit = tl.load(unit + places, mask=there, other=0.0)
    largest = tl.full([BLOCK], LOWEST, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    found = tl.zeros([BLOCK], tl.float32)
    for tile in range(0, tl.cdiv(length, BLOCK)):
        others, places, there = _offsets(tile, other, length, heads, features, BLOCK, WIDTH)
        their_navigated = tl.load(navigated + places, mask=there, other=0.0)
        their_unit = tl.load(unit + places, mask=there, other=0.0)
        attended = _is_attended(mask, other, others, length, heads, HAS_MASK)
        scores = tl.dot(own_navigated, tl.trans(their_navigated), input_precision=PRECISION)
        scores = tl.where(attended[None, :], scores, LOWEST)
        products = tl.dot(own_unit, tl.trans(their_unit), input_precision=PRECISION)
        grown = tl.maximum(largest, tl.max(scores, axis=1))
        shares = tl.exp(scores - grown[:, None])
        shrunk = tl.exp(largest - grown)
        total = total * shrunk + tl.sum(shares, axis=1)
        found = found * shrunk + tl.sum(shares * products, axis=1)
        largest = grown
    rows = group.to(tl.int64) * length + tokens
    tl.store(log_sums + rows, largest + tl.log(total), mask=tokens < length)
    tl.store(similarity + rows, found / total, mask=tokens < length)


@triton.jit
def _gradients(
    navigated,
    unit,
    mask,
    log_sums,
    similarity,
    weight,
    to_navigated,
    to_unit,
    batch,
    length,
    heads,
    features,
    HAS_MASK: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Write the gradient of Σ_i w_i a_i + Σ_j z_j b_j in the vectors of a tile of tokens.

    With C_ij = u_i · v_j that in s_i · t_j is w_i P_ij (C_ij - a_i) + z_j R_ij (C_ij - b_j), that in C_ij
    w_i P_ij + z_j R_ij.
    """
    group = tl.program_id(0)
    other = _other_side(group, batch, heads)
    tokens, own_places, own_there = _offsets(tl.program_id(1), group, length, heads, features, BLOCK, WIDTH)
    own_navigated = tl.load(navigated + own_places, mask=own_there, other=0.0)
    own_unit = tl.load(unit + own_places, mask=own_there, other=0.0)
    within = tokens < length
    rows = group.to(tl.int64) * length + tokens
    own_log_sums = tl.load(log_sums + rows, mask=within, other=0.0)
    own_found = tl.load(similarity + rows, mask=within, other=0.0)
    own_weight = tl.load(weight + (group // heads).to(tl.int64) * length + tokens, mask=within, other=0.0)
    own_attended = _is_attended(mask, group, tokens, length, heads, HAS_MASK)
    of_navigated = tl.zeros([BLOCK, WIDTH], tl.float32)
    of_unit = tl.zeros([BLOCK, WIDTH], tl.float32)
    for tile in range(0, tl.cdiv(length, BLOCK)):
        others, places, there = _offsets(tile, other, length, heads, features, BLOCK, WIDTH)
        their_navigated = tl.load(navigated + places, mask=there, other=0.0)
        their_unit = tl.load(unit + places, mask=there, other=0.0)
        attended = _is_attended(mask, other, others, length, heads, HAS_MASK)
        within = others < length
        rows = other.to(tl.int64) * length + others
        their_log_sums = tl.load(log_sums + rows, mask=within, other=0.0)
        their_found = tl.load(similarity + rows, mask=within, other=0.0)
        their_weight = tl.load(weight + (other // heads).to(tl.int64) * length + others, mask=within, other=0.0)
        scores = tl.dot(own_navigated, tl.trans(their_navigated), input_precision=PRECISION)
        products = tl.dot(own_unit, tl.trans(their_unit), input_precision=PRECISION)
        # A score of what is not attended to may lie far above the sum of the others: it is never raised to a power.
        own_shares = tl.exp(tl.where(attended[None, :], scores - own_log_sums[:, None], LOWEST))
        their_shares = tl.exp(tl.where(own_attended[:, None], scores - their_log_sums[None, :], LOWEST))
        own_shares = own_shares * own_weight[:, None]
        their_shares = their_shares * their_weight[None, :]
        to_scores = own_shares * (products - own_found[:, None]) + their_shares * (products - their_found[None, :])
        of_navigated += tl.dot(to_scores, their_navigated, input_precision=PRECISION)
        of_unit += tl.dot(own_shares + their_shares, their_unit, input_precision=PRECISION)
    tl.store(to_navigated + own_places, of_navigated, mask=own_there)
    tl.store(to_unit + own_places, of_unit, mask=own_there)


def _results(navigated: Tensor, has_gradient: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for log-sum-exps with what is found alike, and for both gradients."""
    calls, _, batch, length, heads, _ = navigated.shape
    shape = navigated.shape if has_gradient else (0,)
    rows = navigated.new_empty(2, calls, 2, batch, heads, length)
    return rows, navigated.new_empty(shape), navigated.new_empty(shape)


@operator("transport")
def _transport(
    navigated: Tensor, unit: Tensor, weight: Tensor, mask: Tensor | None, has_gradient: bool
) -> tuple[Tensor, Tensor, Tensor]:
    navigated, unit, weight = navigated.contiguous(), unit.contiguous(), weight.contiguous()
    calls, _, batch, length, heads, features = navigated.shape
    rows, to_navigated, to_unit = _results(navigated, has_gradient)
    log_sums, similarity = rows.unbind()
    block = min(LARGEST_BLOCK, max(SMALLEST_BLOCK, triton.next_power_of_2(length)))
    grid = (calls * 2 * batch * heads, triton.cdiv(length, block))
    sizes = (batch, length, heads, features)
    options = {
        "HAS_MASK": mask is not None,
        "BLOCK": block,
        "WIDTH": width_of_tile(features),
        "PRECISION": precision(),
    }
    # Without a mask the kernels take the place of one and never read it.
    mask = weight if mask is None else mask.contiguous()
    _statistics[grid](navigated, unit, mask, log_sums, similarity, *sizes, **options)
    if has_gradient:
        vectors = (navigated, unit, mask, log_sums, similarity, weight, to_navigated, to_unit)
        _gradients[grid](*vectors, *sizes, **options)
    return rows, to_navigated, to_unit


@_transport.register_fake
def _of_shapes(
    navigated: Tensor, unit: Tensor, weight: Tensor, mask: Tensor | None, has_gradient: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return _results(navigated, has_gradient)


class _Transported(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, navigated: Tensor, unit: Tensor, weight: Tensor, mask: Tensor | None, has_gradient: bool
    ) -> Tensor:
        rows, to_navigated, to_unit = _transport(navigated, unit, weight, mask, has_gradient)
        ctx.save_for_backward(to_navigated, to_unit)
        return (rows[1] * weight[:, :, :, None]).sum(dim=(1, 2, 3, 4))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        scale = grad_outputs[0].view(-1, 1, 1, 1, 1, 1)
        to_navigated, to_unit = ctx.saved_tensors
        return to_navigated * scale, to_unit * scale, None, None, None


def weighted_similarity(navigated: Tensor, unit: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
    """Return Σ w a + Σ z b of each call, `[C]`, differentiable in the vectors.

    Args:
        navigated: s and t, float32 `[C, 2, B, n, H, f]`, in the order of the projections' own memory.
        unit: u and v, likewise.
        weight: w and z, of each token, `[1 or C, 1 or 2, B, n]`.
        mask: `[1 or C, 1 or 2, B, n]` bool, True = a token that is attended to, one at least of a sample; None = all.
    """
    shape = navigated.shape[:4]
    if mask is not None:
        mask = mask.expand(shape).to(torch.int8)
    has_gradient = torch.is_grad_enabled() and (navigated.requires_grad or unit.requires_grad)
    found: Tensor = _Transported.apply(navigated, unit, weight.expand(shape), mask, has_gradient)
    return found
