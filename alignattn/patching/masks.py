"""Masks of attention: which tokens are real, and which may attend to which."""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from alignattn.attention.masks import CrossMask, Edges, Mask
from alignattn.utils.errors import AlignAttnError

Sides = tuple[Tensor | None, Tensor | None]
"""The masks of queries and of keys."""

AttentionMask = Mask | BlockMask
"""What attention modules receive as a mask: what `alignattn.attend` takes, or a mask of any attention implementation of
transformers (`real_tokens`)."""

MASKED_BELOW = -1e4
"""A number added to a score masks the pair from here on: transformers adds the lowest of the type, older code this."""


def real_tokens(mask: AttentionMask | None, batch: int | None = None) -> Sides:
    """Return which queries and which keys are real, `[B, n]` and `[B, m]` bool; None where all are.

    A token is real if it may attend to itself. Off the diagonal a sliding window masks real pairs, too.

    Args:
        mask: the mask that the attention receives. None: all tokens are real. `[B, n]`: nonzero at real tokens (flash
            attention). `[B, n, n]` or `[B, 1 or H, n or 1, n]`, bool or added to the scores (SDPA and eager
            attention). A `BlockMask` (flex attention). A `CrossMask`. The edges of a graph, whose nodes are all real.
        batch: B, where the mask is the same for all samples, or for the windows of all images (Swin).

    Raises:
        AlignAttnError: if the mask has another shape.
    """
    if mask is None or isinstance(mask, Edges):
        return None, None
    if isinstance(mask, CrossMask):
        return mask.query, mask.key
    real = _diagonal_of_blocks(mask) if isinstance(mask, BlockMask) else _diagonal(mask)
    if batch is not None and len(real) != batch:
        real = real.repeat(batch // len(real), 1)
    return real, real


def allowed_pairs(mask: Tensor) -> Tensor:
    """Return a mask of pairs, bool or added to the scores, as bool of its shape: True where a query may attend."""
    return mask > MASKED_BELOW if mask.is_floating_point() else mask.bool()


def is_one_way(mask: AttentionMask) -> bool:
    """Tell whether of two real tokens one attends to the other alone, as under a causal mask."""
    if not isinstance(mask, Tensor) or mask.dim() != 4 or mask.shape[-1] != mask.shape[-2]:
        return False
    pairs = allowed_pairs(mask)
    real = pairs.diagonal(dim1=-2, dim2=-1)
    one_way = pairs & ~pairs.transpose(-2, -1)
    return bool((one_way & real[..., :, None] & real[..., None, :]).any())


def _diagonal(mask: Tensor) -> Tensor:
    if mask.dim() == 2:
        return mask.bool()
    pairs = mask[:, None] if mask.dim() == 3 else mask
    if pairs.dim() != 4 or pairs.shape[-2] not in (1, pairs.shape[-1]):
        raise AlignAttnError(
            f"an alignment cannot tell the padding of an attention mask {list(mask.shape)}: it reads [batch, tokens] "
            "and [batch, 1, tokens, tokens]"
        )
    # A token is real in all heads, or in none.
    pairs = pairs[:, 0]
    return allowed_pairs(pairs[:, 0] if pairs.shape[-2] == 1 else pairs.diagonal(dim1=-2, dim2=-1))


def _diagonal_of_blocks(mask: BlockMask) -> Tensor:
    batch, _, length, _ = mask.shape
    device = mask.kv_num_blocks.device
    sample, token = torch.arange(batch, device=device)[:, None], torch.arange(length, device=device)[None]
    allowed: Tensor = mask.mask_mod(sample, torch.zeros_like(sample), token, token)
    return allowed.expand(batch, length)
