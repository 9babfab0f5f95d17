"""The adversarial losses GAN and CT written out sample by sample and head by head, every player descending."""

import torch
from torch import nn


def by(network, rows):
    """What a network of one layer makes of rows `[..., d]`."""
    return network(rows.reshape(1, -1, rows.shape[-1])).view(*rows.shape[:-1], -1)


def dense_gan(module, query, key, mask, key_mask):
    """Eq. 2 by loops over samples, heads and tokens, through sigmoids and logarithms."""
    highway, first, _, second = module.discriminator
    gate, transform = highway.gate_and_transform.weight[0].chunk(2)
    gate_bias, transform_bias = highway.gate_and_transform.bias[0].chunk(2)

    def probability(x):
        t = torch.sigmoid(gate @ x + gate_bias)
        y = t * torch.relu(transform @ x + transform_bias) + (1 - t) * x
        hidden = nn.functional.leaky_relu(first.weight[0] @ y + first.bias[0], 0.2)
        return torch.sigmoid(second.weight[0] @ hidden + second.bias[0])[0]

    total = 0.0
    for sample in range(len(query)):
        for head in range(query.shape[1]):
            for token in mask[sample].nonzero()[:, 0]:
                total = total - probability(query[sample, head, token]).log() / mask[sample].sum()
            for token in key_mask[sample].nonzero()[:, 0]:
                total = total - (1 - probability(key[sample, head, token])).log() / key_mask[sample].sum()
    return total / len(query)


def dense_ct(module, query, key, mask, key_mask):
    """Eq. 4 with the n × n plans and costs written out."""
    total = 0.0
    for sample in range(len(query)):
        for head in range(query.shape[1]):
            q, k = query[sample, head, mask[sample]], key[sample, head, key_mask[sample]]
            scores = by(module.navigator, q) @ by(module.navigator, k).T
            cost = 1 - nn.functional.cosine_similarity(
                by(module.critic, q)[:, None], by(module.critic, k)[None], dim=-1
            )
            forward = (scores.softmax(dim=1) * cost).sum(dim=1).mean()
            backward = (scores.softmax(dim=0) * cost).sum(dim=0).mean()
            total = total + (forward + backward) / 2
    return total / len(query)


DENSE = {"gan": dense_gan, "ct": dense_ct}
