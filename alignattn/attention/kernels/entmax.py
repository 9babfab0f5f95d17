"""Attention by entmax in three kernels, with no tensor of queries by keys in memory: `attended`.

Forward, a program has a tile of a head's queries and goes over tiles of its keys, again and again, each time with their
scores computed anew: once for the largest score of each query, then to find the threshold τ_i at which the weights

    p_ij = [(α - 1) s_ij - τ_i]₊^(1 / (α - 1))        (Peters, Niculae & Martins 2019, eq. 10)

sum to 1, and at last for what is attended to. The sum is convex in τ where α is at most 2, so that its tangent at any
point meets 1 at or below τ_i: a bisection moves one bound of τ_i to the middle, and the lower one up to where the
tangent there meets 1. Steps from the lower bound alone, Newton's, then double the digits. The largest score and the
threshold, counted from it, are kept for backward. There one kernel has the same queries again, goes over the keys once
for the weights' mean gradient by slope and once for the queries' gradient; the other has a tile of keys, goes over the
queries, and sums the keys' and values' gradients. There are no atomics, so that a step is the same each time. Dropout
draws by place from a seed of PyTorch's generator, which is kept in place of what it dropped. No number of keys is too
large.

Arithmetic, for n queries and keys of d features: with 8 steps eleven products of n × n × d forward, five and four of
them backward, 40 n² d operations; attention of the softmax takes 14. A step takes some 7 n² more on ordinary units
(scaling, mask, difference, maximum, power and two sums), 33 of them in the time of 990 on the tensor cores (H100, T/s,
16 bits): at d = 64 the steps' 56 n² there take 1.2 times as long as forward's 1,408 n² of products. **Both are the
limit**; in TF32, at half the rate, the products. Memory: q, k, v and what is attended once, 16 n d bytes in float32,
and two numbers a query; a tile of 64 queries takes its keys from the second-level cache, a pass 64 operations a byte in
16 bits. By the data sheet: nothing was measured on a GPU yet. Compiled for heads of 32 and 64, at most 28 bytes of
registers are spilled (`benchmarks/registers.py`); with 128 in float32 hundreds are, which is why no more than 64 are
taken there.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from alignattn.attention.derivatives import once_differentiable
from alignattn.attention.kernels.choice import precision, width_of_tile
from alignattn.attention.kernels.operator import operator

BISECTIONS = 6
NEWTON_STEPS = 2
"""After them weights sum to 1 within 5e-7, for α from 1.02 to 2, up to 4,096 keys and scores spread from 0.01 to 10."""
POWERS = {2.0: 1, 1.5: 2}
"""1 / (α - 1) where it is whole, by α."""
ANY_POWER = 0
SMALLEST_TILE = 16
ROWS = 64
"""Queries of a program that has queries."""
KEYS = {4: 32, 2: 64}
"""Keys at a time there, by the bytes of a feature."""
WARPS = 4
"""Of such a program."""
TILE_OF_KEYS = 32
"""Keys, and queries at a time, of a program that has keys."""
WARPS_OF_KEYS = 8
"""Of such a program."""
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
def _load(tensor, tokens, features_at, length, heads, features):
    """Return features of tokens, 0 where there are none."""
    places, there = _places(tokens, features_at, length, heads, features)
    return tl.load(tensor + places, mask=there, other=0.0)


@triton.jit
def _scores(
    of_rows,
    of_keys,
    mask,
    rows,
    keys,
    factor,
    row_count,
    key_count,
    by_row,
    by_key,
    HAS_MASK: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Return the scores of a tile of queries and one of keys, `LOWEST` where a query may not attend."""
    there = (rows < row_count)[:, None] & (keys < key_count)[None, :]
    if HAS_MASK:
        there = there & (
            tl.load(mask + rows[:, None].to(tl.int64) * by_row + keys[None, :] * by_key, mask=there, other=0) != 0
        )
    return tl.where(there, tl.dot(of_rows, tl.trans(of_keys), input_precision=PRECISION) * factor, LOWEST)


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
        weights = tl.where(excess > 0, tl.exp2(power * tl.log2(tl.maximum(excess, LEAST))), excess)
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
def _excess(scores, largest, threshold):
    """Return what scores exceed their threshold by, which counts from the largest: a sum of both would be rounded.

    What is no number stays so: a GPU's maximum would make 0 of it, and a model that diverged would look well.
    """
    excess = scores - largest[:, None] - threshold[:, None]
    return tl.where(excess <= 0, 0.0, excess)


