"""Alignment by conditional transport (Zhang et al. 2021, eq. 4; Zheng & Zhou 2021)."""

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.alignment.base import Alignment
from alignattn.attention.alignment.calls import TokenMeasure
from alignattn.attention.alignment.networks import (
    HIDDEN_DIM,
    Discriminator,
    Navigator,
    reverse_gradient,
    rows_in_blocks,
    unit_vectors,
)
from alignattn.attention.alignment.one_pass import Piece, PieceLoss
from alignattn.attention.alignment.passes import SCRATCH, network_pass, normalize_, normalize_gradient_
from alignattn.attention.choices import HeadReduction
from alignattn.attention.derivatives import value_and_gradients

MATRIX_ELEMENTS = 2**19
"""Elements of the n × n matrices of the heads that a CPU computes together, 2 MiB: one head of 724 tokens. A longer
sample uses attention instead, whose memory is linear in n."""


class CTAlignment(Alignment):
    """The cost of moving queries to keys and keys to queries along learned conditional plans.

    Each query q_i moves to key k_j with probability P_ij = softmax_j(τ_φ(q_i)·τ_φ(k_j)), and each key to a query with
    R_ij = softmax_i(τ_φ(q_i)·τ_φ(k_j)). With the cost c = 1 - u(q)·u(k), where u is the critic's unit vector,

        L = ½ [ mean_i Σ_j P_ij c_ij + mean_j Σ_i R_ij c_ij ].

    Queries, keys and the navigator τ_φ descend L, and the critic ascends it: the gradient is reversed at the critic's
    input and at its output.

    Diagnostic: `critic_gap`, the Euclidean distance between the critic's mean vectors of queries and of keys, mean over
    samples and heads: 0 if the critic sees no difference, 2 if it separates them.

    The other arguments are those of `Alignment`.

    Args:
        hidden_dim: size of the hidden layer of the navigator and the critic.
        feature_dim: size of their output vectors.
    """

    diagnostic = "critic_gap"

    def __init__(
        self,
        head_dim: int,
        *,
        num_layers: int = 1,
        hidden_dim: int = HIDDEN_DIM,
        feature_dim: int = 16,
        head_reduction: HeadReduction = "sum",
        points: int | None = None,
    ) -> None:
        super().__init__(head_dim, num_layers=num_layers, head_reduction=head_reduction, points=points)
        self.hidden_dim, self.feature_dim = hidden_dim, feature_dim
        self.navigator = Navigator(head_dim, hidden_dim, feature_dim, num_layers)
        self.critic = Discriminator(head_dim, hidden_dim, feature_dim, num_layers)

    def compute(self, features: Tensor, tokens: TokenMeasure, layers: slice) -> tuple[Tensor, Tensor]:
        """Return L and the critic's gap."""
        rows, shape = rows_in_blocks(features), (*features.shape[:-1], -1)
        navigated = self.navigator(rows, layers).view(shape)
        unit = unit_vectors(reverse_gradient(self.critic(reverse_gradient(rows), layers))).view(shape)
        cosine = expected_cosine(navigated.transpose(3, 4), unit.transpose(3, 4), tokens.mask).transpose(3, 4)
        with torch.no_grad():
            mean_query, mean_key = (unit * tokens.probability[..., None, None]).sum(dim=3).unbind(1)
            gap = (mean_query - mean_key).norm(dim=-1).mean(dim=-1)
        return tokens.mean(1 - cosine) / 2, (gap * tokens.sample_weight).sum(dim=-1)

    def differentiate(self, piece: Piece, keeps_gradient: bool) -> PieceLoss:
        """Return `compute` with its gradient."""
        rows, shape = piece.rows, piece.features.shape
        navigated, navigator_backward = network_pass(self.navigator, rows, piece.layers)
        criticised, critic_backward = network_pass(self.critic, rows, piece.layers)
        unit, reciprocal = normalize_(criticised)
        s, u = (tensor.view(*shape[:-1], -1).transpose(3, 4) for tensor in (navigated, unit))
        weight = (piece.tokens.token_weight * (self.head_weight(shape[4]) / 2))[:, :, :, None]
        mean = (unit.view(*shape[:-1], -1) * piece.tokens.probability[..., None, None]).sum(dim=3)
        gap = (mean[:, 0] - mean[:, 1]).norm(dim=-1).mean(dim=-1)
        gap = (gap * piece.tokens.sample_weight).sum()
        if not keeps_gradient:
            return PieceLoss(transport_cost(s, u, weight, piece.tokens.mask), gap)
        to_navigated, to_unit = (SCRATCH.take(tensor.shape, tensor) for tensor in (navigated, unit))
        to_s, to_u = (tensor.view(*shape[:-1], -1).transpose(3, 4) for tensor in (to_navigated, to_unit))
        if piece.counts is None:
            loss = write_gradient(s, u, weight, piece.tokens.mask, to_s, to_u)
        else:
            loss = write_gradient_by_length(s, u, weight, piece.counts, to_s, to_u)
        to_critic = normalize_gradient_(to_unit, unit, reciprocal)
        # The reversals at the critic's output and input: it ascends the loss, and its features descend it.
        to_features, to_navigator = navigator_backward(to_navigated)
        of_critic, to_critic_parameters = critic_backward(to_critic)
        to_parameters = to_navigator + [gradient.neg_() for gradient in to_critic_parameters]
        return PieceLoss(loss, gap, to_features.add_(of_critic).view(shape), to_parameters)


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
    if counts[0] != counts[-1]:
        to_navigated.zero_()
        to_unit.zero_()
    cost = navigated.new_zeros(())
    start = 0
    for length, group in groupby(counts):
        stop = start + len(list(group))
        s, u, to_s, to_u = (tensor[0, :, start:stop, :, :length] for tensor in (navigated, unit, to_navigated, to_unit))
        of_token = weight.flatten()[start * weight.shape[-1]]
        scale, start = -of_token, stop
        features = [tensor.flatten(1, 2) for tensor in (s, u)]  # `[2, heads, length, f]`
        heads, at_once = features[0].shape[1], MATRIX_ELEMENTS // length**2
        similarity = navigated.new_zeros(())  # Σ a + Σ b
        with SCRATCH.frame():
            gradients = [SCRATCH.take(tensor.shape, tensor) for tensor in features]
            if at_once == 0:
                # Without an n × n tensor.
                by_attention, exact = value_and_gradients(
                    lambda navigated, unit: expected_cosine(navigated[None, :, None], unit[None, :, None], None).sum(),
                    *features,
                )
                similarity += by_attention
                for target, gradient in zip(gradients, exact, strict=True):
                    target.copy_(gradient)
            else:
                for first in range(0, heads, at_once):
                    of_heads = (tensor[:, first : first + at_once] for tensor in (*features, *gradients))
                    similarity += _by_plans(*of_heads)
            for target, gradient in zip((to_s, to_u), gradients, strict=True):
                torch.mul(gradient.view(target.shape), scale, out=target)
        cost += of_token * (2 * heads * length - similarity)
    return cost


