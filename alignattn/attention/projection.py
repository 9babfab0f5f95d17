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
    def forward(ctx: Any, output: Tensor, input: Tensor, weight: Tensor, _bias: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(input, weight)
        ctx.set_materialize_grads(False)
        return output.view_as(output), output.view_as(output)

    @staticmethod
    def backward(
        ctx: Any, attended: Tensor | None, aligned: Tensor | None
    ) -> tuple[None, Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        _, reaches_input, reaches_weight, reaches_bias = ctx.needs_input_grad
        grad_input = grad_weight = grad_bias = both = None
        # As rows before anything is computed: the gradient of an attention is often not contiguous.
        if attended is not None:
            both = attended.flatten(0, -2)
            if reaches_input:
                # Under autocast the gradients have its type; torch casts what is returned to the types of the inputs.
                grad_input = (both @ weight.to(both.dtype)).view(input.shape)
        if aligned is not None:
            aligned = aligned.flatten(0, -2)
            both = aligned if both is None else both + aligned
        if both is not None and reaches_weight:
            grad_weight = both.T @ input.to(both.dtype).flatten(0, -2)
        if both is not None and reaches_bias:
            grad_bias = both.sum(dim=0)
        return None, grad_input, grad_weight, grad_bias


def forked(output: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the output of a linear projection twice: for the attention, and for the alignment loss.

    Args:
        output: `[..., out_features]`, the output of the projection.
        input: `[..., in_features]`.
        weight: `[out_features, in_features]`.
        bias: `[out_features]` or None.

    Returns:
        Two equal tensors, `[..., out_features]`, for the attention and for the alignment loss. The gradient of the
        second reaches `weight` and `bias`, but not `input`. It has none if gradients are off or neither is trained.
    """
    if not (torch.is_grad_enabled() and (weight.requires_grad or (bias is not None and bias.requires_grad))):
        return output, output.detach()
    outputs: tuple[Tensor, Tensor] = _Forked.apply(output.detach(), input, weight, bias)  # type: ignore[no-untyped-call]
    return outputs
