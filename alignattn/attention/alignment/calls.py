"""Attention calls, the input of an alignment: how they are drawn and stacked, and the weights of their tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

HASH_ROUNDS = ((16, 0x21F0AAAD), (15, 0x735A2D97))
"""Shift and multiplier of each round of the hash, from Ettinger 2022, "hash-prospector"; products fit int64."""


@dataclass(frozen=True)
class TokenMeasure:
    """The uniform distribution over the real tokens of each sample, and the weight of a sample in the mean.

    The first dimension is the C calls, or 1 if all calls share a mask. The second is the two sides, queries and keys,
    or 1 if both belong to the same tokens.

    Attributes:
        probability: `[1 or C, 1 or 2, B, n]`, 1 over the number of the sample's real tokens at real tokens, 0 at
            padding.
        sample_weight: `[1 or C, B]`, 1 over the number of samples with real tokens on both sides; 0 for other samples.
        mask: `[1 or C, 1 or 2, B, n]` bool, True at real tokens; None where every token is real.
    """

    probability: Tensor
    sample_weight: Tensor
    mask: Tensor | None

    @classmethod
    def of(cls, features: Tensor, mask: Tensor | None, share: float = 1.0) -> "TokenMeasure":
        """Build it for features `[C, 2, B, n, H, d]` and a mask `[1 or C, 1 or 2, B, n]` (True = a real token).

        The weights of the samples are multiplied by `share`.
        """
        batch, length = features.shape[2:4]
        dtype = computed_in(features)
        if mask is None:
            probability = features.new_full((1, 1, batch, length), 1 / max(length, 1), dtype=dtype)
            return cls(probability, features.new_full((1, batch), 1 / batch, dtype=dtype) * share, None)
        real = mask.to(dtype)
        count = real.sum(dim=-1)
        has_tokens = (count > 0).all(dim=1).to(dtype)
        samples = has_tokens.sum(dim=-1, keepdim=True).clamp(min=1)
        return cls(real / count.clamp(min=1)[..., None], has_tokens / samples * share, mask)

    @property
    def token_weight(self) -> Tensor:
        """The weight of each token in the mean, `[1 or C, 1 or 2, B, n]`; the weights of a side sum to 1."""
        return self.probability * self.sample_weight[:, None, :, None]

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of `[C, 2, B, n, H]` over real tokens and samples, summed over sides and heads, `[C]`."""
        return (values * self.token_weight[..., None]).sum(dim=(1, 2, 3, 4))


@dataclass(frozen=True)
class Call:
    """The queries and keys of one attention call, from its projections.

    Attributes:
        query: `[B, n, H * d]`.
        key: `[B, m, H * d]`.
        heads: H.
        query_mask: `[B, n]` bool, True = a real token; None = all are real.
        key_mask: `[B, m]` bool; the same tensor if queries and keys belong to the same tokens.
        layer: the index of the layer that called.
        chosen: `[k]` int64, the indices of the samples that the loss uses, to which the masks are limited already; None
            = all.
    """

    query: Tensor
    key: Tensor
    heads: int
    query_mask: Tensor | None
    key_mask: Tensor | None
    layer: int
    chosen: Tensor | None = None

    @property
    def samples(self) -> int:
        """The number of samples that are used."""
        return len(self.query) if self.chosen is None else len(self.chosen)

    def selected(self, side: Tensor) -> Tensor:
        """Return the samples of queries or keys `[B, n, f]` that are used."""
        return side if self.chosen is None else side.index_select(0, self.chosen)

    @property
    def is_of_same_tokens(self) -> bool:
        """Whether queries and keys belong to the same tokens."""
        return self.query.shape == self.key.shape and self.query_mask is self.key_mask

    @property
    def kind(self) -> tuple[object, ...]:
        """The properties that the calls of a group share."""
        masked = (self.is_of_same_tokens, self.query_mask is None, self.samples)
        return (self.query.shape, self.key.shape, self.query.dtype, self.query.device, self.heads, *masked)

    @property
    def length(self) -> int:
        """The larger of n and m."""
        return self.query.shape[1] if self.is_of_same_tokens else max(self.query.shape[1], self.key.shape[1])


