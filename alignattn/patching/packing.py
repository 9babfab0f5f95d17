"""Samples that share a row, marked only by positions that restart: where the attention of a model separates them.

transformers separates them if a decoder gets neither an attention mask nor a cache of keys, flash attention if it gets
a single row without padding. An alignment follows the mask that the attention receives.
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

from alignattn.attention.masks import CrossMask, Edges, Packing, packing_of_starts, previous_real, sample_starts
from alignattn.patching.masks import AttentionMask, allowed_pairs, real_tokens

PACKING_ADVICE = "use flash attention, or pass use_cache=False and no attention mask to a decoder"
"""How the samples of a row are separated, for messages."""

_MASK_BY_POSITIONS = re.compile(r"(?:mask\w*\(|mask_kwargs = \{)[^)}]*position_ids")
"""A forward that makes its mask from positions."""


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
        return _MASK_BY_POSITIONS.search(getsource(of_class.forward)) is not None
    except (OSError, TypeError):
        return False
