"""Some of a call's tokens in place of all, where a sample has very many: the nodes of a graph."""

from dataclasses import replace

import torch
from torch import Tensor

from alignattn.attention.alignment.call import Call
from alignattn.attention.alignment.draws import token_ranks


def drawn(call: Call, points: int, step: Tensor) -> Call:
    """Return a call with at most so many real tokens of each sample, drawn anew at every step.

    Args:
        call: that is drawn from.
        points: of a sample, at most; with no more it is returned as it is.
        step: an int64 scalar, which the draw is a function of.
    """
    if call.length <= points:
        return call
    query, query_mask = _drawn_side(call.query, call.query_mask, points, step)
    key, key_mask = _drawn_side(call.key, call.key_mask, points, step)
    # Of the same tokens they stay: the same places are drawn, and one mask says so.
    return replace(
        call, query=query, key=key, query_mask=query_mask, key_mask=query_mask if call.is_of_same_tokens else key_mask
    )


def _drawn_side(rows: Tensor, mask: Tensor | None, points: int, step: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return at most so many rows of each sample, of `[B, n, f]`, and their mask."""
    if rows.shape[1] <= points:
        return rows, mask
    step = step.to(rows.device)
    chosen = token_ranks(step, rows.shape[1], mask).topk(points, dim=-1).indices
    if mask is None:
        return rows.index_select(1, chosen), None
    return torch.take_along_dim(rows, chosen[..., None], dim=1), mask.gather(1, chosen)