def hashed(step: Tensor, places: Tensor) -> Tensor:
    """Return random numbers from 0 to 2^32 - 1, distinct for distinct places below 2^32 of one step.

    As a function of the step they are the same on every device, compiled or not, and after a resumption. No generator
    is used, so a loss that draws does not change the model's dropout.

    Args:
        step: an int64 scalar.
        places: int64, from 0.
    """
    low_bits = 0xFFFFFFFF
    # Odd multipliers keep distinct places distinct.
    word = (places * 0x9E3779B1 + step * 0x85EBCA77) & low_bits
    for shift, factor in HASH_ROUNDS:
        word = ((word ^ (word >> shift)) * factor) & low_bits
    return word ^ (word >> HASH_ROUNDS[-1][0])


def ranks(step: Tensor, size: int, real: Tensor | None) -> Tensor:
    """Return random ranks of tokens or samples, `[size]` or in the mask's shape; the largest are drawn, padding is -1.

    The rank of a real one depends on its place among the real ones, so padding does not change a draw.

    Args:
        step: an int64 scalar.
        size: number of tokens or samples.
        real: `[..., size]` bool; None = all are real.
    """
    if real is None:
        return hashed(step, torch.arange(size, device=step.device))
    return hashed(step, real.cumsum(dim=-1) - 1).masked_fill(~real, -1)


def drawn(call: Call, points: int, step: Tensor) -> Call:
    """Return a call with a limited number of real tokens per sample, drawn anew at every step.

    Args:
        call: the call to draw from.
        points: the maximum number of tokens per sample.
        step: an int64 scalar that determines the draw.
    """
    if call.length <= points:
        return call
    query, query_mask = _drawn_side(call.query, call.query_mask, points, step)
    key, key_mask = _drawn_side(call.key, call.key_mask, points, step)
    # The same places are drawn on both sides, so the same tokens keep one mask.
    return replace(
        call, query=query, key=key, query_mask=query_mask, key_mask=query_mask if call.is_of_same_tokens else key_mask
    )


def _drawn_side(rows: Tensor, mask: Tensor | None, points: int, step: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return `points` rows of each sample of `[B, n, f]`, and their mask."""
    if rows.shape[1] <= points:
        return rows, mask
    step = step.to(rows.device)
    chosen = ranks(step, rows.shape[1], mask).topk(points, dim=-1).indices
    if mask is None:
        return rows.index_select(1, chosen), None
    return torch.take_along_dim(rows, chosen[..., None], dim=1), mask.gather(1, chosen)


def masks_of(calls: list[Call]) -> Tensor | None:
    """Return the masks of calls of one kind, `[1 or C, 1 or 2, B, n]`; None if all tokens are real."""
    if not calls[0].is_of_same_tokens:
        masks = [
            rows.new_ones(call.samples, rows.shape[1], dtype=torch.bool) if mask is None else mask
            for call in calls
            for rows, mask in ((call.query, call.query_mask), (call.key, call.key_mask))
        ]
        padded = [F.pad(mask, (0, calls[0].length - mask.shape[1])) for mask in masks]
        return torch.stack(padded).unflatten(0, (-1, 2))
    shared = [call.query_mask for call in calls if call.query_mask is not None]
    if not shared:
        return None
    return shared[0][None, None] if all(mask is shared[0] for mask in shared) else torch.stack(shared)[:, None]


def computed_in(features: Tensor) -> torch.dtype:
    """Return the type in which a loss of features is computed: float32 or better."""
    return torch.promote_types(features.dtype, torch.float32)


def stacked(calls: Sequence[Call]) -> Tensor:
    """Return the queries and keys of calls of one kind, `[C, 2, B, n, H, d]`, in the type in which a loss is computed.

    B is the number of samples that are used, and n the larger number of queries and keys; zeros fill the other side.
    """
    sides = [call.selected(side) for call in calls for side in (call.query, call.key)]
    if not calls[0].is_of_same_tokens:
        sides = [F.pad(side, (0, 0, 0, calls[0].length - side.shape[1])) for side in sides]
    both = torch.stack(sides)
    return both.to(computed_in(both)).unflatten(-1, (calls[0].heads, -1)).unflatten(0, (-1, 2))
