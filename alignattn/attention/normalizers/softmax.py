"""The exponential normalizers: softmax, and hard attention with the softmax's gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.derivatives import once_differentiable
from alignattn.attention.masks import Earlier, Segments
from alignattn.attention.normalizers.base import Normalizer, normalize


def softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return exp(s_i) / Σ exp(s_j) over the attendable positions of each row (Vaswani et al. 2017, eq. 1).

    Args:
        scores: `[..., m]`.
        mask: bool, broadcastable to the scores, True = may be attended to; None = every position may.

    Returns:
        `[..., m]`, see `normalize`, whose errors it raises.
    """
    return normalize(lambda shifted, _: F.softmax(shifted, dim=-1), scores, mask)


def hard(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return weight 1 at one largest score of each row, with the gradient of the softmax.

    A deterministic version of the hard attention of Xu et al. 2015, "Show, Attend and Tell", section 4.1, with the
    straight-through estimator of Bengio, Léonard and Courville 2013.

    Arguments, shape of the result and errors as for `softmax`.
    """
    return normalize(lambda shifted, _: _hard(shifted), scores, mask)


def _hard(scores: Tensor) -> Tensor:
    weights: Tensor = _StraightThrough.apply(F.softmax(scores, dim=-1), scores.argmax(dim=-1, keepdim=True))  # type: ignore[no-untyped-call]
    return weights


class _StraightThrough(torch.autograd.Function):
    # Because of rounding, the weights of `hard + soft - soft.detach()` would not be exactly 0 and 1.
    @staticmethod
    def forward(ctx: Any, soft: Tensor, chosen: Tensor) -> Tensor:
        return torch.zeros_like(soft).scatter_(-1, chosen, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return grad_outputs[0], None


class Softmax(Normalizer):
    """`softmax` as a module."""

    def _weights(self, scores: Tensor, mask: Tensor | None, query: Tensor | None, earlier: Earlier | None) -> Tensor:
        return F.softmax(scores, dim=-1)

    def _weights_of_edges(self, scores: Tensor, segments: Segments) -> Tensor:
        raised = scores.exp()
        return raised / segments.total(raised)


class Hard(Normalizer):
    """`hard` as a module."""

    def _weights(self, scores: Tensor, mask: Tensor | None, query: Tensor | None, earlier: Earlier | None) -> Tensor:
        return _hard(scores)
