"""An alignment that trains only a basis of each head, to which attention is invariant."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from alignattn.attention.alignment.base import Alignment, sum_of
from alignattn.attention.alignment.calls import Call, Side
from alignattn.attention.basis import Basis

MAX_CONDITION = 10.0
"""Bound of the condition number of A: without it, a loss of angles would stretch the clouds indefinitely."""
REACH = math.log(MAX_CONDITION) / 2
"""Bound of the absolute eigenvalues of B."""
MEAN_RATE = 1 / 32
"""Rate of the running means, because the projections change."""


class AlignmentInBasis(nn.Module):
    """A(Q', K') of queries and keys in a learned basis of each head, q' = A q and k' = A⁻¹ k + c.

    A = exp(B) is symmetric, and B = (I + P² / 4r²)⁻¹ P, so that the condition number of A is at most e^(2r) =
    `MAX_CONDITION`, reached where P has eigenvalues of ±2r.
    c = A μ_q - A⁻¹ μ_k is not learned: the alignment receives A (q - μ_q) and A⁻¹ (k - μ_k), each cloud centred by its
    own mean over the real tokens of all calls of a layer in a step. With a learned c, stretching A along the means
    would bring a cosine cost to 0 without moving the clouds together. Attention uses the raw queries and keys; `basis`
    returns the change that can be folded into their projections.

    Queries and keys get no gradient. P starts at 0, A at the identity.

    Args:
        alignment: A(·, ·), for the same layers.
        num_heads: heads H of each layer.

    Attributes:
        generator: P, `[L, H, d, d]`, whose symmetric part is used.
        means: running means of queries and of keys, `[2, L, H, d]`.
        steps: number of training steps in a layer's means, `[L]`.
    """

    means: Tensor
    steps: Tensor

    def __init__(self, alignment: Alignment, num_heads: int) -> None:
        super().__init__()
        shape = (alignment.num_layers, num_heads, alignment.head_dim)
        self.alignment = alignment
        self.generator = nn.Parameter(torch.zeros(*shape, shape[-1]))
        self.register_buffer("means", torch.zeros(2, *shape))
        self.register_buffer("steps", torch.zeros(shape[0], dtype=torch.int64))

    def of_calls(self, calls: Sequence[Call], samples: int | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss and diagnostics of attention calls in the basis, as `Alignment.of_calls` does."""
        with torch.autocast(calls[0].query.device.type, enabled=False):
            compute_type = torch.promote_types(calls[0].query.dtype, torch.float32)
            log_matrix = bounded(self.generator.to(compute_type))
            both = torch.stack([log_matrix, -log_matrix]).matrix_exp()
            means = {layer: _means_of(layer, calls) for layer in sorted({call.layer for call in calls})}
            moved = []
            for call in calls:
                query, key = (
                    (_by_head(side, call.heads, mean) @ matrix).transpose(1, 2).flatten(2)
                    for side, mean, matrix in zip(call.sides, means[call.layer], both[:, call.layer], strict=True)
                )
                moved.append(replace(call, query=query, key=key))
        if self.training:
            self._keep(means)
        return self.alignment.of_calls(moved, samples)

    @torch.no_grad()
    def _keep(self, means: Mapping[int, Tensor]) -> None:
        for layer, of_layer in means.items():
            rate = (1 / (self.steps[layer] + 1)).clamp_min(MEAN_RATE)
            self.means[:, layer] += rate * (of_layer[:, :, 0] - self.means[:, layer])
            self.steps[layer] += 1

    @torch.no_grad()
    def basis(self, layer: int) -> Basis:
        """Return the basis of a layer's heads, with c computed from the running means.

        Args:
            layer: index of the layer.
        """
        log_matrix = bounded(self.generator[layer].detach().to("cpu", torch.float64))
        query, key = self.means[:, layer].to("cpu", torch.float64)
        return Basis.of_logarithm(log_matrix, query, key)

    @torch.no_grad()
    def reset(self) -> None:
        """Reset the basis to the identity, after it was folded into the projections."""
        for part in (self.generator, self.means, self.steps):
            part.zero_()


def bounded(generator: Tensor) -> Tensor:
    """Return B for the symmetric part of matrices P `[..., d, d]`: close to P if P is small, eigenvalues in [-r, r].

    Computed without eigenvectors, which have no gradient at equal eigenvalues, as at the start.
    """
    scaled = (generator + generator.mT) / (4 * REACH)
    identity = torch.eye(generator.shape[-1], dtype=generator.dtype, device=generator.device)
    log_matrix = 2 * REACH * torch.linalg.solve(identity + scaled @ scaled, scaled)
    return (log_matrix + log_matrix.mT) / 2


def _means_of(layer: int, calls: Sequence[Call]) -> Tensor:
    """Return the means of the queries and of the keys of all real tokens of a layer's calls, `[2, H, 1, d]`."""
    of_layer = [call for call in calls if call.layer == layer]
    totals = [torch.stack([_by_head(side, call.heads).sum(dim=(0, 2)) for side in call.sides]) for call in of_layer]
    counts = [torch.stack([_count(side).to(totals[0]) for side in call.sides]) for call in of_layer]
    return (sum_of(totals) / sum_of(counts).clamp_min(1)[:, None, None])[:, :, None]


def _count(side: Side) -> Tensor:
    features, mask = side
    return features.new_tensor(features.shape[0] * features.shape[1]) if mask is None else mask.sum()


def _by_head(side: Side, heads: int, mean: Tensor | None = None) -> Tensor:
    """Return the features `[B, n, H * d]` of a side as `[B, H, n, d]`, minus a mean `[H, 1, d]`, 0 at padding."""
    features, mask = side
    by_head = features.to(torch.promote_types(features.dtype, torch.float32)).unflatten(-1, (heads, -1))
    by_head = by_head.transpose(1, 2)
    centred = by_head if mean is None else by_head - mean
    return centred if mask is None else centred.masked_fill(~mask[:, None, :, None], 0)
