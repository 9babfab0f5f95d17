"""The loss of an alignment and its gradient in one pass, piece by piece.

The loss is a scalar mean over samples, so the gradient of each piece is known, up to one factor, in the forward pass,
and only that gradient is kept for backward. On a GPU and in a compiled graph a piece is a group of layers; on a CPU it
is a block of samples that fits the cache, without most of their padding.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from alignattn.attention.alignment.calls import Call, TokenMeasure, computed_in, masks_of, stacked
from alignattn.attention.alignment.networks import rows_in_blocks
from alignattn.attention.alignment.passes import SCRATCH
from alignattn.attention.derivatives import once_differentiable

BLOCK_ELEMENTS = 2**18
"""Elements of a block's queries, and of its keys: 1 MiB each, which fits the second-level cache of a core."""


@dataclass(frozen=True)
class Piece:
    """The queries and keys of a part of a loss.

    Attributes:
        features: `[C, 2, B, n, H, d]` of C calls, in the type in which the loss is computed; the calls are ordered by
            layer, equally many per layer.
        tokens: the weights of the tokens in the loss.
        layers: the layers of the calls, whose networks are used.
        counts: the number of real tokens of each sample, descending, if they come first in each sample; None if only
            `tokens` says which are real.
    """

    features: Tensor
    tokens: TokenMeasure
    layers: slice
    counts: list[int] | None = None

    @property
    def rows(self) -> Tensor:
        """The features as rows in blocks, `[l * blocks, rows, d]`, for `network_pass`."""
        if self.counts is not None:
            return self.features.view(1, -1, self.features.shape[-1])
        return rows_in_blocks(self.features)


@dataclass(frozen=True)
class PieceLoss:
    """The contribution of a piece to a loss.

    Attributes:
        loss: a scalar.
        diagnostic: a scalar.
        to_features: the gradient with respect to the piece's features, in their shape; None if it is not needed.
        to_parameters: the gradient with respect to each of the loss's parameters, `[l, …]` of the piece's layers.
    """

    loss: Tensor
    diagnostic: Tensor
    to_features: Tensor | None = None
    to_parameters: Sequence[Tensor] = ()


Differentiate = Callable[[Piece, bool], PieceLoss]
"""Computes a `PieceLoss` from a piece; the second argument says whether gradients are needed."""

Group = tuple[slice, list[Call]]
"""Consecutive layers and their calls of one shape."""


def is_in_blocks(call: Call) -> bool:
    """Return whether the loss of a call is computed in blocks of samples."""
    return call.query.device.type == "cpu" and call.is_of_same_tokens and not torch.compiler.is_compiling()


def groups_of(calls: Sequence[Call], elements_of: Callable[[Call], int], budget: int) -> Iterator[Group]:
    """Yield groups of calls that are computed together: consecutive layers with equally many calls of one kind each.

    On a CPU each call is a group: new memory costs more there than a launch.

    Args:
        calls: the calls, in any order.
        elements_of: returns the size of the largest tensor that a call needs.
        budget: maximum number of elements of a group; a single call may exceed it.
    """
    # Kinds are compared, not hashed, and sizes are not divided, so that a compiler can keep them symbolic.
    kinds: list[list[Call]] = []
    for call in calls:
        if is_in_blocks(call):
            yield slice(call.layer, call.layer + 1), [call]
            continue
        alike = next((calls_of_kind for calls_of_kind in kinds if calls_of_kind[0].kind == call.kind), None)
        if alike is None:
            kinds.append([call])
        else:
            alike.append(call)
    for alike in kinds:
        elements = elements_of(alike[0])
        first = 0
        run: list[list[Call]] = []
        for layer in sorted({call.layer for call in alike}):
            for part in _parts([call for call in alike if call.layer == layer], elements, budget):
                follows = run and layer == first + len(run) and len(part) == len(run[0])
                if run and not (follows and (len(run) + 1) * len(part) * elements <= budget):
                    yield slice(first, first + len(run)), [call for part in run for call in part]
                    run = []
                first = first if run else layer
                run.append(part)
        yield slice(first, first + len(run)), [call for part in run for call in part]


