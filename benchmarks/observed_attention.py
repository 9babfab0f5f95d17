"""Measure a model's attention at transformers' attention interface, and check the reasons of refusals against it."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

BIDIRECTIONAL, CAUSAL, CROSS, UNKNOWN = "bidirectional", "causal", "cross", "unknown"
GROUPED = "grouped"
"""Counted in addition to one of the others: fewer heads of keys than of queries."""


@contextmanager
def observing() -> Iterator[Counter[str]]:
    """Count the calls of attention functions by kind; each is called once more to find its kind."""
    counts: Counter[str] = Counter()
    original = AttentionInterface.get_interface

    def get_interface(self: AttentionInterface, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        function = original(self, name, default)

        def observed(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
            outputs = function(module, query, key, value, *args, **kwargs)
            counts[
                _kind(outputs[0], query, value, lambda new: function(module, query, key, new, *args, **kwargs)[0])
            ] += 1
            counts[GROUPED] += query.shape[1] != key.shape[1]
            return outputs

        return observed

    AttentionInterface.get_interface = get_interface
    try:
        yield counts
    finally:
        AttentionInterface.get_interface = original


def _kind(attended: Tensor, query: Tensor, value: Tensor, attend: Callable[[Tensor], Tensor]) -> str:
    """Return the kind of attention: whether the first token's output changes when the second token's value does."""
    tokens = query.shape[-2]
    if tokens != value.shape[-2]:
        return CROSS
    if tokens < 2 or attended.ndim != 4 or attended.shape[1] != tokens:
        return UNKNOWN
    other = value.detach().clone()
    other[..., 1, :] += 1
    with torch.no_grad():
        change = (attend(other) - attended).flatten(2).abs().amax(-1).amax(0)
    if change[1] == 0:
        return UNKNOWN
    return BIDIRECTIONAL if change[0] > 0 else CAUSAL


def contradiction(reason: str, counts: Counter[str]) -> str:
    """Return the measurement if it contradicts the reason of a refusal, otherwise an empty string."""
    calls = sum(counts.values()) - counts[GROUPED]
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()) if count)
    says_causal = ("attends causally" in reason or "causal mask" in reason) and "cross" not in reason
    if says_causal and calls and counts[BIDIRECTIONAL] == calls:
        return f"no call of attention is causal: {told}"
    if ("does not use" in reason or "do not use" in reason) and "interface" in reason and calls:
        return f"it calls the attention interface: {told}"
    if "fewer heads of keys" in reason and calls and not counts[GROUPED]:
        return f"no call of attention has fewer heads of keys: {told}"
    return ""
