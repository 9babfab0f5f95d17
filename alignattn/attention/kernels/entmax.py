"""Attention by entmax in three kernels, with no tensor of queries by keys in memory: `attended`.

Forward, a program has a few queries of a head, their scores with all keys, and from these the weights

    p_ij = [(α - 1) s_ij - τ_i]₊^(1 / (α - 1))        (Peters, Niculae & Martins 2019, eq. 10)

with the threshold τ_i at which they sum to 1: bisection, and a Newton step from its lower end, from which it cannot
overshoot, for the sum is convex in τ where α is at most 2. Features go by a few at a time, so that keys need no more
of the chip. The threshold is kept for backward. There one kernel has the same rows again, with the gradient in their
weights, and so the queries' gradient and that in α; the other has a tile of keys, goes over the queries, and sums the
keys' and values' gradients. There are no atomics, so that a step is the same each time. Dropout draws by place from a
seed of PyTorch's generator, which is kept in place of what it dropped.

Arithmetic, for n queries and keys of d features: two products of n × n × d forward, three and four of them backward, 18
n² d operations; attention of the softmax takes 14. The bisection's 20 steps are 80 n² more forward (at α = 1.5 or 2 a
difference, a maximum, a square and a sum each), and those run on ordinary units, 33 of them in the time of 495 on the
tensor cores (H100, T/s, TF32; 990 in 16 bits): at d = 64 they take as long as all the products together, in 16 bits
twice as long. **They are the limit**; more Newton steps in place of bisections would be the first thing to try. Memory:
q, k, v and what is attended once, 16 n d bytes in float32, and a threshold a query; a tile of r queries takes k and v
anew from the second-level cache, r / 2 operations a byte, where some 90 are due (5.5 TB/s): 16 to 32 queries a tile
make that cache the limit of the products. By the data sheet: nothing was measured on a GPU yet. Compiled for one
with 64 features, at most 32 bytes of registers are spilled up to 256 keys in float32 and none up to 512 in 16 bits; of
twice as many hundreds are, which is why no more are taken on a GPU, though the interpreter takes 1,024.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from alignattn.attention.kernels.choice import precision, width_of_tile

BISECTIONS = 20
"""They leave an error of 1e-6 in the threshold, and the Newton step less than float32 shows."""
POWERS = {2.0: 1, 1.5: 2}
"""1 / (α - 1) where it is whole, by α."""
ANY_POWER = 0
SCORES = {4: 2**12, 2: 2**13}
"""Of a program in the registers, by the bytes of a feature: compiled for an H100 as many stay there at 64 features."""
MOST_ROWS = 32
SMALLEST_BLOCK = 16
FEATURES = 32
"""That are multiplied at once where there are many keys."""
KEYS_OF_FEATURES = 256
"""So many."""
WARPS = 8
TILE = 32
"""Queries and keys of a tile where keys' gradients are summed."""
LOWEST = tl.constexpr(-1e30)
"""A score of what is not attended to: finite, so that a row without keys gives no NaN."""
LEAST = tl.constexpr(1e-30)