def _by_plans(navigated: Tensor, unit: Tensor, to_navigated: Tensor, to_unit: Tensor) -> Tensor:
    """Return Σ a + Σ b over heads and tokens, a scalar, and write its gradient, with the matrices P, R and C = u vᵀ.

    The gradient with respect to s tᵀ is

        D_ij = P_ij (C_ij - a_i) + R_ij (C_ij - b_j);

    with respect to s it is D t, to t Dᵀ s, to u (P + R) v, and to v (P + R)ᵀ u.

    Args:
        navigated: s and t, `[2, heads, n, f]`, without padding.
        unit: u and v, `[2, heads, n, f]`.
        to_navigated: receives the gradient with respect to s and t.
        to_unit: receives the gradient with respect to u and v.
    """
    (query, key), (unit_query, unit_key) = navigated, unit
    count, length, _ = query.shape
    with SCRATCH.frame():
        shape = (count, length, length)
        plan, reverse, product, weighted = (SCRATCH.take(shape, query) for _ in range(4))
        scores = torch.bmm(query, key.mT, out=product)
        # P and R are conditionals of the softmax over all pairs, which saves an exponential, unless a whole row or
        # column underflows.
        joint = torch.softmax(scores.flatten(1), dim=1, out=reverse.flatten(1)).view_as(scores)
        row, column = joint.sum(dim=2, keepdim=True), joint.sum(dim=1, keepdim=True)
        kind = torch.finfo(scores.dtype)
        smallest_exact = length * kind.tiny / kind.eps  # below it, underflow could affect a sum
        if min(row.min().item(), column.min().item()) >= smallest_exact:
            torch.mul(joint, row.reciprocal_(), out=plan)
            reverse *= column.reciprocal_()
        else:
            torch.softmax(scores, dim=2, out=plan)
            torch.softmax(scores, dim=1, out=reverse)
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
