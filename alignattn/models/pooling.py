"""One vector of the words of each text, without parameters; `alignattn.attention.pooling` has the one that attends."""

import torch
from torch import Tensor

from alignattn.models.word_model import Sentences


def average(sentences: Sentences) -> Tensor:
    """Return the mean over the real words, `[B, d]` of `[B, n, d]`; 0 for an empty text (Chen et al. 2017, eq. 18)."""
    states, mask = sentences
    return (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def maximum(sentences: Sentences) -> Tensor:
    """Return each feature's maximum over the real words, `[B, d]`; 0 for an empty text (Kim 2014, §2)."""
    states, mask = sentences
    largest = states.masked_fill(~mask[..., None], torch.finfo(states.dtype).min).amax(dim=1)
    return largest.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)


def last_states(sentences: Sentences) -> Tensor:
    """Return what each direction of a recurrent network ends with, `[B, d]`, of both directions' states `[B, n, d]`."""
    states, mask = sentences
    forward, backward = states.chunk(2, dim=-1)
    last = (mask.sum(dim=1) - 1).clamp(min=0)
    ends = forward.gather(1, last[:, None, None].expand(-1, 1, forward.shape[-1]))[:, 0]
    return torch.cat((ends, backward[:, 0]), dim=-1)
