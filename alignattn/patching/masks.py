"""Masks of attention: which tokens are real, which may attend to which, and which samples share a row.

Samples of a row may be marked only by positions that restart. transformers separates them if a decoder gets neither an
attention mask nor a cache of keys, flash attention if it gets a single row without padding. An alignment follows the
mask that the attention receives.
"""

import functools
import re
from collections.abc import Mapping
from inspect import getsource
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers.utils.generic import is_flash_attention_requested

from alignattn.attention.masks import (
    CrossMask,
    Edges,
    Mask,
    Packing,
    packing_of_starts,
    previous_real,
    sample_starts,
)
from alignattn.utils.errors import AlignAttnError

Sides = tuple[Tensor | None, Tensor | None]
"""The masks of queries and of keys."""

AttentionMask = Mask | BlockMask
"""What attention modules receive as a mask: what `alignattn.attend` accepts, or a mask of any attention implementation
of transformers (`real_tokens`)."""

MASKED_BELOW = -1e4
"""An added score of at most this masks a pair: transformers adds the dtype's minimum, older code this number."""

NO_TARGET = -100
"""transformers' label of a position without a target."""

PACKING_ADVICE = "use flash attention, or pass use_cache=False and no attention mask to a decoder"
"""How the samples of a row are separated, for messages."""


