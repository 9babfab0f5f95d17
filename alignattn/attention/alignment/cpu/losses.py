"""The dispatch of the CPU backend: explicit gradients for GAN and CT, autograd for other losses."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.alignment.base import Alignment
from alignattn.attention.alignment.calls import Call
from alignattn.attention.alignment.cpu.blocks import Block, BlockLoss, grad_of_its_own, loss_in_blocks
from alignattn.attention.alignment.cpu.passes import SCRATCH, NetworkPass, normalize_, normalize_gradient_
from alignattn.attention.alignment.ct import CTAlignment, expected_cosine
from alignattn.attention.alignment.gan import GANAlignment

MATRIX_ELEMENTS = 2**19
"""Elements of the n × n matrices of the heads that are computed together, 2 MiB: one head of 724 tokens. A longer
sample uses attention instead, whose memory is linear in n."""


def loss_on_cpu(alignment: Alignment, calls: Sequence[Call], samples: int) -> tuple[Tensor, Tensor]:
    """Return the mean loss and the mean diagnostic of calls, with gradients equal to those of `alignment.losses`.

    Args:
        alignment: an alignment with `by_sample`.
        calls: on the CPU, with queries and keys of the same tokens.
        samples: the number of samples in the mean.
    """
    loss_of_block = WRITTEN_OUT.get(type(alignment).compute)
    if loss_of_block is None or not NetworkPass.knows(*alignment.children()):
        loss_of_block = loss_by_autograd
    return loss_in_blocks(partial(loss_of_block, alignment), calls, samples, list(alignment.parameters()))


def loss_by_autograd(
    alignment: Alignment, features: Tensor, block: Block, layer: int, keeps_gradient: bool
) -> BlockLoss:
    """Return a block's loss with gradients from autograd; arguments as for `LossOfBlock`."""
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


def gan_loss(alignment: GANAlignment, features: Tensor, block: Block, layer: int, keeps_gradient: bool) -> BlockLoss:
    """Return a block's loss, softplus(z) with z = -logit of a query or logit of a key, and the slope sigmoid(z).

    Arguments as for `LossOfBlock`.
    """
    _, tokens, heads, head_dim = features.shape
    rows = features.view(1, -1, head_dim)
    network = NetworkPass(alignment.discriminator, rows, layer)
    logits = network.forward(rows).view(2, tokens, heads)
    logits[0].neg_()
    weight = block.token_weight(features.dtype)[:, None]
    accuracy = ((logits < 0) * weight).sum() / (2 * heads)
    weight *= alignment.head_weight(heads)
    loss = (F.softplus(logits) * weight).sum()
    if not keeps_gradient:
        return BlockLoss(loss, accuracy)
    to_logits = logits.sigmoid_().mul_(weight)
    to_logits[0].neg_()
    to_features = network.backward(to_logits.view(1, -1, 1)).neg_()
    return BlockLoss(loss, accuracy, to_features.view_as(features), network.gradients)


def ct_loss(alignment: CTAlignment, features: Tensor, block: Block, layer: int, keeps_gradient: bool) -> BlockLoss:
    """Return a block's loss, computed for samples of equal length; arguments as for `LossOfBlock`."""
    _, tokens, heads, head_dim = features.shape
    rows = features.view(1, -1, head_dim)
    navigator, critic = (NetworkPass(network, rows, layer) for network in (alignment.navigator, alignment.critic))
    navigated = navigator.forward(rows)
    unit, length = normalize_(critic.forward(rows))
    to_navigated, to_unit = (SCRATCH.take(*unit.shape, dtype=unit.dtype) for _ in range(2))
    loss, gap = navigated.new_zeros(()), navigated.new_zeros(())
    by_token = [tensor.view(2, tokens, heads, -1) for tensor in (navigated, unit, to_navigated, to_unit)]
    for start, samples, count in _equal_lengths(block.counts):
        parts = [
            tensor[:, start : start + samples * count].unflatten(1, (samples, count)).transpose(2, 3)
            for tensor in by_token
        ]
        scale = -0.5 * block.sample_weight * alignment.head_weight(heads) / count
        if keeps_gradient:
            similarity = differentiate(parts[0], parts[1], scale, parts[2], parts[3])
        else:
            similarity = expected_cosine(parts[0][None], parts[1][None], None).sum()
        loss += samples * block.sample_weight * alignment.head_weight(heads) * heads + scale * similarity
        offset = parts[1][0].mean(dim=-2) - parts[1][1].mean(dim=-2)
        gap += offset.norm(dim=-1).sum() * block.sample_weight / heads
    if not keeps_gradient:
        return BlockLoss(loss, gap)
    to_critic = normalize_gradient_(to_unit, unit, length).neg_()
    to_features = navigator.backward(to_navigated).sub_(critic.backward(to_critic))
    return BlockLoss(loss, gap, to_features.view_as(features), navigator.gradients + critic.gradients)


