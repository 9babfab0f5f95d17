"""Alignment by an adversary (Zhang et al. 2021, eq. 2)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.alignment.base import Alignment, TokenMeasure, by_layer
from alignattn.attention.alignment.cpu.blocks import Block, BlockLoss
from alignattn.attention.alignment.cpu.passes import NetworkPass
from alignattn.attention.alignment.gradient_reversal import reverse_gradient
from alignattn.attention.alignment.networks import HIDDEN_DIM, Discriminator
from alignattn.attention.choices import HeadReduction


class GANAlignment(Alignment):
    """The discriminator's loss in telling queries from keys, E[-log D(q)] + E[-log(1 - D(k))].

    It is the negative of eq. 2, with a gradient reversal between the features and the discriminator: in one
    backward pass the discriminator descends it while queries and keys ascend it. The heads of a layer share
    the discriminator. At chance the loss is 2 log 2 = 1.386 a head.

    Diagnostics: `discriminator_accuracy`, the share of real queries and keys it tells apart (chance: 0.5).

    Args:
        head_dim: size d of a head's query and key.
        num_layers: layers L, each with a discriminator of its own.
        hidden_dim: size of the discriminator's hidden layer.
        head_reduction: `sum` or `mean` over the heads.
        points: of a sample at most so many tokens are matched, drawn anew at every step; None = all.
    """

    diagnostic = "discriminator_accuracy"

    def __init__(
        self,
        head_dim: int,
        *,
        num_layers: int = 1,
        hidden_dim: int = HIDDEN_DIM,
        head_reduction: HeadReduction = "sum",
        points: int | None = None,
    ) -> None:
        super().__init__(head_dim, num_layers=num_layers, head_reduction=head_reduction, points=points)
        self.hidden_dim = hidden_dim
        self.discriminator = Discriminator(head_dim, hidden_dim, 1, num_layers)

    def _compute(self, features: Tensor, tokens: TokenMeasure, layers: slice) -> tuple[Tensor, Tensor]:
        logits = self.discriminator(reverse_gradient(by_layer(features, layers)), layers)
        of_query, of_key = logits.view(features.shape[:-1]).unbind(1)
        # -log D(q) = softplus(-logit), -log(1 - D(k)) = softplus(logit), finite for any logit.
        against = torch.stack((-of_query, of_key), dim=1)
        weight = tokens.token_weight[..., None]
        with torch.no_grad():
            accuracy = ((against < 0) * weight).sum(dim=(1, 2, 3, 4)) / (2 * features.shape[4])
        return (F.softplus(against) * weight).sum(dim=(1, 2, 3, 4)), accuracy

    def _loss_of_block(self, features: Tensor, block: Block, layer: int, keeps_gradient: bool) -> BlockLoss:
        """Compute the same without autograd: with z = -logit of a query, logit of a key, softplus'(z) = sigmoid(z)."""
        if not NetworkPass.knows(self.discriminator):
            return super()._loss_of_block(features, block, layer, keeps_gradient)
        _, tokens, heads, head_dim = features.shape
        rows = features.view(1, -1, head_dim)
        network = NetworkPass(self.discriminator, rows, layer)
        logits = network.forward(rows).view(2, tokens, heads)
        logits[0].neg_()
        weight = block.token_weight(features.dtype)[:, None]
        accuracy = ((logits < 0) * weight).sum() / (2 * heads)
        weight *= self._head_weight(heads)
        loss = (F.softplus(logits) * weight).sum()
        if not keeps_gradient:
            return BlockLoss(loss, accuracy)
        to_logits = logits.sigmoid_().mul_(weight)
        to_logits[0].neg_()
        to_features = network.backward(to_logits.view(1, -1, 1)).neg_()
        return BlockLoss(loss, accuracy, to_features.view_as(features), network.gradients)
