"""Writing a sequence token by token: the likeliest token each time, or a beam of likely beginnings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

State = tuple[Any, ...]
"""What a decoder knows of what it wrote: tensors `[B, …]`, and what all rows share."""

Step = Callable[[Tensor, State], tuple[Tensor, State]]
"""Takes the last tokens, `[B]`, and a state; returns the logits of the next, `[B, V]`, and the state after it."""


@dataclass(frozen=True)
class Limits:
    """Where sequences begin and end.

    Attributes:
        begin: the token before the first.
        end: the token after which nothing is written.
        padding: the token that fills up the shorter ones.
        longest: tokens written at most, the end one of them.
    """

    begin: int
    end: int
    padding: int
    longest: int


def take_rows(state: State, rows: Tensor) -> State:
    """Return some rows of a state, `rows` `[B']` their numbers."""
    parts = (part[rows] if isinstance(part, Tensor) else part for part in state)
    return type(state)._make(parts) if hasattr(state, "_make") else tuple(parts)


def greedy(step: Step, state: State, size: int, limits: Limits, device: torch.device) -> tuple[Tensor, Tensor]:
    """Write the likeliest token each time.

    Args:
        step: of the decoder.
        state: before the first token.
        size: rows B.
        limits: where to begin and to end.
        device: of the tokens.

    Returns:
        The tokens, `[B, n]`, and the logarithm of their probability, `[B]`.
    """
    tokens = torch.full((size,), limits.begin, device=device)
    done = torch.zeros(size, dtype=torch.bool, device=device)
    total: Tensor | None = None
    written = []
    for _ in range(limits.longest):
        logits, state = step(tokens, state)
        best, tokens = logits.log_softmax(dim=-1).max(dim=-1)
        total = best.masked_fill(done, 0) + (0 if total is None else total)
        tokens = tokens.masked_fill(done, limits.padding)
        written.append(tokens)
        done = done | (tokens == limits.end)
        if done.all():
            break
    assert total is not None
    return torch.stack(written, dim=1), total


def beam_search(
    step: Step, state: State, size: int, limits: Limits, device: torch.device, beams: int
) -> tuple[Tensor, Tensor]:
    """Write the likeliest sequence that a beam of so many beginnings finds; one is `greedy`.

    A finished sequence keeps its place in the beam as long as no more than `beams - 1` are likelier. Lengths are not
    rewarded: what is sought is the sequence of the highest probability.

    Args:
        step: as for `greedy`, likewise `state`, `size`, `limits` and `device`.
        state: of the rows.
        size: rows B.
        limits: where to begin and to end.
        device: of the tokens.
        beams: beginnings kept, k.

    Returns:
        As of `greedy`.
    """
    first = torch.arange(size, device=device)[:, None] * beams
    state = take_rows(state, torch.arange(size, device=device).repeat_interleave(beams))
    written = torch.empty(size * beams, 0, dtype=torch.long, device=device)
    tokens = torch.full((size * beams,), limits.begin, device=device)
    done = torch.zeros(size * beams, dtype=torch.bool, device=device)
    total: Tensor | None = None
    for _ in range(limits.longest):
        logits, state = step(tokens, state)
        gains = logits.log_softmax(dim=-1)
        if total is None:
            # All beams are the same beginning: one of them goes on.
            total = torch.full((size, beams), -torch.inf, dtype=gains.dtype, device=device)
            total[:, 0] = 0
        # Of a finished one the only continuation is itself.
        ended = torch.full_like(gains[0], -torch.inf)
        ended[limits.padding] = 0
        gains = torch.where(done[:, None], ended, gains)
        sums = (total[:, :, None] + gains.unflatten(0, (size, beams))).flatten(1)
        total, places = sums.topk(beams, dim=1)
        origin = (first + places // gains.shape[1]).flatten()
        tokens = (places % gains.shape[1]).flatten()
        state = take_rows(state, origin)
        written = torch.cat((written[origin], tokens[:, None]), dim=1)
        done = done[origin] | (tokens == limits.end)
        if done.all():
            break
    assert total is not None
    return written[first.flatten()], total[:, 0]
