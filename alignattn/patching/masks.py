"""Masks of attention: which tokens are real, and which may attend to which."""

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from alignattn.attention.masks import CrossMask, Edges, Mask
from alignattn.utils.errors import AlignAttnError

Sides = tuple[Tensor | None, Tensor | None]
"""The masks of queries and of keys."""

AttentionMask = Mask | BlockMask
"""What attention modules receive as a mask: what `alignattn.attend` accepts, or a mask of any attention implementation
of transformers (`real_tokens`)."""

MASKED_BELOW = -1e4
"""An added score of at most this masks a pair: transformers adds the dtype's minimum, older code this number."""


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
