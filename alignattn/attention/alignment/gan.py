"""Alignment by an adversary (Zhang et al. 2021, eq. 2)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.alignment.base import Alignment
from alignattn.attention.alignment.calls import TokenMeasure
from alignattn.attention.alignment.networks import HIDDEN_DIM, Discriminator, reverse_gradient, rows_in_blocks
from alignattn.attention.alignment.one_pass import Piece, PieceLoss
from alignattn.attention.alignment.passes import network_pass
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

    def differentiate(self, piece: Piece, keeps_gradient: bool) -> PieceLoss:
        """Return `compute` with its gradient: the loss is softplus(z), z = -logit of a query and logit of a key."""
        heads = piece.features.shape[4]
        rows = piece.rows
        logits, backward = network_pass(self.discriminator, rows, piece.layers)
        z = logits.view(piece.features.shape[:-1])
        z[:, 0].neg_()
        weight = piece.tokens.token_weight[..., None]
        accuracy = ((z < 0) * weight).sum() / (2 * heads)
        weight = weight * self.head_weight(heads)
        loss = (F.softplus(z) * weight).sum()
        if not keeps_gradient:
            return PieceLoss(loss, accuracy)
        # The reversal negates what reaches the features. Negating what reaches the logits, and then the gradients of
        # the network, does the same with less.
        to_logits = z.sigmoid_().mul_(weight)
        to_logits[:, 1].neg_()
        to_features, to_network = backward(to_logits.view(*rows.shape[:2], 1))
        to_features = to_features.view(piece.features.shape)
        return PieceLoss(loss, accuracy, to_features, [gradient.neg_() for gradient in to_network])
