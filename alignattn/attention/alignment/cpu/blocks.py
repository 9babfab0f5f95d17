"""An alignment loss computed for blocks of samples, with its gradient in the same pass, for the CPU.

The loss is a scalar mean over samples: the gradient of each block is known, up to one factor, in the forward pass. A
block that fits the cache is much faster than the whole, only the gradient is kept for backward, and tokens of padding
are left out. On a GPU and in a compiled graph one large batch is faster.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from alignattn.attention.alignment.calls import Call
from alignattn.attention.alignment.cpu.passes import SCRATCH
from alignattn.attention.derivatives import once_differentiable

BLOCK_ELEMENTS = 2**18
"""Elements of a block's queries, and of its keys: 1 MiB each, which fits the second-level cache of a core."""


@dataclass(frozen=True)
class Block:
    """The R real tokens of b samples of a batch, sample after sample.

    Attributes:
        rows: their indices among all `B * N` tokens of the batch; a tensor `[R]`, or a slice.
        counts: the number of real tokens of each sample, descending.
        sample_weight: the weight of a sample in the mean over samples with a real token, times that of its call.
    """

    rows: Tensor | slice
    counts: list[int]
    sample_weight: float

    @property
    def mask(self) -> Tensor | None:
        """`[b, n]` bool, with n the longest sample, True = a real token; None if every token is real."""
        if self.counts[-1] == self.counts[0]:
            return None
        return torch.arange(self.counts[0]) < torch.tensor(self.counts)[:, None]

    def gather(self, rows: Tensor, out: Tensor) -> None:
        """Write the block's rows of `[B * N, f]` to `out`, `[R, f]`."""
        if isinstance(self.rows, Tensor) and rows.dtype == out.dtype:
            torch.index_select(rows, 0, self.rows, out=out)
        else:
            out.copy_(rows[self.rows])

    def scatter(self, values: Tensor, rows: Tensor) -> None:
        """Write `[R, f]` to the block's rows of `[B * N, f]`."""
        if isinstance(self.rows, Tensor):
            rows.index_copy_(0, self.rows, values.to(rows.dtype))
        else:
            rows[self.rows] = values

    def token_weight(self, dtype: torch.dtype) -> Tensor:
        """Return the weight of each token in the mean over samples of the mean over tokens, `[R]`."""
        counts = torch.tensor(self.counts)
        return (self.sample_weight / counts.to(dtype)).repeat_interleave(counts)


@dataclass(frozen=True)
class BlockLoss:
    """The contribution of a block to the loss of its batch.

    Attributes:
        loss: a scalar.
        diagnostic: a scalar.
        to_features: the gradient with respect to the features; None if it is not needed.
        to_parameters: the gradient with respect to each of the loss's parameters of the layer, `[1, …]`.
    """

    loss: Tensor
    diagnostic: Tensor
    to_features: Tensor | None = None
    to_parameters: Sequence[Tensor | None] = ()


LossOfBlock = Callable[[Tensor, Block, int, bool], BlockLoss]
"""Computes a `BlockLoss` from the features `[2, R, H, d]` of a block's queries and keys, the block, the index of the
layer and whether gradients are needed."""


