"""The loss of `..gan` and its gradient, written out."""

from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.alignment.cpu.blocks import Block, BlockLoss
from alignattn.attention.alignment.cpu.passes import NetworkPass
from alignattn.attention.alignment.gan import GANAlignment


def gan_loss(alignment: GANAlignment, features: Tensor, block: Block, layer: int, keeps_gradient: bool) -> BlockLoss:
    """Return a block's loss: with z = -logit of a query, logit of a key, it is softplus(z), whose slope is sigmoid(z).

    Args:
        alignment: whose loss it is.
        features: as of `LossOfBlock`, with what follows.
        block: whose features they are.
        layer: the index of the layer.
        keeps_gradient: whether the gradients are wanted.
    """
    _, tokens, heads, head_dim = features.shape
    rows = features.view(1, -1, head_dim)
    network = NetworkPass(alignment.discriminator, rows, layer)
    logits = network.forward(rows).view(2, tokens, heads)
    logits[0].neg_()
    weight = block.token_weight(features.dtype)[:, None]
    accuracy = ((logits < 0) * weight).sum() / (2 * heads)
    weight *= alignment.head_weight(heads)
    loss = (F.softplus(logits) * weight).sum()
    if not keeps_gradient:
        return BlockLoss(loss, accuracy)
    to_logits = logits.sigmoid_().mul_(weight)
    to_logits[0].neg_()
    to_features = network.backward(to_logits.view(1, -1, 1)).neg_()
    return BlockLoss(loss, accuracy, to_features.view_as(features), network.gradients)