def _parts(calls: list[Call], elements: int, budget: int) -> Iterator[list[Call]]:
    """Yield the calls of a layer in parts within the budget."""
    part: list[Call] = []
    for call in calls:
        if part and (len(part) + 1) * elements > budget:
            yield part
            part = []
        part.append(call)
    yield part


class OnePass(torch.autograd.Function):
    """The mean over `samples` of a loss and of its diagnostic, given the calls from `groups_of`.

    The tensors are the queries and keys of these calls, one after the other, and the parameters of the loss, `[L, …]`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        differentiate: Differentiate,
        groups: Sequence[Group],
        samples: int,
        keeps_gradient: bool,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the diagnostic, both scalars, and keep the gradients."""
        parameters = tensors[2 * sum(len(calls) for _, calls in groups) :]
        to_parameters: list[Tensor | None] = [None for _ in parameters]
        to_features: list[Tensor] = []
        nothing = tensors[0].new_zeros((), dtype=computed_in(tensors[0]))
        results = [PieceLoss(nothing, nothing)]

        def add(piece: Piece) -> Tensor | None:
            result = differentiate(piece, keeps_gradient)
            results.append(PieceLoss(result.loss, result.diagnostic))
            for index, gradient in enumerate(result.to_parameters):
                if not parameters[index].requires_grad:
                    continue
                total = to_parameters[index]
                if total is None and len(gradient) == len(parameters[index]):
                    to_parameters[index] = gradient
                    continue
                total = gradient.new_zeros(parameters[index].shape) if total is None else total
                total[piece.layers] += gradient.to(total.device)
                to_parameters[index] = total
            return result.to_features

        for layers, calls in groups:
            share = len(calls[0].query) / samples
            compute = _in_blocks if is_in_blocks(calls[0]) else _at_once
            to_features.append(compute(add, calls, layers, share))
        loss = torch.stack([result.loss.to(nothing) for result in results]).sum()
        diagnostic = torch.stack([result.diagnostic.to(nothing) for result in results]).sum()
        ctx.groups = groups
        ctx.save_for_backward(*to_features, *to_parameters)
        ctx.mark_non_differentiable(diagnostic)
        return loss, diagnostic

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Return the kept gradients, times that of the loss."""
        scale = grad_outputs[0]
        saved = ctx.saved_tensors
        to_features, to_parameters = saved[: len(ctx.groups)], saved[len(ctx.groups) :]
        # In place, because allocating costs more than the product; a retained graph needs the unscaled gradient again.
        is_kept = torch.compiler.is_compiling() or torch._C._autograd._get_current_graph_task_keep_graph()
        sides: list[Tensor] = []
        for (_, calls), kept in zip(ctx.groups, to_features, strict=True):
            # `[2 * C, B, n, H * d]` of the samples that are used, n the larger number of queries and keys.
            gradient = kept * scale.to(kept.device) if is_kept else kept.mul_(scale.to(kept.device))
            chosen = calls[0].chosen
            if chosen is not None and all(call.chosen is chosen for call in calls):
                spread = gradient.new_zeros(len(gradient), len(calls[0].query), *gradient.shape[2:])
                gradient = spread.index_copy_(1, chosen, gradient)
            for index, of_side in enumerate(gradient):
                call = calls[index // 2]
                side = call.key if index % 2 else call.query
                if len(of_side) < len(side):
                    assert call.chosen is not None
                    of_side = of_side.new_zeros(len(side), *of_side.shape[1:]).index_copy_(0, call.chosen, of_side)
                sides.append(of_side[:, : side.shape[1]].to(side.dtype))
        of_parameters = [None if gradient is None else gradient * scale.to(gradient) for gradient in to_parameters]
        return None, None, None, None, *sides, *of_parameters


def _kept_in(features: Tensor) -> torch.dtype:
    """Return the type in which a gradient is kept until it is scaled: in float16 it would underflow."""
    return torch.float32 if features.dtype == torch.float16 else features.dtype


def _at_once(add: Callable[[Piece], Tensor | None], calls: list[Call], layers: slice, share: float) -> Tensor:
    """Compute the loss of a group of layers as one piece, and return its gradient `[2 * C, B, n, H * d]`."""
    features, query = stacked(calls), calls[0].query
    tokens = TokenMeasure.of(features, masks_of(calls), share)
    with SCRATCH.frame():
        gradient = add(Piece(features, tokens, layers))
        if gradient is None:
            return query.new_empty(0)
        kept = query.new_empty(features.shape, dtype=_kept_in(query))
        return kept.copy_(gradient).flatten(0, 1).flatten(-2)


def _in_blocks(add: Callable[[Piece], Tensor | None], calls: list[Call], layers: slice, share: float) -> Tensor:
    """Compute the loss of a single call in blocks of its samples, and return its gradient `[2, B, n, H * d]`."""
    (call,) = calls
    both = [call.selected(side.detach()) for side in (call.query, call.key)]
    batch, length, width = both[0].shape
    mask = call.query_mask
    computed = both[0].new_empty(0, dtype=computed_in(both[0]))
    gradient = both[0].new_empty(2, batch * length, width, dtype=_kept_in(both[0]))
    if mask is not None:
        # No block writes there.
        gradient.index_fill_(1, (~mask.flatten()).nonzero().squeeze(-1), 0)
    sides = [side.flatten(0, 1) for side in both]
    for rows, counts, samples in _blocks_of(mask, batch, length, max(1, BLOCK_ELEMENTS // max(width, 1))):
        with SCRATCH.frame():
            features = SCRATCH.take((2, len(counts) * counts[0], width), computed)
            for part, side in zip(features, sides, strict=True):
                if isinstance(rows, Tensor) and side.dtype == part.dtype:
                    torch.index_select(side, 0, rows, out=part)
                else:
                    part.copy_(side[rows])
            is_real = None if counts[-1] == counts[0] else torch.arange(counts[0]) < torch.tensor(counts)[:, None]
            of_token = (1 / features.new_tensor(counts))[:, None]
            of_token = of_token.expand(-1, counts[0]) if is_real is None else of_token * is_real
            of_sample = features.new_full((1, len(counts)), share / samples)
            tokens = TokenMeasure(of_token[None, None], of_sample, None if is_real is None else is_real[None, None])
            by_head = features.view(1, 2, len(counts), counts[0], call.heads, -1)
            of_block = add(Piece(by_head, tokens, layers, counts))
            if of_block is None:
                continue
            of_block = of_block.reshape(2, -1, width).to(gradient.dtype)
            if isinstance(rows, slice):
                gradient[:, rows] = of_block
            elif is_real is None:
                gradient.index_copy_(1, rows, of_block)
            else:
                of_real = is_real.flatten().nonzero().squeeze(-1)
                gradient.index_copy_(1, rows[of_real], of_block.index_select(1, of_real))
    return gradient.view(2, batch, length, width)


def _blocks_of(
    mask: Tensor | None, batch: int, length: int, tokens: int
) -> Iterator[tuple[Tensor | slice, list[int], int]]:
    """Yield blocks of the samples that have a real token, with similar lengths.

    Args:
        mask: `[batch, length]` bool; None = all tokens are real.
        batch: number of samples.
        length: number of tokens of each.
        tokens: the number of tokens of a block.

    Yields:
        The rows of a block among the `batch * length` tokens, as many for each sample as the longest has real tokens,
        which come first; the number of real tokens of each sample, descending; and the number of samples in all blocks.
    """
    if length == 0:
        return
    if mask is None:
        samples = max(1, tokens // length)
        for start in range(0, batch, samples):
            stop = min(start + samples, batch)
            yield slice(start * length, stop * length), [length] * (stop - start), batch
        return
    # Real tokens first, in their order.
    places = (~mask).byte().argsort(dim=1, stable=True) + length * torch.arange(batch)[:, None]
    counts, order = mask.sum(dim=1).sort(descending=True, stable=True)
    remaining = counts[: int((counts > 0).sum())].tolist()
    start = 0
    while start < len(remaining):
        longest = remaining[start]
        stop = min(start + max(1, tokens // longest), len(remaining))
        rows = places[order[start:stop], :longest]
        # A row of padding repeats a real one, since its own values may be anything; its weight is 0.
        rows = torch.where(torch.arange(longest) < counts[start:stop, None], rows, rows[:, :1])
        yield rows.flatten(), remaining[start:stop], len(remaining)
        start = stop