def blocks_of(call: Call, share: float) -> Iterator[Block]:
    """Yield blocks of the samples of a call that have a real token, with similar lengths.

    Args:
        call: on the CPU.
        share: the weight of the call in the mean over calls.
    """
    batch, length, width = call.query.shape
    mask = call.query_mask
    if length == 0:
        return
    if mask is None:
        samples = max(1, BLOCK_ELEMENTS // (width * length))
        for start in range(0, batch, samples):
            stop = min(start + samples, batch)
            yield Block(slice(start * length, stop * length), [length] * (stop - start), share / batch)
        return
    # Real tokens first, in their order: the tokens of a sample are then a prefix.
    rows = (~mask).byte().argsort(dim=1, stable=True) + length * torch.arange(batch)[:, None]
    counts, order = mask.sum(dim=1).sort(descending=True, stable=True)
    remaining = counts[: int((counts > 0).sum())].tolist()
    total, start = len(remaining), 0
    while start < total:
        longest = remaining[start]
        stop = min(start + max(1, BLOCK_ELEMENTS // (width * longest)), total)
        is_real = torch.arange(longest) < counts[start:stop, None]
        yield Block(rows[order[start:stop], :longest][is_real], remaining[start:stop], share / total)
        start = stop


class _LossInBlocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, loss_of: LossOfBlock, keeps_gradient: bool, calls: Sequence[Call], samples: int, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        parameters = tensors[2 * len(calls) :]
        to_parameters = [torch.zeros_like(tensor) if tensor.requires_grad else None for tensor in parameters]
        compute_type = torch.promote_types(tensors[0].dtype, torch.float32)
        loss = tensors[0].new_zeros((), dtype=compute_type)
        diagnostic = torch.zeros_like(loss)
        to_features: list[Tensor] = []
        for call in calls:
            layer = slice(call.layer, call.layer + 1)
            both = [features.detach().flatten(0, 1) for features in (call.query, call.key)]
            of_call = _zero_at_padding(both, call.query_mask)
            to_features += of_call
            for block in blocks_of(call, call.weight / samples):
                with SCRATCH.frame():
                    selected = SCRATCH.take(2, sum(block.counts), both[0].shape[1], dtype=compute_type)
                    for part, rows in zip(selected, both, strict=True):
                        block.gather(rows, part)
                    result = loss_of(selected.unflatten(-1, (call.heads, -1)), block, call.layer, keeps_gradient)
                    loss += result.loss
                    diagnostic += result.diagnostic
                    if result.to_features is None:
                        continue
                    for target, gradient in zip(of_call, result.to_features.flatten(2), strict=True):
                        block.scatter(gradient, target)
                    for total, term in zip(to_parameters, result.to_parameters, strict=True):
                        if total is not None and term is not None:
                            total[layer] += term
        ctx.save_for_backward(*to_features, *to_parameters)
        ctx.shapes = [tensor.shape for tensor in tensors[: 2 * len(calls)]]
        ctx.mark_non_differentiable(diagnostic)
        return loss, diagnostic

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        scale = grad_outputs[0]
        saved = ctx.saved_tensors
        to_features, to_parameters = saved[: len(ctx.shapes)], saved[len(ctx.shapes) :]
        # In place, because allocating costs more than the product; a retained graph needs the unscaled gradient again.
        is_kept = torch._C._autograd._get_current_graph_task_keep_graph()
        scaled = [rows * scale if is_kept else rows.mul_(scale) for rows in to_features]
        of_features = [rows.view(shape) for rows, shape in zip(scaled, ctx.shapes, strict=True)]
        of_parameters = [None if gradient is None else gradient * scale for gradient in to_parameters]
        return None, None, None, None, *of_features, *of_parameters


def _zero_at_padding(features: list[Tensor], mask: Tensor | None) -> list[Tensor]:
    """Return uninitialised tensors like `features`, `[B * N, f]`, with zeros at padding, where no block writes."""
    zeroed = [torch.empty_like(rows) for rows in features]
    if mask is not None:
        padding = (~mask.flatten()).nonzero().squeeze(-1)
        for rows in zeroed:
            rows.index_fill_(0, padding, 0)
    return zeroed


def loss_in_blocks(
    loss_of: LossOfBlock, calls: Sequence[Call], samples: int, parameters: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the mean of a loss over calls, each weighted by its number of samples, and of its diagnostic.

    Args:
        loss_of: the loss of a block; its features are float32, or float64 for float64 input.
        calls: on the CPU, with queries and keys of the same tokens.
        samples: the number of samples in the mean.
        parameters: the parameters of the loss, `[L, …]`.
    """
    # The gradient is stored before it is scaled, and would underflow in float16.
    calls = [
        replace(call, query=call.query.float(), key=call.key.float()) if call.query.dtype == torch.float16 else call
        for call in calls
    ]
    features = [features for call in calls for features in (call.query, call.key)]
    result: tuple[Tensor, Tensor] = _LossInBlocks.apply(  # type: ignore[no-untyped-call]
        loss_of, torch.is_grad_enabled(), calls, samples, *features, *parameters
    )
    return result


@contextmanager
def grad_of_its_own(enabled: bool) -> Iterator[None]:
    """Record a graph inside a forward pass, if enabled, hidden from outer hooks such as those of checkpointing."""
    with torch.set_grad_enabled(enabled), torch.autograd.graph.saved_tensors_hooks(_same, _same):
        yield


def _same(tensor: Tensor) -> Tensor:
    return tensor
