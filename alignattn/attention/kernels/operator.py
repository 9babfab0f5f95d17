"""Operators: what launches kernels, taken by a compiler as it is."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Make an operator, `alignattn::name`, of a function of tensors that launches kernels.

    Its kernels run on the GPU of its first tensor: Triton launches on the current one, which need not be it where a
    model lies on several.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def launched(first: Tensor, *others: Any) -> Any:
            with torch.cuda.device_of(first):
                return function(first, *others)

        return torch.library.custom_op(f"alignattn::{name}", mutates_args=())(launched)

    return decorate
