"""Some of a call's tokens in place of all, where a sample has very many: the nodes of a graph."""

from dataclasses import replace

import torch
from torch import Tensor

from alignattn.attention.alignment.call import Call
from alignattn.attention.alignment.draws import hashed


def drawn(call: Call, points: int, step: Tensor) -> Call:
    """Return a call with at most so many real tokens of each sample, drawn anew at every step.

    Args:
        call: that is drawn from.
        points: of a sample, at most; with no more it is returned as it is.
        step: an int64 scalar, which the draw is a function of.
    """
    length = call.query.shape[1]
    if length <= points:
        return call
    places = torch.arange(length, device=call.query.device)
    step = step.to(call.query.device)
    if call.mask is None:
        chosen = hashed(step, places).topk(points).indices
        return replace(call, query=call.query.index_select(1, chosen), key=call.key.index_select(1, chosen))
    # Counted by real tokens, so that padding changes no draw.
    ranks = hashed(step, call.mask.cumsum(dim=-1) - 1).masked_fill(~call.mask, -1)
    chosen = ranks.topk(points, dim=-1).indices
    query, key = (torch.take_along_dim(part, chosen[..., None], dim=1) for part in (call.query, call.key))
    return replace(call, query=query, key=key, mask=call.mask.gather(1, chosen))
