"""The costs along the conditional plans of `ct`, and their gradient."""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.alignment.passes import SCRATCH
from alignattn.attention.derivatives import value_and_gradients

MATRIX_ELEMENTS = 2**19
"""Elements of the n × n matrices of the heads that a CPU computes together, 2 MiB: one head of 724 tokens. A longer
sample uses attention instead, whose memory is linear in n."""


def expected_cosine(navigated: Tensor, unit: Tensor, mask: Tensor | None) -> Tensor:
    """Return a_i = Σ_j P_ij u_i · v_j of each query i and b_j = Σ_i R_ij u_i · v_j of each key j.

    s and t are the navigator's vectors of queries and keys, u and v the critic's, P_ij = softmax_j(s_i · t_j) and
    R_ij = softmax_i(s_i · t_j). Because u_i does not depend on j, a_i is u_i · attend(s_i, t, v), likewise b_j: one
    call of attention, and no tensor of n × n.

    Args:
        navigated: s and t, `[C, 2, B, H, n, f]`, C the number of attention calls.
        unit: u and v, likewise.
        mask: `[1 or C, 1 or 2, B, n]` bool, for both sides or for each, True = a real token; None = all are real.

    Returns:
        `[C, 2, B, H, n]`.
    """
    if mask is not None:
        # A fully padded sample, which has weight 0, attends to its padding: attention to nothing may be NaN.
        mask = mask | ~mask.any(dim=-1, keepdim=True)
        mask = mask.flip(1).expand(len(unit), 2, -1, -1).flatten(0, 2)[:, None, None]
    query, key, value = (tensor.flatten(0, 2) for tensor in (navigated, navigated.flip(1), unit.flip(1)))
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
    return (unit * attended.view(unit.shape)).sum(dim=-1)


def transport_cost(navigated: Tensor, unit: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
    """Return the weighted sum of 1 - a_i and 1 - b_j (`expected_cosine`), a scalar.

    The weights are `[1 or C, 1 or 2, B, 1, n]`; the other arguments are those of `expected_cosine`.
    """
    return ((1 - expected_cosine(navigated, unit, mask)) * weight).sum()


def write_gradient(
    navigated: Tensor, unit: Tensor, weight: Tensor, mask: Tensor | None, to_navigated: Tensor, to_unit: Tensor
) -> Tensor:
    """Return `transport_cost`, and write its gradients, in the shapes of the vectors."""
    cost, gradients = value_and_gradients(
        lambda navigated, unit: transport_cost(navigated, unit, weight, mask), navigated, unit
    )
    for target, gradient in zip((to_navigated, to_unit), gradients, strict=True):
        target.copy_(gradient)
    return cost


def write_gradient_by_length(
    navigated: Tensor, unit: Tensor, weight: Tensor, counts: Sequence[int], to_navigated: Tensor, to_unit: Tensor
) -> Tensor:
    """Do the same for samples of one call whose real tokens come first, on a CPU: samples of one length at a time.

    With the plans P and R as matrices this takes half the time of attention, which computes them twice.
    """
    tensors = (navigated, unit, to_navigated, to_unit)
    if counts[0] != counts[-1]:
        to_navigated.zero_()
        to_unit.zero_()
    cost = navigated.new_zeros(())
    start = 0
    for length, group in groupby(counts):
        stop = start + len(list(group))
        parts = [tensor[0, :, start:stop, :, :length] for tensor in tensors]
        of_token = weight.flatten()[start * weight.shape[-1]]
        start = stop
        pairs = 2 * parts[0].shape[1] * parts[0].shape[2] * length
        cost += of_token * (pairs - _write_scaled(parts[0], parts[1], -of_token, parts[2], parts[3]))
    return cost


def _write_scaled(navigated: Tensor, unit: Tensor, scale: Tensor, to_navigated: Tensor, to_unit: Tensor) -> Tensor:
    """Return Σ a + Σ b over samples, heads and tokens, a scalar, and write its gradient times `scale`.

    Args:
        navigated: s and t, `[2, B, H, n, f]`, without padding.
        unit: u and v, `[2, B, H, n, f]`.
        scale: factor of the gradient, a scalar.
        to_navigated: receives the gradient with respect to s and t.
        to_unit: receives the gradient with respect to u and v.
    """
    features = [tensor.flatten(1, 2) for tensor in (navigated, unit)]
    count, length = features[0].shape[1:3]
    at_once = MATRIX_ELEMENTS // length**2
    total = navigated.new_zeros(())
    with SCRATCH.frame():
        gradients = [SCRATCH.take(tensor.shape, tensor) for tensor in features]
        if at_once == 0:
            # Without an n × n tensor.
            total_by_attention, by_attention = value_and_gradients(
                lambda navigated, unit: expected_cosine(navigated[None, :, None], unit[None, :, None], None).sum(),
                *features,
            )
            total += total_by_attention
            for target, gradient in zip(gradients, by_attention, strict=True):
                target.copy_(gradient)
        else:
            for start in range(0, count, at_once):
                total += _by_plans(*(tensor[:, start : start + at_once] for tensor in (*features, *gradients)))
        for target, gradient in zip((to_navigated, to_unit), gradients, strict=True):
            torch.mul(gradient.view(target.shape), scale, out=target)
    return total


def _by_plans(navigated: Tensor, unit: Tensor, to_navigated: Tensor, to_unit: Tensor) -> Tensor:
    """Compute `_write_scaled` of some heads, `[2, heads, n, f]`, unscaled, with the matrices P, R and C = u vᵀ.

    The gradient of Σ a + Σ b with respect to s tᵀ is

        D_ij = P_ij (C_ij - a_i) + R_ij (C_ij - b_j);

    with respect to s it is D t, to t Dᵀ s, to u (P + R) v, and to v (P + R)ᵀ u.
    """
    (query, key), (unit_query, unit_key) = navigated, unit
    count, length, _ = query.shape
    with SCRATCH.frame():
        shape = (count, length, length)
        plan, reverse, product, weighted = (SCRATCH.take(shape, query) for _ in range(4))
        _write_plans(torch.bmm(query, key.mT, out=product), plan, reverse)
        torch.bmm(unit_query, unit_key.mT, out=product)
        of_query = torch.mul(plan, product, out=weighted).sum(dim=2, keepdim=True)
        of_key = product.mul_(reverse).sum(dim=1, keepdim=True)
        product += weighted
        product.addcmul_(plan, of_query, value=-1).addcmul_(reverse, of_key, value=-1)
        plan += reverse
        torch.bmm(plan, unit_key, out=to_unit[0])
        torch.bmm(plan.mT, unit_query, out=to_unit[1])
        torch.bmm(product, key, out=to_navigated[0])
        torch.bmm(product.mT, query, out=to_navigated[1])
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
