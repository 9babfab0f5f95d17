"""An alignment loss computed a few samples at a time, with its gradient in the same pass, for the CPU.

The loss is a mean over samples, and a scalar: the gradient of each part is known, up to one factor, as soon as the part
is. A part that fits the cache is much faster than the whole, nothing of it has to be kept for backward but the gradient
itself, and tokens of padding are left out. On a GPU, and in a compiled graph, one large batch is the better choice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_ELEMENTS = 2**18
"""Features of a block's queries, and of its keys: 1 MiB each, what a core's second-level cache holds of them."""

BlockLoss = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""Maps features `[2, b, H, n, d]` (queries, keys) and a mask `[b, n]` to the mean loss and a diagnostic, scalars."""


@dataclass(frozen=True)
class Block:
    """Some samples of a batch, cut to the longest of them.

    Attributes:
        rows: `[b * n]`, where their tokens stand among all tokens of the batch, `[B * N]`.
        mask: `[b, n]` bool, True = a real token; None where every token is.
        samples: b.
        share: of the batch's samples.
    """

    rows: Tensor
    mask: Tensor | None
    samples: int
    share: float


def blocks_of(batch: int, length: int, mask: Tensor | None, width: int) -> Iterator[Block]:
    """Yield the samples that have a real token, those of about one length together.

    Args:
        batch: samples, B.
        length: tokens of each, N.
        mask: `[B, N]` bool, True = a real token, or None.
        width: features of one token in all heads.
    """
    if mask is None:
        mask = torch.ones(batch, length, dtype=torch.bool)
    # Real tokens first, in their order: what a block takes of a sample is then a prefix.
    rows = (~mask).byte().argsort(dim=1, stable=True) + length * torch.arange(batch)[:, None]
    counts, order = mask.sum(dim=1).sort(descending=True, stable=True)
    remaining = counts[: int((counts > 0).sum())].tolist()
    total, start = len(remaining), 0
    while start < total:
        longest = remaining[start]
        samples = min(max(1, BLOCK_ELEMENTS // (width * longest)), total - start)
        chosen, real = order[start : start + samples], counts[start : start + samples, None]
        is_real = torch.arange(longest) < real
        yield Block(rows[chosen, :longest].flatten(), None if is_real.all() else is_real, samples, samples / total)
        start += samples


class _LossInBlocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        loss_of: BlockLoss,
        keeps_gradient: bool,
        mask: Tensor | None,
        query: Tensor,
        key: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        batch, heads, length, _ = query.shape
        # The projections' own memory order is [B, n, H, d]: taken so, a token's features are one row without a copy.
        both = [features.transpose(1, 2).flatten(2).flatten(0, 1) for features in (query, key)]
        wanted = [tensor for tensor in parameters if tensor.requires_grad]
        to_features = [_zero_at_padding(rows, mask) for rows in both]
        to_parameters = [torch.zeros_like(tensor) for tensor in wanted]
        compute_type = torch.promote_types(query.dtype, torch.float32)
        loss = query.new_zeros((), dtype=compute_type)
        diagnostic = torch.zeros_like(loss)
        for block in blocks_of(batch, length, mask, both[0].shape[1]):
            selected = torch.stack([rows.index_select(0, block.rows) for rows in both]).to(compute_type)
            # Hooks of an outer scope, such as gradient checkpointing's, are not meant for this graph.
            with torch.set_grad_enabled(keeps_gradient), torch.autograd.graph.saved_tensors_hooks(_same, _same):
                selected.requires_grad_()
                features = selected.unflatten(1, (block.samples, -1)).unflatten(-1, (heads, -1)).transpose(2, 3)
                block_loss, block_diagnostic = loss_of(features, block.mask)
            loss += block_loss.detach() * block.share
            diagnostic += block_diagnostic * block.share
            if not keeps_gradient:
                continue
            gradients = torch.autograd.grad(block_loss, [selected, *wanted], loss.new_tensor(block.share))
            for target, gradient in zip(to_features, gradients[0], strict=True):
                target.index_copy_(0, block.rows, gradient.to(target.dtype))
            for target, gradient in zip(to_parameters, gradients[1:], strict=True):
                target += gradient
        ctx.save_for_backward(*to_features, *to_parameters)
        ctx.is_wanted = [tensor.requires_grad for tensor in parameters]
        ctx.shape = (batch, length, heads, -1)
        ctx.mark_non_differentiable(diagnostic)
        return loss, diagnostic

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        to_query, to_key, *to_parameters = ctx.saved_tensors
        scale = grad_outputs[0]
        # A fresh tensor of this size costs more than the product; a graph that is kept may ask for the old one again.
        is_kept = torch._C._autograd._get_current_graph_task_keep_graph()
        scaled = [rows * scale if is_kept else rows.mul_(scale) for rows in (to_query, to_key)]
        of_features = [rows.view(ctx.shape).transpose(1, 2) for rows in scaled]
        of_parameters = iter(to_parameters)
        wanted = [next(of_parameters) * scale if is_wanted else None for is_wanted in ctx.is_wanted]
        return None, None, None, *of_features, *wanted


def _zero_at_padding(rows: Tensor, mask: Tensor | None) -> Tensor:
    """Return a tensor like `rows`, `[B * N, f]`, that is zero where no block will write to it, and empty elsewhere."""
    zeroed = torch.empty_like(rows)
    return zeroed if mask is None else zeroed.masked_fill_(~mask.flatten()[:, None], 0)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def loss_in_blocks(
    loss_of: BlockLoss, query: Tensor, key: Tensor, mask: Tensor | None, parameters: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the mean over the samples that have a real token of `loss_of`, and of its diagnostic.

    Args:
        loss_of: the loss of some samples; a mean over them. It sees float32 features, float64 for float64 input.
        query: `[B, H, n, d]`.
        key: `[B, H, n, d]`.
        mask: `[B, n]` bool, True = a real token; None = all are real.
        parameters: what `loss_of` depends on besides its arguments.
    """
    result: tuple[Tensor, Tensor] = _LossInBlocks.apply(  # type: ignore[no-untyped-call]
        loss_of, torch.is_grad_enabled(), mask, query, key, *parameters
    )
    return result
