"""The module that holds one choice a slot of one attention layer."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alignattn.attention.alignment import ALIGNMENTS, Alignment
from alignattn.config import AttentionConfig


class AttentionVariant(nn.Module):
    """The slots of one self-attention layer, with their parameters in float32.

    Args:
        config: the choices.
        head_dim: size d of a head's query and key.
    """

    def __init__(self, config: AttentionConfig, head_dim: int) -> None:
        super().__init__()
        self.alignment: Alignment | None = None
        if config.alignment is not None:
            self.alignment = ALIGNMENTS[config.alignment](
                head_dim, head_reduction=config.head_reduction, **config.alignment_options
            )


def attention_with_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attend and return the weights as well (Vaswani et al. 2017, eq. 1).

    The operations and their order are those of transformers' eager attention, so that the results are bitwise its.

    Args:
        query: `[B, H, n, d]`.
        key: `[B, H, n, d]`.
        value: `[B, H, n, d]`.
        mask: bool, broadcastable to `[B, H, n, n]`, True where a query may attend; or float, added to the scores.
        scale: factor of the scores; 1/sqrt(d) if None.
        dropout: probability with which a weight is dropped.

    Returns:
        The attended values `[B, H, n, d]` and the weights `[B, H, n, n]` that they were averaged with.
    """
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        if not mask.is_floating_point():
            mask = torch.where(mask, 0.0, torch.finfo(scores.dtype).min).to(scores.dtype)
        scores = scores + mask
    weights = F.dropout(F.softmax(scores, dim=-1), p=dropout, training=dropout > 0)
    return weights @ value, weights