def _equal_lengths(counts: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the first token, the number and the length of consecutive samples of equal length."""
    start = 0
    for count, group in groupby(counts):
        samples = len(list(group))
        yield start, samples, count
        start += samples * count


def differentiate(navigated: Tensor, unit: Tensor, scale: float, to_navigated: Tensor, to_unit: Tensor) -> Tensor:
    """Return Σ a + Σ b over samples, heads and tokens, a scalar, and write its gradient, for the CPU.

    Args:
        navigated: s and t, `[2, B, H, n, f]`, without padding.
        unit: u and v, `[2, B, H, n, f]`.
        scale: factor of the gradient.
        to_navigated: receives the gradient with respect to s and t.
        to_unit: receives the gradient with respect to u and v.
    """
    features = [tensor.flatten(1, 2) for tensor in (navigated, unit)]
    count, length = features[0].shape[1:3]
    at_once = MATRIX_ELEMENTS // length**2
    total = navigated.new_zeros(())
    with SCRATCH.frame():
        gradients = [SCRATCH.take(*tensor.shape, dtype=tensor.dtype) for tensor in features]
        whole = _Heads(*features, *gradients)
        if at_once == 0:
            total += _by_attention(whole)
        else:
            for start in range(0, count, at_once):
                total += _by_plans(_Heads(*(tensor[:, start : start + at_once] for tensor in whole)))
        for target, gradient in zip((to_navigated, to_unit), gradients, strict=True):
            torch.mul(gradient.view(target.shape), scale, out=target)
    return total


class _Heads(NamedTuple):
    """The vectors of some heads, `[2, heads, n, f]`, and the tensors that receive the gradients."""

    navigated: Tensor
    unit: Tensor
    to_navigated: Tensor
    to_unit: Tensor


def _by_plans(heads: _Heads) -> Tensor:
    """Compute `differentiate`, unscaled, with the plans P and R and the products C = u vᵀ as matrices.

    The gradient of Σ a + Σ b with respect to s tᵀ is

        D_ij = P_ij (C_ij - a_i) + R_ij (C_ij - b_j);

    with respect to s it is D t, to t Dᵀ s, to u (P + R) v, and to v (P + R)ᵀ u.
    """
    (query, key), (unit_query, unit_key) = heads.navigated, heads.unit
    count, length, _ = query.shape
    with SCRATCH.frame():
        shape = (count, length, length)
        plan, reverse, product, moved = (SCRATCH.take(*shape, dtype=query.dtype) for _ in range(4))
        _write_plans(torch.bmm(query, key.mT, out=product), plan, reverse)
        torch.bmm(unit_query, unit_key.mT, out=product)
        of_query = torch.mul(plan, product, out=moved).sum(dim=2, keepdim=True)
        of_key = product.mul_(reverse).sum(dim=1, keepdim=True)
        product += moved
        product.addcmul_(plan, of_query, value=-1).addcmul_(reverse, of_key, value=-1)
        plan += reverse
        torch.bmm(plan, unit_key, out=heads.to_unit[0])
        torch.bmm(plan.mT, unit_query, out=heads.to_unit[1])
        torch.bmm(product, key, out=heads.to_navigated[0])
        torch.bmm(product.mT, query, out=heads.to_navigated[1])
        return of_query.sum() + of_key.sum()


def _write_plans(scores: Tensor, plan: Tensor, reverse: Tensor) -> None:
    """Write the softmax of scores `[heads, n, n]` over the last dimension and over the one before.

    Both are conditionals of the softmax over all pairs, which saves an exponential, unless a whole row or column
    underflows.
    """
    joint = torch.softmax(scores.flatten(1), dim=1, out=reverse.flatten(1)).view_as(scores)
    row, column = joint.sum(dim=2, keepdim=True), joint.sum(dim=1, keepdim=True)
    kind = torch.finfo(scores.dtype)
    smallest_exact = scores.shape[-1] * kind.tiny / kind.eps  # below it, underflow could affect a sum
    if min(row.min().item(), column.min().item()) >= smallest_exact:
        torch.mul(joint, row.reciprocal_(), out=plan)
        reverse *= column.reciprocal_()
    else:
        torch.softmax(scores, dim=2, out=plan)
        torch.softmax(scores, dim=1, out=reverse)


def _by_attention(heads: _Heads) -> Tensor:
    """Compute `differentiate`, unscaled, without an n × n tensor."""
    with grad_of_its_own(True):
        navigated, unit = (tensor.detach().requires_grad_() for tensor in (heads.navigated, heads.unit))
        total = expected_cosine(navigated[None, :, None], unit[None, :, None], None).sum()
    for target, gradient in zip(heads[2:], torch.autograd.grad(total, (navigated, unit)), strict=True):
        target.copy_(gradient)
    return total.detach()


WRITTEN_OUT: dict[Callable[..., Any], Callable[..., BlockLoss]] = {
    GANAlignment.compute: gan_loss,
    CTAlignment.compute: ct_loss,
}
"""The equations with an explicit gradient. A subclass with another equation uses autograd."""
