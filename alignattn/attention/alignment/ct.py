"""Alignment by conditional transport (Zhang et al. 2021, eq. 4; Zheng & Zhou 2021)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.alignment.base import Alignment, HeadReduction, TokenMeasure, unit_vectors
from alignattn.attention.alignment.gradient_reversal import reverse_gradient
from alignattn.attention.alignment.networks import Discriminator, Navigator

HIDDEN_DIM = 16
FEATURE_DIM = 16


class CTAlignment(Alignment):
    """The cost of moving queries to keys and keys to queries along learned conditional plans.

    Each query q_i is moved to key k_j with probability softmax_j(τ_φ(q_i)·τ_φ(k_j)), each key to a query
    likewise; the cost is one minus the cosine of the critic's vectors, c = 1 - u(q)·u(k). Because u has unit
    length the expected cost is a dot product with an attended vector,

        L = 1 - ½ [ mean_i u(q_i)·attend(τ(q_i), τ(k), u(k)) + mean_j u(k_j)·attend(τ(k_j), τ(q), u(q)) ],

    two calls of `scaled_dot_product_attention` and no tensor of n × n. Queries, keys and the navigator τ_φ
    descend it, the critic ascends it: its gradient is reversed at its input and at its output.

    Diagnostics: `critic_gap`, the Euclidean distance between the mean critic vector of the queries and that of
    the keys, mean over samples and heads: 0 if the critic sees no difference, 2 if it sees them apart.

    Args:
        head_dim: size d of a head's query and key.
        hidden_dim: size of the hidden layer of the navigator and the critic.
        feature_dim: size of the vectors that they give.
        head_reduction: `sum` or `mean` over the heads.
    """

    diagnostic = "critic_gap"

    def __init__(
        self,
        head_dim: int,
        *,
        hidden_dim: int = HIDDEN_DIM,
        feature_dim: int = FEATURE_DIM,
        head_reduction: HeadReduction = "sum",
    ) -> None:
        super().__init__(head_dim, head_reduction=head_reduction)
        self.navigator = Navigator(head_dim, hidden_dim, feature_dim)
        self.critic = Discriminator(head_dim, hidden_dim, feature_dim)

    def _compute(self, features: Tensor, tokens: TokenMeasure) -> tuple[Tensor, Tensor]:
        # The projections' own memory order is [B, n, H, d]: taken so, the features are rows without a copy.
        features = features.transpose(2, 3)
        navigated = self.navigator(features).transpose(2, 3)
        criticised = reverse_gradient(self.critic(reverse_gradient(features)))
        unit = unit_vectors(criticised).transpose(2, 3)
        mask = None if tokens.mask is None else _attention_mask(tokens.mask)
        (navigated_query, navigated_key), (unit_query, unit_key) = navigated, unit
        attended_key = _attend(navigated_query, navigated_key, unit_key, mask)
        attended_query = _attend(navigated_key, navigated_query, unit_query, mask)
        similarity = torch.addcmul(unit_query * attended_key, unit_key, attended_query).sum(dim=-1)
        weight = tokens.token_weight[:, None]
        # Wholly padded samples weigh nothing in the similarity, so the constant counts by weight as well.
        loss = unit.shape[2] * weight.sum() - 0.5 * (similarity * weight).sum()
        with torch.no_grad():
            offset = torch.einsum("bn,bhnf->bhf", tokens.probability, unit_query - unit_key)
            gap = (offset.norm(dim=-1).mean(dim=1) * tokens.sample_weight).sum()
        return loss, gap


def _attention_mask(mask: Tensor) -> Tensor:
    # A wholly padded sample attends to its padding, and weighs nothing: not every kernel is finite on an empty row.
    return (mask | ~mask.any(dim=1, keepdim=True))[:, None, None, :]


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
