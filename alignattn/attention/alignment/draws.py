"""Random numbers as a function of a step: the same on every device, compiled or not, and after a resumption.

They use no generator, so a loss that uses them does not change the model's dropout.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
"""The low 32 bits."""

STRIDES = (0x9E3779B1, 0x85EBCA77)
"""Odd multipliers for places and steps."""

ROUNDS = ((16, 0x21F0AAAD), (15, 0x735A2D97))
"""Shift and multiplier of each round of the hash, from Ettinger 2022, "hash-prospector"; products fit int64."""


def hashed(step: Tensor, places: Tensor) -> Tensor:
    """Return whole numbers from 0 to 2^32 - 1, distinct for distinct places below 2^32 of one step.

    Args:
        step: an int64 scalar.
        places: int64, from 0.
    """
    word = (places * STRIDES[0] + step * STRIDES[1]) & WORD
    for shift, factor in ROUNDS:
        word = ((word ^ (word >> shift)) * factor) & WORD
    return word ^ (word >> ROUNDS[-1][0])


def ranks(step: Tensor, size: int, real: Tensor | None) -> Tensor:
    """Return random ranks of tokens or samples, `[size]` or in the mask's shape; the largest are drawn, padding is -1.

    The rank of a real one depends on its place among the real ones, so padding does not change a draw.

    Args:
        step: an int64 scalar.
        size: number of tokens or samples.
        real: `[..., size]` bool; None = all are real.
    """
    if real is None:
        return hashed(step, torch.arange(size, device=step.device))
    return hashed(step, real.cumsum(dim=-1) - 1).masked_fill(~real, -1)


@dataclass(frozen=True)
class SampleDraw:
    """The draw of a limited number of samples of each forward, the same for all its attention calls.

    Attributes:
        rows: the maximum number of samples.
        step: an int64 scalar that determines the draw.
    """

    rows: int
    step: Tensor

    def chosen(self, size: int, real: Tensor | None, device: torch.device) -> Tensor:
        """Return the indices of the samples, `[rows]` int64.

        Args:
            size: the number of samples, more than `rows`.
            real: `[size]` bool, False at samples of padding, which are drawn last; None = all are real.
            device: where the samples are.
        """
        return ranks(self.step.to(device), size, real).topk(self.rows).indices