def real_tokens(mask: AttentionMask | None, batch: int | None = None, lengths: tuple[int, int] | None = None) -> Sides:
    """Return which queries and which keys are real, `[B, n]` and `[B, m]` bool; None where all are.

    A token is real if it may attend to itself. Off the diagonal, a sliding window or a causal mask also masks real
    pairs. If queries and keys are different tokens (n ≠ m), a key is real if any query may attend to it, and a query if
    it may attend to any key. Keys of a cache or a prefix, which the mask has before the tokens of the call, are left
    out.

    Args:
        mask: the mask that the attention receives. None: all tokens are real. `[B, m]`: nonzero at real tokens (flash
            attention). `[B, n, m]` or `[B, 1 or H, n or 1, m]`, bool or added to the scores (SDPA and eager
            attention). A `BlockMask` (flex attention). A `CrossMask`. The edges of a graph, whose nodes are all real.
        batch: B, where the mask is the same for all samples, or for the windows of all images (Swin).
        lengths: n and m; None where they are equal.

    Raises:
        AlignAttnError: if the mask has another shape.
    """
    if mask is None or isinstance(mask, Edges):
        return None, None
    if isinstance(mask, CrossMask):
        return mask.query, mask.key
    if lengths is not None and lengths[0] != lengths[1]:
        if isinstance(mask, BlockMask):
            device = mask.kv_num_blocks.device
            places = [torch.arange(size, device=device) for size in (mask.shape[0], *lengths)]
            sample, query, key = torch.meshgrid(*places, indexing="ij")
            pairs: Tensor = mask.mask_mod(sample, torch.zeros_like(sample), query, key).expand(sample.shape)
        else:
            pairs = mask[:, None] if mask.dim() == 2 else allowed_pairs(mask if mask.dim() == 3 else mask[:, 0])
        if pairs.dim() != 3 or pairs.shape[-1] != lengths[1] or pairs.shape[-2] not in (1, lengths[0]):
            raise AlignAttnError(
                f"an alignment cannot tell the padding of an attention mask {list(mask.shape)} for {lengths[0]} "
                f"queries and {lengths[1]} keys"
            )
        queries, keys = pairs.bool().any(-1).expand(-1, lengths[0]), pairs.bool().any(-2)
    elif isinstance(mask, BlockMask):
        device = mask.kv_num_blocks.device
        sample, token = (torch.arange(size, device=device) for size in (mask.shape[0], mask.shape[2]))
        allowed: Tensor = mask.mask_mod(sample[:, None], torch.zeros_like(sample)[:, None], token[None], token[None])
        queries = keys = allowed.expand(len(sample), len(token))
    elif mask.dim() == 2:
        queries = keys = mask.bool()
    else:
        pairs = mask[:, None] if mask.dim() == 3 else mask
        if pairs.dim() != 4 or not pairs.shape[-2] <= pairs.shape[-1]:
            raise AlignAttnError(
                f"an alignment cannot tell the padding of an attention mask {list(mask.shape)}: it reads [batch, "
                "tokens] and [batch, 1, tokens, tokens]"
            )
        # A token is real in all heads, or in none. The mask has keys of a cache or a prefix first.
        pairs = pairs[:, 0]
        earlier = pairs.shape[-1] - pairs.shape[-2]
        queries = keys = allowed_pairs(
            pairs[:, 0] if pairs.shape[-2] == 1 else pairs.diagonal(earlier, dim1=-2, dim2=-1)
        )
    if lengths is not None and queries is keys:
        queries = keys = queries[:, -lengths[0] :]
    if batch is None or len(queries) == batch:
        return queries, keys
    repeated = queries.repeat(batch // len(queries), 1)
    return repeated, repeated if keys is queries else keys.repeat(batch // len(keys), 1)


def real_targets(labels: Tensor) -> Tensor:
    """Return which positions of a decoder are real by its labels `[B, n]`: all up to the last target of each row."""
    return labels.ne(NO_TARGET).flip(-1).cumsum(-1).flip(-1) > 0


def allowed_pairs(mask: Tensor) -> Tensor:
    """Return a mask of pairs, bool or added to the scores, as bool of its shape: True where a query may attend."""
    return mask > MASKED_BELOW if mask.is_floating_point() else mask.bool()


def is_causal(mask: AttentionMask) -> bool:
    """Tell whether a mask lets real tokens attend to earlier ones, and none to a later one."""
    if not isinstance(mask, Tensor) or mask.dim() != 4 or mask.shape[-1] != mask.shape[-2]:
        return False
    pairs = allowed_pairs(mask)
    real = pairs.diagonal(dim1=-2, dim2=-1)
    pairs = pairs & real[..., :, None] & real[..., None, :]
    return bool(pairs.tril(-1).any()) and not bool(pairs.triu(1).any())


def has_pairs(mask: AttentionMask | None) -> bool:
    """Tell whether a mask says for each query which keys it may attend to, so that it can separate samples."""
    if isinstance(mask, BlockMask):
        return True
    return isinstance(mask, Tensor) and mask.dim() > 2 and mask.shape[-2] > 1


def is_flash(module: Any) -> bool:
    """Tell whether a module attends by flash attention, which separates the samples of a single row by positions."""
    implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return bool(is_flash_attention_requested(requested_attention_implementation=implementation))


# Packings depend on values, which a compiler does not know.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def packing_by_positions(position_ids: Tensor, mask: AttentionMask | None) -> tuple[Packing | None, bool]:
    """Return the packing of token rows, and whether positions restart within what the attention treats as one sample.

    Args:
        position_ids: `[B, n]`; a sample may begin where they restart.
        mask: the mask of pairs that the attention receives, which separates the samples or not; None for flash
            attention, which separates them by their positions.
    """
    if mask is None:
        # As transformers tells flash attention: a sample begins at the smallest position.
        return packing_of_starts(position_ids == position_ids.min()), False
    length = position_ids.shape[1]
    is_real = real_tokens(mask, len(position_ids), (length, length))[0]
    assert is_real is not None
    restarts, before = sample_starts(position_ids, is_real), previous_real(is_real)
    starts = restarts & ~((before >= 0) & _attends(mask, before.clamp(min=0)))
    is_mixed = bool((restarts & ~starts).any())
    return packing_of_starts(starts), is_mixed


def _attends(mask: AttentionMask, key: Tensor) -> Tensor:
    """Return whether each token may attend to the token at a place of its row, `[B, n]` bool, given those places."""
    if isinstance(mask, BlockMask):
        sample, query = (torch.arange(size, device=key.device) for size in key.shape)
        allowed: Tensor = mask.mask_mod(sample[:, None], key.new_zeros(()), query[None], key)
        return allowed.expand(key.shape)
    assert not isinstance(mask, Edges | CrossMask)
    pairs = allowed_pairs(mask if mask.dim() == 3 else mask[:, 0])
    # A mask has keys of a cache or a prefix before those of the call.
    pairs = pairs[..., -key.shape[1] :].expand(len(key), -1, -1)
    return pairs.gather(-1, key[..., None])[..., 0]


def packing_of_batch(model: nn.Module | None, batch: Mapping[str, Any]) -> Packing | None:
    """Return how the attention of a model separates the samples of a batch's rows by positions; None if it does not.

    Args:
        model: the model; None for one that separates them wherever transformers can.
        batch: the arguments of the model.
    """
    positions, mask = batch.get("position_ids"), batch.get("attention_mask")
    if not isinstance(positions, Tensor) or positions.dim() != 2:
        return None
    positions = positions.expand(len(batch.get("input_ids", positions)), -1)
    if isinstance(mask, Tensor | BlockMask) and has_pairs(mask):
        return packing_by_positions(positions, mask)[0]
    # The part that makes the mask: without a head, and without adapters.
    inner: Any = model
    if hasattr(inner, "get_base_model"):
        inner = inner.get_base_model()
    inner_class: Any = type(getattr(inner, "base_model", inner))
    if model is not None and not _masks_by_positions(inner_class):
        return None
    if is_flash(model):
        is_read = len(positions) == 1 and (mask is None or (isinstance(mask, Tensor) and bool(mask.all())))
        return packing_by_positions(positions, None)[0] if is_read else None
    config = getattr(model, "config", None)
    uses_cache = batch.get("use_cache", getattr(config, "use_cache", False))
    is_masked = mask is not None or uses_cache or batch.get("past_key_values") is not None
    return None if is_masked else packing_of_starts(sample_starts(positions))


@functools.cache
def _masks_by_positions(of_class: Any) -> bool:
    """Tell whether models of a class make their mask from positions."""
    try:
        pattern = r"(?:mask\w*\(|mask_kwargs = \{)[^)}]*position_ids"
        return re.search(pattern, getsource(of_class.forward)) is not None
    except (OSError, TypeError):
        return False