# One key is a number like any other, though Triton takes a 1 for a constant, which is no tensor.
@triton.jit(do_not_specialize=["key_count"])
def _attend(
    query,
    key,
    value,
    mask,
    alphas,
    seed,
    attended,
    largests,
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
    MIDDLES: tl.constexpr,  # noqa: N803
    STEPS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    KEYS: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Write what a tile of a head's queries attends to, and their thresholds; the first steps are bisections."""
    group = tl.program_id(0)
    sample, head = group // heads, group % heads
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, WIDTH)
    power = _power_of(alphas, head, POWER)
    factor = scale / power
    mask += sample.to(tl.int64) * by_sample
    query, key, value, attended = (
        _of_head(query, group, row_count, heads, features),
        _of_head(key, group, key_count, heads, features),
        _of_head(value, group, key_count, heads, features),
        _of_head(attended, group, row_count, heads, features),
    )
    own = _load(query, rows, at, row_count, heads, features)
    largest = tl.full([ROWS], LOWEST, tl.float32)
    for start in range(0, key_count, KEYS):
        keys = start + tl.arange(0, KEYS)
        theirs = _load(key, keys, at, key_count, heads, features)
        scores = _scores(
            own, theirs, mask, rows, keys, factor, row_count, key_count, by_row, by_key, HAS_MASK, PRECISION
        )
        largest = tl.maximum(largest, tl.max(scores, axis=1))
    # As if one key had all of the weight, and as if all had the same.
    low = tl.full([ROWS], -1.0, tl.float32)
    high = tl.zeros([ROWS], tl.float32) - tl.exp2(-tl.log2(key_count.to(tl.float32)) / power)
    for step in range(STEPS):
        point = tl.where(step < MIDDLES, (low + high) * 0.5, low)
        total = tl.zeros([ROWS], tl.float32)
        slope = tl.zeros([ROWS], tl.float32)
        for start in range(0, key_count, KEYS):
            keys = start + tl.arange(0, KEYS)
            theirs = _load(key, keys, at, key_count, heads, features)
            scores = _scores(
                own, theirs, mask, rows, keys, factor, row_count, key_count, by_row, by_key, HAS_MASK, PRECISION
            )
            excess = _excess(scores, largest, point)
            total += tl.sum(_raised(excess, power, POWER), axis=1)
            slope += tl.sum(_slopes(excess, power, POWER), axis=1)
        is_below = total >= 1.0
        low = tl.where(is_below, point, low)
        high = tl.where(is_below, high, point)
        tangent = point + (total - 1.0) / tl.maximum(power * slope, LEAST)
        low = tl.maximum(low, tl.minimum(tangent, high))
    # A query without a key has no weight to share out.
    low = tl.where(largest > LOWEST, low, 0.0)
    places = group.to(tl.int64) * row_count + rows
    tl.store(largests + places, largest, mask=rows < row_count)
    tl.store(thresholds + places, low, mask=rows < row_count)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, key_count, KEYS):
        keys = start + tl.arange(0, KEYS)
        theirs = _load(key, keys, at, key_count, heads, features)
        scores = _scores(
            own, theirs, mask, rows, keys, factor, row_count, key_count, by_row, by_key, HAS_MASK, PRECISION
        )
        weights = _raised(_excess(scores, largest, low), power, POWER)
        if HAS_DROPOUT:
            weights *= _kept(seed, group, rows, keys, key_count, dropout)
        values = _load(value, keys, at, key_count, heads, features)
        total = tl.dot(weights.to(values.dtype), values, total, input_precision=PRECISION)
    places, there = _places(rows, at, row_count, heads, features)
    tl.store(attended + places, total, mask=there)


