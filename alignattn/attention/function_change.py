"""How far apart two models compute: their attention weights, what they predict, and the products that scores are of.

Distances of queries and keys depend on their basis, which attention does not see, and are nearly blind to what changes
the function (an affine change of the queries alone). These measures are of the function itself.
"""

import torch
from torch import Tensor


def total_variation(first: Tensor, second: Tensor) -> Tensor:
    """Return ½ Σ|p - p'| over the last dimension of two tensors of distributions: 0 for equal, 1 for disjoint ones."""
    return (first.double() - second.double()).abs().sum(dim=-1) / 2


def attention_change(weights: Tensor, reference: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the distance of a call's attention weights from another model's, mean over the real queries of a text.

    Args:
        weights: `[B, H, n, m]`, 0 at padded keys.
        reference: likewise, of the same tokens.
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

    A score is x W_Qᵀ W_K y: balancing, or any other basis of a head, leaves the product as it is.

    Args:
        query: `[H, d, in]`, the weight of the projection of queries.
        key: likewise, of keys.
        reference_query: of the other model.
        reference_key: likewise.

    Returns:
        `[H]` float64.
    """
    product, reference = (q.double().mT @ k.double() for q, k in ((query, key), (reference_query, reference_key)))
    return torch.linalg.matrix_norm(product - reference) / torch.linalg.matrix_norm(reference)
