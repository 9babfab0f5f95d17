"""Alignment by conditional transport (Zhang et al. 2021, eq. 4; Zheng & Zhou 2021)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.alignment.base import Alignment, TokenMeasure, rows_in_blocks, unit_vectors
from alignattn.attention.alignment.networks import HIDDEN_DIM, Discriminator, Navigator, reverse_gradient
from alignattn.attention.choices import HeadReduction

FEATURE_DIM = 16


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
        feature_dim: int = FEATURE_DIM,
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
