"""Predictions with dropout on: what Monte Carlo dropout averages, and uncertainty is read from."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig


def can_drop(model: Any) -> bool:
    """Return whether a model drops something where its config says so; one without a config of transformers may."""
    config = getattr(model, "config", None)
    return not isinstance(config, PreTrainedConfig) or any("dropout" in name for name in vars(config))


@contextmanager
def dropping(model: nn.Module, seed: int, device: torch.device) -> Iterator[None]:
    """Let a model drop in each forward as in training, whatever mode a loop puts it into before, and by a seed.

    The random numbers of others stay as they are; the model is in evaluation mode afterwards.

    Args:
        model: that is called.
        seed: of the masks of all forwards in the context.
        device: where it computes.
    """
    hook = model.register_forward_pre_hook(lambda module, args: module.train() and None)
    devices = [] if device.type == "cpu" else [device]
    try:
        with torch.random.fork_rng(devices, device_type="cuda" if not devices else device.type):
            torch.manual_seed(seed)
            yield
    finally:
        hook.remove()
        model.eval()
