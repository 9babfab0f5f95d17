"""The losses GAN, CT and OT, written out per sample and head; every player minimises its loss."""

import math

import torch
from torch import nn

from alignattn.attention.alignment.sinkhorn import PLAIN, RELAXATION, schedule


def by(network, rows):
    """Return the output of a network of one layer for rows `[..., d]`."""
    return network(rows.reshape(1, -1, rows.shape[-1])).view(*rows.shape[:-1], -1)


def dense_gan(module, query, key, mask, key_mask):
    """Return eq. 2, by loops over samples, heads and tokens, with sigmoids and logarithms."""
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


def heads_of_samples(query, key, mask, key_mask):
    """Yield the real queries `[n, d]` and keys `[m, d]` of each head of each sample."""
    for sample in range(len(query)):
        for head in range(query.shape[1]):
            yield query[sample, head, mask[sample]], key[sample, head, key_mask[sample]]


def dense_ct(module, query, key, mask, key_mask):
    """Return eq. 4, with explicit n × n plans and costs."""
    total = 0.0
    for q, k in heads_of_samples(query, key, mask, key_mask):
        scores = by(module.navigator, q) @ by(module.navigator, k).T
        cost = 1 - nn.functional.cosine_similarity(by(module.critic, q)[:, None], by(module.critic, k)[None], dim=-1)
        forward = (scores.softmax(dim=1) * cost).sum(dim=1).mean()
        backward = (scores.softmax(dim=0) * cost).sum(dim=0).mean()
        total = total + (forward + backward) / 2
    return total / len(query)


def dense_ot(module, query, key, mask, key_mask):
    """Return eq. 3, with explicit n × n costs and plans; the scalings are in logarithms."""
    total = 0.0
    for q, k in heads_of_samples(query, key, mask, key_mask):
        if module.cost == "cosine":
            cost = 1 - nn.functional.cosine_similarity(q[:, None], k[None], dim=-1)
            similarity, largest = 1 - cost, 1.0
        else:
            cost = (q[:, None] - k[None]).square().sum(dim=-1)
            middle = (q.mean(dim=0) + k.mean(dim=0)) / 2
            centred_q, centred_k = q - middle, k - middle
            similarity = 2 * centred_q @ centred_k.T
            largest = 2 * centred_q.norm(dim=1).max() * centred_k.norm(dim=1).max()
        total = total + (plan(similarity, largest, module).detach() * cost).sum()
    return total / len(query)


def plan(similarity, largest, module):
    """Return the plan `[n, m]` after the iterations of the module."""
    rows, columns = similarity.shape
    first = max(module.anneal_from * largest, module.epsilon)
    potential = similarity.new_zeros(columns)
    for progress, rounds in schedule(module.iterations):
        epsilon = first ** (1 - progress) * module.epsilon**progress
        kernel = (potential + similarity) / epsilon
        row, column = similarity.new_zeros(rows, 1), similarity.new_zeros(columns)
        for index in range(rounds):
            of_row, of_column = (PLAIN if at else RELAXATION for at in (index == 0, index in (0, rounds - 1)))
            row = (1 - of_row) * row - of_row * (kernel + column).logsumexp(dim=1, keepdim=True)
            unscaled = (kernel + row).logsumexp(dim=0) - math.log(rows / columns)
            column = (1 - of_column) * column - of_column * unscaled
        potential = potential + epsilon * column
    return (kernel + row + column).exp() / rows


DENSE = {"gan": dense_gan, "ct": dense_ct, "ot": dense_ot}
