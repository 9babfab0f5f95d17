"""Alignment by an adversary (Zhang et al. 2021, eq. 2)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.alignment.base import Alignment, TokenMeasure, by_layer
from alignattn.attention.alignment.networks import HIDDEN_DIM, Discriminator, reverse_gradient
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

    def compute(self, features: Tensor, tokens: TokenMeasure, layers: slice) -> tuple[Tensor, Tensor]:
        """Return the means of -log D(q) - log(1 - D(k)) and of the discriminator's accuracy."""
        logits = self.discriminator(reverse_gradient(by_layer(features, layers)), layers)
        of_query, of_key = logits.view(features.shape[:-1]).unbind(1)
        # With D = sigmoid(logit), -log D(q) = softplus(-logit) and -log(1 - D(k)) = softplus(logit), finite for any.
        losses = torch.stack((F.softplus(-of_query), F.softplus(of_key)), dim=1)
        is_right = torch.stack((of_query > 0, of_key < 0), dim=1)
        return tokens.mean(losses), tokens.mean(is_right) / (2 * features.shape[4])
