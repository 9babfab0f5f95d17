"""Alignment by an adversary (Zhang et al. 2021, eq. 2)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.alignment.base import Alignment, TokenMeasure, rows_in_blocks
from alignattn.attention.alignment.networks import HIDDEN_DIM, Discriminator, reverse_gradient
from alignattn.attention.choices import HeadReduction


class GANAlignment(Alignment):
    """The loss of a discriminator between queries and keys, E[-log D(q)] + E[-log(1 - D(k))].

    It is the negative of eq. 2, with a gradient reversal between the features and the discriminator: in one backward
    pass the discriminator descends the loss while queries and keys ascend it. The heads of a layer share a
    discriminator. At chance the loss is 2 log 2 = 1.386 for each head.

    Diagnostic: `discriminator_accuracy`, its accuracy on real queries and keys (chance: 0.5).

    The other arguments are those of `Alignment`.

    Args:
        hidden_dim: size of the discriminator's hidden layer.
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
        logits = self.discriminator(reverse_gradient(rows_in_blocks(features)), layers)
        of_query, of_key = logits.view(features.shape[:-1]).unbind(1)
        # With D = sigmoid(logit), -log D(q) = softplus(-logit) and -log(1 - D(k)) = softplus(logit), always finite.
        losses = torch.stack((F.softplus(-of_query), F.softplus(of_key)), dim=1)
        is_right = torch.stack((of_query > 0, of_key < 0), dim=1)
        return tokens.mean(losses), tokens.mean(is_right) / (2 * features.shape[4])
