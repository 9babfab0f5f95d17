"""Hooks that exist only while a patched model records: in training, in `collect`, and while a patch is checked.

A hook sends its module through the slow call of `torch.nn.Module`, also if it does nothing.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

Hook = TypeVar("Hook", bound=Callable[..., Any])


def recording_hook(function: Hook) -> Hook:
    """Mark a method as a hook that `remove_hooks` removes."""
    function.is_recording_hook = True  # type: ignore[attr-defined]
    return function


def has_recording_hook(module: nn.Module) -> bool:
    """Tell whether `module` itself has a recording hook after its forward."""
    return any(getattr(hook, "is_recording_hook", None) is True for hook in module._forward_hooks.values())


def remove_hooks(module: nn.Module) -> None:
    """Remove the recording hooks of `module` and of the modules inside it.

    They are found by their mark, not by handles, because torch and peft copy modules with their hooks.
    """
    for part in module.modules():
        before = (part._forward_pre_hooks, part._forward_pre_hooks_with_kwargs)
        after = (part._forward_hooks, part._forward_hooks_with_kwargs, part._forward_hooks_always_called)
        for numbered in (before, after):
            for number, hook in list(numbered[0].items()):
                if getattr(hook, "is_recording_hook", None) is True:
                    for by_number in numbered:
                        by_number.pop(number, None)
