"""How far the functions of two models differ: in attention weights, predictions and the products W_Qᵀ W_K.

Distances of queries and keys depend on their basis, to which attention is invariant, and are nearly blind to a change
of the function (an affine change of the queries alone). These measures compare the function itself.
"""

import torch
from torch import Tensor


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    """Return ½ Σ|p - p'| over the last dimension of two tensors of distributions: 0 for equal, 1 for disjoint ones."""
    return (first.double() - second.double()).abs().sum(dim=-1) / 2


def attention_change(weights: Tensor, reference: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the distance between two models' attention weights in a call, averaged over the real queries of a text.

    Args:
        weights: `[B, H, n, m]`, 0 at padded keys.
        reference: the other model's weights for the same tokens, likewise.
        mask: `[B, n]` bool, True = a real query; None = all are real.

    Returns:
        `[B, H]` float64, from 0 to 1 (`total_variation`).
    """
    of_query = total_variation(weights, reference)
    if mask is None:
        return of_query.mean(dim=-1)
    return of_query.masked_fill(~mask[:, None], 0).sum(dim=-1) / mask.sum(dim=-1)[:, None]


def product_change(query: Tensor, key: Tensor, reference_query: Tensor, reference_key: Tensor) -> Tensor:
    """Return the relative change of W_Qᵀ W_K of each head, |P - P'| / |P'| in the Frobenius norm.

    A score is x W_Qᵀ W_K y: balancing, or any other change of a head's basis, does not change the product.

    Args:
        query: `[H, d, in]`, the weight of the query projection.
        key: the weight of the key projection, likewise.
        reference_query: `query` of the other model.
        reference_key: `key` of the other model.

    Returns:
        `[H]` float64.
    """
    product, reference = (q.double().mT @ k.double() for q, k in ((query, key), (reference_query, reference_key)))
    return torch.linalg.matrix_norm(product - reference) / torch.linalg.matrix_norm(reference)