@triton.jit
def _scores_and_gradient(
    own,
    to_own,
    key,
    value,
    mask,
    seed,
    group,
    rows,
    keys,
    at,
    factor,
    dropout,
    row_count,
    key_count,
    heads,
    features,
    by_row,
    by_key,
    HAS_MASK: tl.constexpr,  # noqa: N803
    HAS_DROPOUT: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Return a tile of keys, their scores with a program's queries, and the gradient in the weights of these."""
    theirs = _load(key, keys, at, key_count, heads, features)
    scores = _scores(own, theirs, mask, rows, keys, factor, row_count, key_count, by_row, by_key, HAS_MASK, PRECISION)
    values = _load(value, keys, at, key_count, heads, features)
    gradient = tl.dot(to_own, tl.trans(values), input_precision=PRECISION)
    if HAS_DROPOUT:
        gradient *= _kept(seed, group, rows, keys, key_count, dropout)
    return theirs, scores, gradient


@triton.jit
def _to_queries(
    query,
    key,
    value,
    mask,
    alphas,
    seed,
    to_attended,
    largests,
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
    WIDTH: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
):
    """Write the gradient in a tile of a head's queries, their means of the weights' gradient by slope, and that in α.

    Names and equations are those of `..normalizers.sparse`.
    """
    group = tl.program_id(0)
    sample, head = group // heads, group % heads
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, WIDTH)
    power = _power_of(alphas, head, POWER)
    factor = scale / power
    mask += sample.to(tl.int64) * by_sample
    query, key, value, to_attended, to_query = (
        _of_head(query, group, row_count, heads, features),
        _of_head(key, group, key_count, heads, features),
        _of_head(value, group, key_count, heads, features),
        _of_head(to_attended, group, row_count, heads, features),
        _of_head(to_query, group, row_count, heads, features),
    )
    own = _load(query, rows, at, row_count, heads, features)
    to_own = _load(to_attended, rows, at, row_count, heads, features)
    places = group.to(tl.int64) * row_count + rows
    largest = tl.load(largests + places, mask=rows < row_count, other=0.0)
    threshold = tl.load(thresholds + places, mask=rows < row_count, other=0.0)
    by_slope = tl.zeros([ROWS], tl.float32)
    slope_total = tl.zeros([ROWS], tl.float32)
    by_weight = tl.zeros([ROWS], tl.float32)
    by_surprise = tl.zeros([ROWS], tl.float32)
    entropy = tl.zeros([ROWS], tl.float32)
    for start in range(0, key_count, KEYS):
        theirs, scores, gradient = _scores_and_gradient(
            *(own, to_own, key, value, mask, seed, group, rows, start + tl.arange(0, KEYS), at, factor, dropout),
            *(row_count, key_count, heads, features, by_row, by_key, HAS_MASK, HAS_DROPOUT, PRECISION),
        )
        excess = _excess(scores, largest, threshold)
        slope = _slopes(excess, power, POWER)
        slope_total += tl.sum(slope, axis=1)
        by_slope += tl.sum(gradient * slope, axis=1)
        if HAS_ALPHA:
            weights = _raised(excess, power, POWER)
            surprise = tl.where(weights > 0, -weights * tl.log(tl.maximum(weights, LEAST)), 0.0)
            by_weight += tl.sum(gradient * weights, axis=1)
            by_surprise += tl.sum(gradient * surprise, axis=1)
            entropy += tl.sum(surprise, axis=1)
    mean = by_slope / tl.maximum(slope_total, LEAST)
    tl.store(means + places, mean, mask=rows < row_count)
    if HAS_ALPHA:
        to_alpha = ((by_weight - mean) * power + by_surprise - mean * entropy) * power
        tl.store(to_alphas + places, to_alpha, mask=rows < row_count)
    total = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, key_count, KEYS):
        theirs, scores, gradient = _scores_and_gradient(
            *(own, to_own, key, value, mask, seed, group, rows, start + tl.arange(0, KEYS), at, factor, dropout),
            *(row_count, key_count, heads, features, by_row, by_key, HAS_MASK, HAS_DROPOUT, PRECISION),
        )
        slope = _slopes(_excess(scores, largest, threshold), power, POWER)
        to_scores = slope * (gradient - mean[:, None]) * scale
        total = tl.dot(to_scores.to(theirs.dtype), theirs, total, input_precision=PRECISION)
    places, there = _places(rows, at, row_count, heads, features)
    tl.store(to_query + places, total, mask=there)


