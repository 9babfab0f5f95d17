"""The gradient of what conditional transport finds alike, written out, for the CPU; names as in `..transport`."""

from typing import NamedTuple

import torch
from torch import Tensor

from alignattn.attention.alignment.cpu.blocks import grad_of_its_own
from alignattn.attention.alignment.cpu.scratch import SCRATCH
from alignattn.attention.alignment.transport import transported_similarity

MATRIX_ELEMENTS = 2**19
"""Of the n × n matrices of the heads worked on at once, 2 MiB: one head of 724 tokens. A longer sample gets none,
and is left to attention, whose memory is linear in n."""


def differentiate(navigated: Tensor, unit: Tensor, scale: float, to_navigated: Tensor, to_unit: Tensor) -> Tensor:
    """Return Σ a + Σ b over samples, heads and tokens, a scalar, and write its gradient, for the CPU.

    Args:
        navigated: s and t, `[2, B, H, n, f]`, without padding.
        unit: u and v, `[2, B, H, n, f]`.
        scale: what the gradient is multiplied with.
        to_navigated: where the gradient in s and t goes, of their shape.
        to_unit: where the gradient in u and v goes.
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
    """Some heads: their vectors, `[2, heads, n, f]`, and where the gradients go."""

    navigated: Tensor
    unit: Tensor
    to_navigated: Tensor
    to_unit: Tensor


def _by_plans(heads: _Heads) -> Tensor:
    """Do what `differentiate` does, unscaled, with the plans and the products C = u vᵀ at hand.

    The gradient of Σ a + Σ b in s tᵀ is

        D_ij = P_ij (C_ij - a_i) + R_ij (C_ij - b_j),

    that in s is D t, in t Dᵀ s, in u (P + R) v, in v (P + R)ᵀ u.
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
    """Write the softmax of scores `[heads, n, n]` over the last dimension and that over the one before.

    Both are conditionals of the softmax over all pairs at once, which saves an exponential, unless a whole row or
    column underflows there.
    """
    joint = torch.softmax(scores.flatten(1), dim=1, out=reverse.flatten(1)).view_as(scores)
    row, column = joint.sum(dim=2, keepdim=True), joint.sum(dim=1, keepdim=True)
    if min(row.min().item(), column.min().item()) >= _smallest_exact_sum(joint):
        torch.mul(joint, row.reciprocal_(), out=plan)
        reverse *= column.reciprocal_()
    else:
        torch.softmax(scores, dim=2, out=plan)
        torch.softmax(scores, dim=1, out=reverse)


def _smallest_exact_sum(matrices: Tensor) -> float:
    """Below it, what underflowed to zero or lost digits could count in a sum over rows or columns."""
    kind = torch.finfo(matrices.dtype)
    return matrices.shape[-1] * kind.tiny / kind.eps


def _by_attention(heads: _Heads) -> Tensor:
    """Do what `differentiate` does, unscaled, with no n × n tensor."""
    with grad_of_its_own(True):
        navigated, unit = (tensor.detach().requires_grad_() for tensor in (heads.navigated, heads.unit))
        total = transported_similarity(navigated[None, :, None], unit[None, :, None], None).sum()
    for target, gradient in zip(heads[2:], torch.autograd.grad(total, (navigated, unit)), strict=True):
        target.copy_(gradient)
    return total.detach()
