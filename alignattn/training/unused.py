"""DistributedDataParallel's search for parameters that no loss reaches, beside a loss that is no output."""

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from alignattn.patching import alignment_parameters


class _Reach(torch.autograd.Function):
    """A tensor as it is, from which parameters are reached that it has no gradient for."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, *parameters: Tensor) -> Tensor:
        ctx.number = len(parameters)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, *[None] * ctx.number


def reach_alignment_from_output(model: nn.Module) -> RemovableHandle:
    """Have the alignment's own networks found from a model's output, as its other parameters are.

    DistributedDataParallel with `find_unused_parameters=True` takes for ready what it does not find from there, and
    ends in "marked ready only once" when the alignment loss, which leaves beside the output, brings a gradient.
    """

    def reach(module: nn.Module, _inputs: Any, output: Any) -> Any:
        if not module.training or not torch.is_grad_enabled():
            return output
        return _with_first_replaced(output, alignment_parameters(module))

    return model.register_forward_hook(reach)


def _with_first_replaced(output: Any, parameters: list[nn.Parameter]) -> Any:
    def reaching(value: Tensor) -> Tensor:
        return _Reach.apply(value, *parameters)  # type: ignore[no-untyped-call]

    if isinstance(output, Tensor):
        return reaching(output)
    if isinstance(output, MutableMapping):
        name = next((name for name, value in output.items() if _has_gradient(value)), None)
        if name is not None:
            output[name] = reaching(output[name])
    elif isinstance(output, tuple):
        index = next((index for index, value in enumerate(output) if _has_gradient(value)), None)
        if index is not None:
            return *output[:index], reaching(output[index]), *output[index + 1 :]
    return output


def _has_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