@triton.jit
def _to_keys(
    query,
    key,
    value,
    mask,
    alphas,
    seed,
    to_attended,
    largests,
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
    factor = scale / power
    mask += sample.to(tl.int64) * by_sample
    query, to_attended, key, value, to_key, to_value = (
        _of_head(query, group, row_count, heads, features),
        _of_head(to_attended, group, row_count, heads, features),
        _of_head(key, group, key_count, heads, features),
        _of_head(value, group, key_count, heads, features),
        _of_head(to_key, group, key_count, heads, features),
        _of_head(to_value, group, key_count, heads, features),
    )
    own_key = _load(key, keys, at, key_count, heads, features)
    own_value = _load(value, keys, at, key_count, heads, features)
    of_key = tl.zeros([TILE, WIDTH], tl.float32)
    of_value = tl.zeros([TILE, WIDTH], tl.float32)
    for start in range(0, row_count, TILE):
        rows = start + tl.arange(0, TILE)
        theirs = _load(query, rows, at, row_count, heads, features)
        to_theirs = _load(to_attended, rows, at, row_count, heads, features)
        places = group.to(tl.int64) * row_count + rows
        largest = tl.load(largests + places, mask=rows < row_count, other=0.0)
        threshold = tl.load(thresholds + places, mask=rows < row_count, other=0.0)
        mean = tl.load(means + places, mask=rows < row_count, other=0.0)
        scores = _scores(
            theirs, own_key, mask, rows, keys, factor, row_count, key_count, by_row, by_key, HAS_MASK, PRECISION
        )
        excess = _excess(scores, largest, threshold)
        gradient = tl.dot(to_theirs, tl.trans(own_value), input_precision=PRECISION)
        weights = _raised(excess, power, POWER)
        if HAS_DROPOUT:
            kept = _kept(seed, group, rows, keys, key_count, dropout)
            weights *= kept
            gradient *= kept
        to_scores = _slopes(excess, power, POWER) * (gradient - mean[:, None]) * scale
        weights, to_scores = weights.to(to_theirs.dtype), to_scores.to(theirs.dtype)
        of_value = tl.dot(tl.trans(weights), to_theirs, of_value, input_precision=PRECISION)
        of_key = tl.dot(tl.trans(to_scores), theirs, of_key, input_precision=PRECISION)
    places, there = _places(keys, at, key_count, heads, features)
    tl.store(to_key + places, of_key, mask=there)
    tl.store(to_value + places, of_value, mask=there)


def _tile(most: int, length: int) -> int:
    return max(SMALLEST_TILE, min(most, triton.next_power_of_2(length)))


def _seen(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    power: int,
    scale: float,
    dropout: float,
) -> tuple[tuple[float | int, ...], dict[str, Any], dict[str, int]]:
    """Return what the kernels are given besides tensors: numbers, constants, and the sizes of tiles of queries."""
    _, row_count, heads, features = query.shape
    strides = (0, 0, 0) if mask is None else (mask.stride(0), mask.stride(1), mask.stride(2))
    kind = {"HAS_MASK": mask is not None, "HAS_DROPOUT": dropout > 0, "POWER": power, "PRECISION": precision()}
    kind |= {"WIDTH": width_of_tile(features)}
    tiles = {"ROWS": _tile(ROWS, row_count), "KEYS": _tile(KEYS[key.element_size()], key.shape[1])}
    return (scale, dropout, row_count, key.shape[1], heads, features, *strides), kind, tiles


def _of_queries(query: Tensor) -> Tensor:
    batch, row_count, heads, _ = query.shape
    return query.new_empty(batch, heads, row_count, dtype=torch.float32)


@operator("sparse_attention")
def _sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    alphas: Tensor | None,
    seed: Tensor | None,
    power: int,
    scale: float,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    largests, thresholds, attended = _of_queries(query), _of_queries(query), query.new_empty(query.shape)
    numbers, kind, tiles = _seen(query, key, mask, power, scale, dropout)
    batch, row_count, heads, _ = query.shape
    _attend[(batch * heads, triton.cdiv(row_count, tiles["ROWS"]))](
        *(query, key, value, *_instead(thresholds, mask, alphas, seed), attended, largests, thresholds, *numbers),
        MIDDLES=BISECTIONS,
        STEPS=BISECTIONS + NEWTON_STEPS,
        num_warps=WARPS,
        **kind,
        **tiles,
    )
    return attended, largests, thresholds


@operator("sparse_attention_backward")
def _to_sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    alphas: Tensor | None,
    seed: Tensor | None,
    largests: Tensor,
    thresholds: Tensor,
    to_attended: Tensor,
    power: int,
    scale: float,
    dropout: float,
    has_alpha: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key, value, to_attended = (side.contiguous() for side in (query, key, value, to_attended))
    to_query, to_key, to_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    means, to_alphas = torch.empty_like(thresholds), torch.empty_like(thresholds)
    numbers, kind, tiles = _seen(query, key, mask, power, scale, dropout)
    given = (query, key, value, *_instead(thresholds, mask, alphas, seed), to_attended, largests, thresholds)
    batch, row_count, heads, _ = query.shape
    _to_queries[(batch * heads, triton.cdiv(row_count, tiles["ROWS"]))](
        *(*given, to_query, means, to_alphas, *numbers), HAS_ALPHA=has_alpha, num_warps=WARPS, **kind, **tiles
    )
    _to_keys[(batch * heads, triton.cdiv(key.shape[1], TILE_OF_KEYS))](
        *(*given, means, to_key, to_value, *numbers), TILE=TILE_OF_KEYS, num_warps=WARPS_OF_KEYS, **kind
    )
    return to_query, to_key, to_value, to_alphas


@_sparse_attention.register_fake
def _attended_of_shapes(query: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return query.new_empty(query.shape), _of_queries(query), _of_queries(query)


@_to_sparse_attention.register_fake
def _gradients_of_shapes(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    to_query, to_key, to_value = (side.new_empty(side.shape) for side in (query, key, value))
    return to_query, to_key, to_value, _of_queries(query)


def _instead(any_tensor: Tensor, *extras: Tensor | None) -> list[Tensor]:
    """What a kernel has no use of is never read: anything stands in its place."""
    return [any_tensor if extra is None else extra for extra in extras]


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
        seed = torch.randint(2**31, (1,), device=query.device) if dropout else None
        given = (query, key, value, mask, alphas, seed)
        attended, largests, thresholds = _sparse_attention(*given, power, scale, dropout)
        ctx.numbers = (power, scale, dropout)
        ctx.save_for_backward(*given, largests, thresholds)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        has_alpha = ctx.needs_input_grad[3]
        to_query, to_key, to_value, to_alphas = _to_sparse_attention(
            *ctx.saved_tensors, grad_outputs[0], *ctx.numbers, has_alpha
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
    sides = [side.transpose(1, 2) for side in (query, key, value)]
    alphas = alpha if isinstance(alpha, Tensor) else None
    found: Tensor = _Attended.apply(*sides, alphas, mask, power, scale, dropout)
    return found.transpose(1, 2)
