"""Alignment by conditional transport (Zhang et al. 2021, eq. 4; Zheng & Zhou 2021)."""

import torch
from torch import Tensor

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
from alignattn.attention.alignment.passes import SCRATCH, NetworkPass, normalize_, normalize_gradient_
from alignattn.attention.alignment.plans import (
    expected_cosine,
    transport_cost,
    write_gradient,
    write_gradient_by_length,
)
from alignattn.attention.choices import HeadReduction


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
        navigator, critic = (NetworkPass(network, rows, piece.layers) for network in (self.navigator, self.critic))
        navigated = navigator.forward(rows)
        unit, reciprocal = normalize_(critic.forward(rows))
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
        to_features = navigator.backward(to_navigated).add_(critic.backward(to_critic))
        gradients = navigator.gradients + [gradient.neg_() for gradient in critic.gradients]
        return PieceLoss(loss, gap, to_features.view(shape), gradients)
