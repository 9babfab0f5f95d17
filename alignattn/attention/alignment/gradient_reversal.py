"""Gradient reversal: the identity forward, the negated gradient backward (Ganin & Lempitsky 2015, eq. 8)."""

from typing import Any

import torch
from torch import Tensor


class _GradientReversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        return -grad_outputs[0]


def reverse_gradient(features: Tensor) -> Tensor:
    """Return `features` unchanged; the gradient that flows back through the result changes its sign.

    One reversal between two players makes a single backward pass a minimax game: what lies behind it ascends
    the loss that what lies before it descends.

    Args:
        features: any shape.

    Returns:
        A view of `features`, same shape and type.
    """
    reversed_features: Tensor = _GradientReversal.apply(features)  # type: ignore[no-untyped-call]
    return reversed_features
