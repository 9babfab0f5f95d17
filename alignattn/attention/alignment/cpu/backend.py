"""The fast implementation of the alignment losses on a CPU: which one computes a loss, and the one by autograd."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from alignattn.attention.alignment.base import Alignment
from alignattn.attention.alignment.call import Call
from alignattn.attention.alignment.cpu.blocks import Block, BlockLoss, grad_of_its_own, loss_in_blocks
from alignattn.attention.alignment.cpu.ct import ct_loss
from alignattn.attention.alignment.cpu.gan import gan_loss
from alignattn.attention.alignment.cpu.passes import NetworkPass
from alignattn.attention.alignment.ct import CTAlignment
from alignattn.attention.alignment.gan import GANAlignment

WRITTEN_OUT: dict[Callable[..., Any], Callable[..., BlockLoss]] = {
    GANAlignment.compute: gan_loss,
    CTAlignment.compute: ct_loss,
}
"""Equations whose gradient is written out. A subclass with another equation is left to autograd."""


def loss_on_cpu(alignment: Alignment, calls: Sequence[Call], samples: int) -> tuple[Tensor, Tensor]:
    """Return the mean loss and the mean diagnostic of calls; equal to those of `alignment.losses`, with its gradients.

    Args:
        alignment: whose loss of a batch is the mean of its samples'.
        calls: on the CPU, whose queries and keys are of the same tokens.
        samples: the number of samples in the mean.
    """
    loss_of_block = WRITTEN_OUT.get(type(alignment).compute)
    if loss_of_block is None or not NetworkPass.knows(*alignment.children()):
        loss_of_block = loss_by_autograd
    return loss_in_blocks(partial(loss_of_block, alignment), calls, samples, list(alignment.parameters()))


def loss_by_autograd(
    alignment: Alignment, features: Tensor, block: Block, layer: int, keeps_gradient: bool
) -> BlockLoss:
    """Return a block's loss with the gradients that autograd finds; arguments as of `LossOfBlock`."""
    share = len(block.counts) * block.sample_weight
    layers = slice(layer, layer + 1)
    parameters = list(alignment.parameters())
    wanted = [tensor for tensor in parameters if tensor.requires_grad]
    mask = block.mask
    with grad_of_its_own(keeps_gradient):
        leaf = features.detach().requires_grad_()
        padded = _padded(leaf, mask, len(block.counts))[None]
        losses, diagnostics = alignment.losses(padded, None if mask is None else mask[None, None], layers)
        loss, diagnostic = losses.sum(), diagnostics.sum()
    if not keeps_gradient:
        return BlockLoss(loss * share, diagnostic * share)
    to_features, *found = torch.autograd.grad(loss, [leaf, *wanted], torch.full_like(loss, share))
    remaining = iter(found)
    to_parameters = [next(remaining)[layers] if tensor.requires_grad else None for tensor in parameters]
    return BlockLoss(loss.detach() * share, diagnostic * share, to_features, to_parameters)


def _padded(features: Tensor, mask: Tensor | None, samples: int) -> Tensor:
    """Return the features `[2, R, H, d]` of a block with a mask as `[2, b, n, H, d]`, zero at padding."""
    if mask is not None:
        places = mask.flatten().nonzero().squeeze(-1)
        empty = features.new_zeros(2, mask.numel(), *features.shape[2:])
        features = empty.index_copy(1, places, features)
    return features.unflatten(1, (samples, -1))