@triton.jit
def _of_head(tensor, group, length, heads, features):
    """Return where the first token of a head lies, of `[B, n, H, d]`."""
    return tensor + ((group // heads).to(tl.int64) * length * heads + group % heads) * features


@triton.jit
def _places(tokens, features_at, length, heads, features):
    """Return where features of tokens lie from the first token of their head on, and which there are."""
    there = (tokens < length)[:, None] & (features_at < features)[None, :]
    return tokens[:, None] * (heads * features) + features_at[None, :], there


@triton.jit
def _products(
    left,
    right,
    rows,
    keys,
    row_count,
    key_count,
    heads,
    features,
    CHUNK: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Return the dot products of all rows with all keys, `[R, M]`."""
    total = tl.zeros([rows.shape[0], keys.shape[0]], tl.float32)
    for start in range(0, WIDTH, CHUNK):
        at = start + tl.arange(0, CHUNK)
        places, there = _places(rows, at, row_count, heads, features)
        of_rows = tl.load(left + places, mask=there, other=0.0)
        places, there = _places(keys, at, key_count, heads, features)
        of_keys = tl.load(right + places, mask=there, other=0.0)
        total = tl.dot(of_rows, tl.trans(of_keys), total, input_precision=PRECISION)
    return total


@triton.jit
def _store_sums(
    to,
    weights,
    vectors,
    rows,
    keys,
    row_count,
    key_count,
    heads,
    features,
    CHUNK: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Write Σ_j of weights `[R, M]` times the keys' vectors."""
    for start in range(0, WIDTH, CHUNK):
        at = start + tl.arange(0, CHUNK)
        places, there = _places(keys, at, key_count, heads, features)
        of_keys = tl.load(vectors + places, mask=there, other=0.0)
        sums = tl.dot(weights.to(of_keys.dtype), of_keys, input_precision=PRECISION)
        places, there = _places(rows, at, row_count, heads, features)
        tl.store(to + places, sums, mask=there)


@triton.jit
def _is_attended(mask, rows, keys, sample, row_count, key_count, by_sample, by_row, by_key, HAS_MASK: tl.constexpr):  # noqa: N803
    there = (rows < row_count)[:, None] & (keys < key_count)[None, :]
    if HAS_MASK:
        places = rows[:, None] * by_row + keys[None, :] * by_key
        there = there & (tl.load(mask + sample.to(tl.int64) * by_sample + places, mask=there, other=0) != 0)
    return there


@triton.jit
def _kept(seed, group, rows, keys, key_count, dropout):
    """Return what dropout multiplies weights by: 0, or what makes up for it."""
    drawn = tl.rand(tl.load(seed) + group, rows[:, None] * key_count + keys[None, :])
    return tl.where(drawn < dropout, 0.0, 1.0 / (1.0 - dropout))


@triton.jit
def _power_of(alphas, head, POWER: tl.constexpr):  # noqa: N803
    """Return 1 / (α - 1)."""
    return 1.0 / (tl.load(alphas + head) - 1.0) if POWER == 0 else 1.0 * POWER


@triton.jit
def _raised(excess, power, POWER: tl.constexpr):  # noqa: N803
    """Return the weights of what scores exceed the threshold by."""
    if POWER == 1:
        weights = excess
    elif POWER == 2:
        weights = excess * excess
    else:
        weights = tl.where(excess > 0, tl.exp2(power * tl.log2(tl.maximum(excess, LEAST))), 0.0)
    return weights


@triton.jit
def _slopes(excess, power, POWER: tl.constexpr):  # noqa: N803
    """Return p^(2 - α), the slope of a weight in its own score, 0 where there is none."""
    if POWER == 1:
        slopes = tl.where(excess > 0, 1.0, 0.0)
    elif POWER == 2:
        slopes = excess
    else:
        slopes = tl.where(excess > 0, tl.exp2((power - 1.0) * tl.log2(tl.maximum(excess, LEAST))), 0.0)
    return slopes


@triton.jit
def _threshold(scores, power, STEPS: tl.constexpr, POWER: tl.constexpr):  # noqa: N803
    """Return τ of rows of scores, the largest of each 0."""
    low = tl.full([scores.shape[0]], -1.0, tl.float32)
    width = 1.0
    for _ in range(STEPS):
        width = width * 0.5
        middle = low + width
        sums = tl.sum(_raised(tl.maximum(scores - middle[:, None], 0.0), power, POWER), axis=1)
        low = tl.where(sums < 1.0, low, middle)
    excess = tl.maximum(scores - low[:, None], 0.0)
    beyond = tl.sum(_raised(excess, power, POWER), axis=1) - 1.0
    return low + beyond / tl.maximum(power * tl.sum(_slopes(excess, power, POWER), axis=1), LEAST)


@triton.jit
def _attend(
    query,
    key,
    value,
    mask,
    alphas,
    seed,
    attended,
    thresholds,
    scale,
    dropout,
    row_count,
    key_count,
    heads,
    features,
    by_sample,
    by_row,
    by_key,
    HAS_MASK: tl.constexpr,  # noqa: N803
    HAS_DROPOUT: tl.constexpr,  # noqa: N803
    POWER: tl.constexpr,  # noqa: N803
    STEPS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    KEYS: tl.constexpr,  # noqa: N803
    CHUNK: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Write what some queries of a head attend to, and their thresholds."""
    group = tl.program_id(0)
    sample, head = group // heads, group % heads
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    keys = tl.arange(0, KEYS)
    power = _power_of(alphas, head, POWER)
    query, key, value = (
        _of_head(query, group, row_count, heads, features),
        _of_head(key, group, key_count, heads, features),
        _of_head(value, group, key_count, heads, features),
    )
    scores = _products(query, key, rows, keys, row_count, key_count, heads, features, CHUNK, WIDTH, PRECISION)
    there = _is_attended(mask, rows, keys, sample, row_count, key_count, by_sample, by_row, by_key, HAS_MASK)
    scores = tl.where(there, scores * (scale / power), LOWEST)
    largest = tl.max(scores, axis=1)
    scores -= largest[:, None]
    threshold = _threshold(scores, power, STEPS, POWER)
    weights = tl.where(there, _raised(tl.maximum(scores - threshold[:, None], 0.0), power, POWER), 0.0)
    if HAS_DROPOUT:
        weights *= _kept(seed, group, rows, keys, key_count, dropout)
    tl.store(thresholds + group.to(tl.int64) * row_count + rows, largest + threshold, mask=rows < row_count)
    _store_sums(
        _of_head(attended, group, row_count, heads, features),
        weights,
        value,
        rows,
        keys,
        row_count,
        key_count,
        heads,
        features,
        CHUNK,
        WIDTH,
        PRECISION,
    )


@triton.jit
def _to_queries(
    query,
    key,
    value,
    mask,
    alphas,
    seed,
    to_attended,
    thresholds,
    to_query,
    means,
    to_alphas,
    scale,
    dropout,
    row_count,
    key_count,
    heads,
    features,
    by_sample,
    by_row,
    by_key,
    HAS_ALPHA: tl.constexpr,  # noqa: N803
    HAS_MASK: tl.constexpr,  # noqa: N803
    HAS_DROPOUT: tl.constexpr,  # noqa: N803
    POWER: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    KEYS: tl.constexpr,  # noqa: N803
    CHUNK: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Write the gradient in some queries of a head, their means of the weights' gradient by slope, and that in α.

    Names and equations are those of `..normalizers.sparse`.
    """
    group = tl.program_id(0)
    sample, head = group // heads, group % heads
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    keys = tl.arange(0, KEYS)
    power = _power_of(alphas, head, POWER)
    query, key, value = (
        _of_head(query, group, row_count, heads, features),
        _of_head(key, group, key_count, heads, features),
        _of_head(value, group, key_count, heads, features),
    )
    scores = _products(query, key, rows, keys, row_count, key_count, heads, features, CHUNK, WIDTH, PRECISION)
    places = group.to(tl.int64) * row_count + rows
    threshold = tl.load(thresholds + places, mask=rows < row_count, other=0.0)
    there = _is_attended(mask, rows, keys, sample, row_count, key_count, by_sample, by_row, by_key, HAS_MASK)
    excess = tl.where(there, tl.maximum(scores * (scale / power) - threshold[:, None], 0.0), 0.0)
    to_attended = _of_head(to_attended, group, row_count, heads, features)
    gradient = _products(to_attended, value, rows, keys, row_count, key_count, heads, features, CHUNK, WIDTH, PRECISION)
    if HAS_DROPOUT:
        gradient *= _kept(seed, group, rows, keys, key_count, dropout)
    slope = _slopes(excess, power, POWER)
    mean = tl.sum(gradient * slope, axis=1) / tl.maximum(tl.sum(slope, axis=1), LEAST)
    tl.store(means + places, mean, mask=rows < row_count)
    if HAS_ALPHA:
        weights = _raised(excess, power, POWER)
        surprise = tl.where(weights > 0, -weights * tl.log(tl.maximum(weights, LEAST)), 0.0)
        by_power = tl.sum(gradient * weights, axis=1) - mean
        by_entropy = tl.sum(gradient * surprise, axis=1) - mean * tl.sum(surprise, axis=1)
        tl.store(to_alphas + places, (by_power * power + by_entropy) * power, mask=rows < row_count)
    to_scores = slope * (gradient - mean[:, None]) * scale
    _store_sums(
        _of_head(to_query, group, row_count, heads, features),
        to_scores,
        key,
        rows,
        keys,
        row_count,
        key_count,
        heads,
        features,
        CHUNK,
        WIDTH,
        PRECISION,
    )


@triton.jit
def _to_keys(
    query,
    key,
    value,
    mask,
    alphas,
    seed,
    to_attended,
    thresholds,
    means,
    to_key,
    to_value,
    scale,
    dropout,
    row_count,
    key_count,
    heads,
    features,
    by_sample,
    by_row,
    by_key,
    HAS_MASK: tl.constexpr,  # noqa: N803
    HAS_DROPOUT: tl.constexpr,  # noqa: N803
    POWER: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Write the gradients in the keys and values of a tile of a head's keys."""
    group = tl.program_id(0)
    sample, head = group // heads, group % heads
    keys = tl.program_id(1) * TILE + tl.arange(0, TILE)
    at = tl.arange(0, WIDTH)
    power = _power_of(alphas, head, POWER)
    query, to_attended = (
        _of_head(query, group, row_count, heads, features),
        _of_head(to_attended, group, row_count, heads, features),
    )
    key, value, to_key, to_value = (
        _of_head(key, group, key_count, heads, features),
        _of_head(value, group, key_count, heads, features),
        _of_head(to_key, group, key_count, heads, features),
        _of_head(to_value, group, key_count, heads, features),
    )
    key_places, are_keys = _places(keys, at, key_count, heads, features)
    own_key = tl.load(key + key_places, mask=are_keys, other=0.0)
    own_value = tl.load(value + key_places, mask=are_keys, other=0.0)
    of_key = tl.zeros([TILE, WIDTH], tl.float32)
    of_value = tl.zeros([TILE, WIDTH], tl.float32)
    for tile in range(0, tl.cdiv(row_count, TILE)):
        rows = tile * TILE + tl.arange(0, TILE)
        places, are_rows = _places(rows, at, row_count, heads, features)
        their_query = tl.load(query + places, mask=are_rows, other=0.0)
        their_gradient = tl.load(to_attended + places, mask=are_rows, other=0.0)
        places = group.to(tl.int64) * row_count + rows
        threshold = tl.load(thresholds + places, mask=rows < row_count, other=0.0)
        mean = tl.load(means + places, mask=rows < row_count, other=0.0)
        there = _is_attended(mask, rows, keys, sample, row_count, key_count, by_sample, by_row, by_key, HAS_MASK)
        scores = tl.dot(their_query, tl.trans(own_key), input_precision=PRECISION)
        excess = tl.where(there, tl.maximum(scores * (scale / power) - threshold[:, None], 0.0), 0.0)
        gradient = tl.dot(their_gradient, tl.trans(own_value), input_precision=PRECISION)
        weights = _raised(excess, power, POWER)
        if HAS_DROPOUT:
            kept = _kept(seed, group, rows, keys, key_count, dropout)
            weights *= kept
            gradient *= kept
        to_scores = _slopes(excess, power, POWER) * (gradient - mean[:, None]) * scale
        weights, to_scores = weights.to(their_gradient.dtype), to_scores.to(their_query.dtype)
        of_value += tl.dot(tl.trans(weights), their_gradient, input_precision=PRECISION)
        of_key += tl.dot(tl.trans(to_scores), their_query, input_precision=PRECISION)
    tl.store(to_key + key_places, of_key, mask=are_keys)
    tl.store(to_value + key_places, of_value, mask=are_keys)


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alphas: Tensor | None,
        mask: Tensor | None,
        power: int,
        scale: float,
        dropout: float,
    ) -> Tensor:
        batch, row_count, heads, features = query.shape
        thresholds = query.new_empty(batch, heads, row_count, dtype=torch.float32)
        attended = torch.empty_like(query)
        seed = torch.randint(2**31, (1,), device=query.device) if dropout else None
        keys = max(SMALLEST_BLOCK, triton.next_power_of_2(key.shape[1]))
        width = width_of_tile(features)
        rows = min(MOST_ROWS, SCORES[query.element_size()] // keys, triton.next_power_of_2(row_count))
        ctx.sizes = (row_count, key.shape[1], heads, features)
        ctx.factors = (scale, dropout)
        ctx.strides = (0, 0, 0) if mask is None else (mask.stride(0), mask.stride(1), mask.stride(2))
        ctx.kind = {"HAS_MASK": mask is not None, "HAS_DROPOUT": dropout > 0, "POWER": power, "PRECISION": precision()}
        chunk = width if keys < KEYS_OF_FEATURES else min(width, FEATURES)
        ctx.blocks = {"ROWS": max(SMALLEST_BLOCK, rows), "KEYS": keys, "CHUNK": chunk, "WIDTH": width}
        # One stage: what is loaded serves once, and a second would need the room of the first.
        ctx.options = {"num_warps": WARPS, "num_stages": 1}
        # What a kernel has no use of is never read: anything stands in its place.
        extras = [thresholds if extra is None else extra for extra in (mask, alphas, seed)]
        _attend[(batch * heads, triton.cdiv(row_count, rows))](
            *(query, key, value, *extras, attended, thresholds),
            *(*ctx.factors, *ctx.sizes, *ctx.strides),
            STEPS=BISECTIONS,
            **ctx.kind,
            **ctx.blocks,
            **ctx.options,
        )
        ctx.save_for_backward(query, key, value, *extras, thresholds)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *extras, thresholds = ctx.saved_tensors
        batch, row_count, heads, _ = query.shape
        to_attended = grad_outputs[0].contiguous()
        to_query, to_key, to_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        means, to_alphas = torch.empty_like(thresholds), torch.empty_like(thresholds)
        given = (query, key, value, *extras, to_attended, thresholds)
        numbers = (*ctx.factors, *ctx.sizes, *ctx.strides)
        has_alpha = ctx.needs_input_grad[3]
        _to_queries[(batch * heads, triton.cdiv(row_count, ctx.blocks["ROWS"]))](
            *(*given, to_query, means, to_alphas, *numbers),
            HAS_ALPHA=has_alpha,
            **ctx.kind,
            **ctx.blocks,
            **ctx.options,
        )
        _to_keys[(batch * heads, triton.cdiv(key.shape[1], TILE))](
            *(*given, means, to_key, to_value, *numbers),
            TILE=TILE,
            WIDTH=ctx.blocks["WIDTH"],
            **ctx.kind,
            **ctx.options,
        )
        to_alpha = to_alphas.sum(dim=(0, 2)) if has_alpha else None
        return to_query, to_key, to_value, to_alpha, *[None] * 4


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alpha: float | Tensor,
    mask: Tensor | None,
    *,
    scale: float,
    dropout: float,
) -> Tensor:
    """Return entmax(scale · q kᵀ) v, `[B, H, n, d]` in the type of the values.

    Args:
        query: `[B, H, n, d]`, float32 or of 16 bits, in the projections' own memory order without a copy.
        key: `[B, H, m, d]`, likewise.
        value: `[B, H, m, d]`, likewise, all of one type.
        alpha: α, above 1 and at most 2: a number, or of each head, float32 `[H]`, differentiable.
        mask: bool, broadcastable to `[B, 1, n, m]`, True = may be attended; None = every key may.
        scale: factor of the scores.
        dropout: probability with which a weight is dropped, below 1.
    """
    batch, heads, row_count, _ = query.shape
    power = ANY_POWER if isinstance(alpha, Tensor) else POWERS.get(alpha, ANY_POWER)
    if not isinstance(alpha, Tensor) and power == ANY_POWER:
        alpha = query.new_full((heads,), alpha, dtype=torch.float32)
    if mask is not None:
        mask = mask.expand(batch, 1, row_count, key.shape[2])[:, 0].view(torch.int8)
    sides = [side.transpose(1, 2).contiguous() for side in (query, key, value)]
    alphas = alpha if isinstance(alpha, Tensor) else None
    found: Tensor = _Attended.apply(*sides, alphas, mask, power, scale, dropout)
    return found.transpose(1, 2)
