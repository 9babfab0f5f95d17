"""Alignment by conditional transport (Zhang et al. 2021, eq. 4; Zheng & Zhou 2021)."""

from collections.abc import Iterator
from itertools import groupby

import torch
from torch import Tensor

from alignattn.attention.alignment.base import Alignment, TokenMeasure, by_layer, unit_vectors
from alignattn.attention.alignment.cpu.blocks import Block, BlockLoss
from alignattn.attention.alignment.cpu.passes import NetworkPass, normalize_, normalize_gradient_
from alignattn.attention.alignment.cpu.scratch import SCRATCH
from alignattn.attention.alignment.cpu.transport import differentiate
from alignattn.attention.alignment.gradient_reversal import reverse_gradient
from alignattn.attention.alignment.networks import HIDDEN_DIM, Discriminator, Navigator
from alignattn.attention.alignment.transport import transported_similarity
from alignattn.attention.choices import HeadReduction

FEATURE_DIM = 16


class CTAlignment(Alignment):
    """The cost of moving queries to keys and keys to queries along learned conditional plans.

    Each query q_i is moved to key k_j with probability softmax_j(τ_φ(q_i)·τ_φ(k_j)), each key to a query
    likewise; the cost is one minus the cosine of the critic's vectors, c = 1 - u(q)·u(k). Because u has unit
    length the expected cost is a dot product with an attended vector,

        L = 1 - ½ [ mean_i u(q_i)·attend(τ(q_i), τ(k), u(k)) + mean_j u(k_j)·attend(τ(k_j), τ(q), u(q)) ],

    one call of `scaled_dot_product_attention` and no tensor of n × n; on the CPU `cpu.transport.differentiate` does it
    faster for short samples. Queries, keys and the navigator τ_φ descend it, the critic ascends it: its gradient is
    reversed at its input and at its output.

    Diagnostics: `critic_gap`, the Euclidean distance between the mean critic vector of the queries and that of
    the keys, mean over samples and heads: 0 if the critic sees no difference, 2 if it sees them apart.

    Args:
        head_dim: size d of a head's query and key.
        num_layers: layers L, each with a navigator and a critic of its own.
        hidden_dim: size of the hidden layer of the navigator and the critic.
        feature_dim: size of the vectors that they give.
        head_reduction: `sum` or `mean` over the heads.
        points: of a sample at most so many tokens are matched, drawn anew at every step; None = all.
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

    def _compute(self, features: Tensor, tokens: TokenMeasure, layers: slice) -> tuple[Tensor, Tensor]:
        navigated, unit = self._vectors(features, layers)
        mask = None if tokens.mask is None else _attended_to(tokens.mask)
        similarity = transported_similarity(navigated.transpose(3, 4), unit.transpose(3, 4), mask)
        similarity = (similarity * tokens.token_weight[:, :, :, None]).sum(dim=(1, 2, 3, 4))
        # Wholly padded samples weigh nothing in the similarity, so the constant counts by weight as well.
        losses = features.shape[4] * tokens.sample_weight.sum(dim=1) - 0.5 * similarity
        with torch.no_grad():
            mean_query, mean_key = (unit * tokens.probability[..., None, None]).sum(dim=3).unbind(1)
            offset = mean_query - mean_key
            gaps = (offset.norm(dim=-1).mean(dim=-1) * tokens.sample_weight).sum(dim=-1)
        return losses, gaps

    def _vectors(self, features: Tensor, layers: slice) -> tuple[Tensor, Tensor]:
        """Return the navigator's vectors, and the critic's of length 1, `[C, 2, B, n, H, f]`."""
        rows, shape = by_layer(features, layers), (*features.shape[:-1], -1)
        navigated = self.navigator(rows, layers).view(shape)
        criticised = reverse_gradient(self.critic(reverse_gradient(rows), layers))
        return navigated, unit_vectors(criticised).view(shape)

    def _loss_of_block(self, features: Tensor, block: Block, layer: int, keeps_gradient: bool) -> BlockLoss:
        """Compute the same without autograd, samples of one length at a time."""
        if not NetworkPass.knows(self.navigator, self.critic):
            return super()._loss_of_block(features, block, layer, keeps_gradient)
        _, tokens, heads, head_dim = features.shape
        rows = features.view(1, -1, head_dim)
        navigator, critic = (NetworkPass(network, rows, layer) for network in (self.navigator, self.critic))
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
            scale = -0.5 * block.sample_weight * self._head_weight(heads) / count
            if keeps_gradient:
                similarity = differentiate(parts[0], parts[1], scale, parts[2], parts[3])
            else:
                similarity = transported_similarity(parts[0][None], parts[1][None], None).sum()
            loss += samples * block.sample_weight * self._head_weight(heads) * heads + scale * similarity
            offset = parts[1][0].mean(dim=-2) - parts[1][1].mean(dim=-2)
            gap += offset.norm(dim=-1).sum() * block.sample_weight / heads
        if not keeps_gradient:
            return BlockLoss(loss, gap)
        to_critic = normalize_gradient_(to_unit, unit, length).neg_()
        to_features = navigator.backward(to_navigated).sub_(critic.backward(to_critic))
        return BlockLoss(loss, gap, to_features.view_as(features), navigator.gradients + critic.gradients)


def _equal_lengths(counts: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield the first token, the number and the length of neighbouring samples of equal length."""
    start = 0
    for count, group in groupby(counts):
        samples = len(list(group))
        yield start, samples, count
        start += samples * count


def _attended_to(mask: Tensor) -> Tensor:
    # A wholly padded sample attends to its padding, and weighs nothing: not every kernel is finite on an empty row.
    return mask | ~mask.any(dim=-1, keepdim=True)
