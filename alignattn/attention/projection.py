"""The output of a linear projection, returned twice: to the attention, and to the alignment loss.

The paper lets the alignment loss optimise "the query and key projection matrices" (Zhang et al. 2021, section 2.3.1).
Its gradient must reach a projection's weight and bias but not its input, while the task's gradient passes as usual. An
autograd function with two outputs does that: backward receives both gradients, computes the weight's gradient from
their sum and the input's from the task's alone, and costs one addition.
"""

from typing import Any

import torch
from torch import Tensor


class _Forked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, output: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None, reaches_input: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(input, weight)
        ctx.has_bias = bias is not None
        ctx.reaches_input = reaches_input
        ctx.set_materialize_grads(False)
        return output.view_as(output), output.view_as(output)

    @staticmethod
    def backward(
        ctx: Any, *grad_outputs: Tensor | None
    ) -> tuple[None, Tensor | None, Tensor | None, Tensor | None, None]:
        attended, aligned = grad_outputs
        both = _add(attended, aligned)
        if both is None:
            return None, None, None, None, None
        input, weight = ctx.saved_tensors
        to_input = both if ctx.reaches_input else attended
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[1] and to_input is not None:
            grad_input = to_input @ weight
        flat = both.flatten(0, -2)
        if ctx.needs_input_grad[2]:
            grad_weight = flat.T @ input.flatten(0, -2)
        if ctx.has_bias and ctx.needs_input_grad[3]:
            grad_bias = flat.sum(dim=0)
        return None, grad_input, grad_weight, grad_bias, None


def _add(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second


def forked(
    output: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None, *, reaches_input: bool
) -> tuple[Tensor, Tensor]:
    """Return the output of a linear projection twice: for the attention, and for the alignment loss.

    Args:
        output: `[..., out_features]`, the output of the projection.
        input: `[..., in_features]`.
        weight: `[out_features, in_features]`.
        bias: `[out_features]` or None.
        reaches_input: whether the gradient of the second result reaches `input`. It always reaches `weight` and `bias`.

    Returns:
        Two equal tensors, `[..., out_features]`, for the attention and for the alignment loss. The second has no
        gradient if gradients are off, or no parameter is trained and `reaches_input` is False.
    """
    is_trained = weight.requires_grad or (bias is not None and bias.requires_grad)
    if not (torch.is_grad_enabled() and (reaches_input or is_trained)):
        return output, output.detach()
    # Under autocast the output has autocast's type, which the weight and the input need in the backward pass too.
    input, weight = input.to(output.dtype), weight.to(output.dtype)
    bias = None if bias is None else bias.to(output.dtype)
    outputs: tuple[Tensor, Tensor] = _Forked.apply(output.detach(), input, weight, bias, reaches_input)  # type: ignore[no-untyped-call]
    return outputs
