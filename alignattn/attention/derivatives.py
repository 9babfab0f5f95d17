"""Errors for derivatives that are not implemented, where autograd alone would return zero or NaN."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the backward of a `torch.autograd.Function` so that a second derivative raises an error.

    `torch.autograd.function.once_differentiable` raises only if the incoming gradient requires a gradient and the whole
    graph is traversed: `torch.autograd.grad` with respect to the inputs would silently miss a part of the derivative.

    Args:
        backward: takes the context and the incoming gradients, and returns a gradient or a tuple of them.
    """

    @functools.wraps(backward)
    def wrapper(ctx: Any, *gradients: Tensor) -> Any:
        # A compiler refuses second derivatives itself.
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            with torch.no_grad():
                return backward(ctx, *gradients)
        unpacked = _Unpacked(ctx)
        with torch.no_grad():
            result = backward(unpacked, *gradients)
        sources = [*unpacked.saved_tensors, *gradients]
        if not any(source is not None and source.requires_grad for source in sources):
            # The gradient was computed in the forward pass: a dummy source gives it a backward that raises.
            sources = [torch.empty((), requires_grad=True)]
        parts = result if isinstance(result, tuple) else (result,)
        refused = tuple(part if part is None else _NotTwice.apply(part, *sources) for part in parts)  # type: ignore[no-untyped-call]
        return refused if isinstance(result, tuple) else refused[0]

    return wrapper


def value_and_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
    """Return a scalar function of tensors and its gradients, within the forward pass of another function.

    The graph is hidden from outer hooks, such as those of checkpointing.
    """
    if torch.compiler.is_compiling():
        # As a tuple of two, because its type has an optional third value.
        pulled = torch.func.vjp(function, *inputs)
        return pulled[0], pulled[1](torch.ones_like(pulled[0]))
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept):
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        value = function(*leaves)
    return value.detach(), torch.autograd.grad(value, leaves)


class _Unpacked:
    """A context whose saved tensors are read once: checkpointing cannot unpack them twice."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self.saved_tensors = ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


class _NotTwice(torch.autograd.Function):
    """The identity on a gradient; its backward raises, because the derivative with respect to `sources` is unknown."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor | None) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> None:
        raise RuntimeError(
            "alignments and sparse attention weights have first derivatives only: do not pass create_graph=True "
            "(softmax has a second derivative)"
        )
