"""A linear projection that hands its output on twice: to the attention, and to the alignment loss.

The paper lets the alignment loss optimise "the query and key projection matrices" (Zhang et al. 2021, section 2.3.1).
That needs a gradient which reaches a projection's weight and bias but stops before its input, while the task's
gradient passes as ever. Two outputs of one autograd function do it: backward sees the two gradients apart, forms
the weight's from their sum and the input's from the task's alone, and so costs one addition.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class _ForkedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, reaches_input: bool
    ) -> tuple[Tensor, Tensor]:
        output = F.linear(input, weight, bias)
        ctx.save_for_backward(input, weight)
        ctx.has_bias = bias is not None
        ctx.reaches_input = reaches_input
        ctx.set_materialize_grads(False)
        return output, output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        attended, aligned = grad_outputs
        both = _add(attended, aligned)
        if both is None:
            return None, None, None, None
        input, weight = ctx.saved_tensors
        to_input = both if ctx.reaches_input else attended
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0] and to_input is not None:
            grad_input = to_input @ weight
        flat = both.flatten(0, -2)
        if ctx.needs_input_grad[1]:
            grad_weight = flat.T @ input.flatten(0, -2)
        if ctx.has_bias and ctx.needs_input_grad[2]:
            grad_bias = flat.sum(dim=0)
        return grad_input, grad_weight, grad_bias, None


def _add(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second


def forked_linear(input: Tensor, weight: Tensor, bias: Tensor | None, *, reaches_input: bool) -> tuple[Tensor, Tensor]:
    """Project `input` once and return the result twice.

    Args:
        input: `[..., in_features]`.
        weight: `[out_features, in_features]`.
        bias: `[out_features]` or None.
        reaches_input: whether the gradient of the second result flows on into `input`; into the weight and
            the bias it always flows.

    Returns:
        Two tensors of equal values, `[..., out_features]`: for the attention and for the alignment loss, the second
        without a gradient where nothing can follow it. Under autocast both have its type, as those of
        `torch.nn.functional.linear`.
    """
    device = input.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        input, weight = input.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    if not (reaches_input or weight.requires_grad or (bias is not None and bias.requires_grad)):
        output = F.linear(input, weight, bias)
        return output, output.detach()
    outputs: tuple[Tensor, Tensor] = _ForkedLinear.apply(input, weight, bias, reaches_input)  # type: ignore[no-untyped-call]
    return outputs
