"""Attention to one place that is drawn, learned by REINFORCE (Xu et al. 2015, section 4.1)."""

import torch
from torch import Tensor

BASELINE_KEPT = 0.9
"""Of a baseline at each step; the rest is the mean of the batch."""


def drawn_place(weights: Tensor, *, draws: bool) -> Tensor:
    """Return a place a row, `[B]`, drawn by weights `[B, n]`, or where these are largest."""
    return torch.multinomial(weights, 1)[:, 0] if draws else weights.argmax(dim=-1)


def at_place(place: Tensor, weights: Tensor) -> Tensor:
    """Return 1 at a place `[…]` and 0 elsewhere, as weights `[…, n]`."""
    return torch.nn.functional.one_hot(place, weights.shape[-1]).to(weights)


def log_of(weights: Tensor) -> Tensor:
    """Return the logarithm of weights, finite and without a gradient where one is 0."""
    return weights.clamp(min=torch.finfo(weights.dtype).tiny).log()


def entropy(weights: Tensor) -> Tensor:
    """Return the entropy of weights `[…, n]` in nats, `[…]`."""
    return -(weights * log_of(weights)).sum(dim=-1)


def reinforced(
    log_likelihood: Tensor,
    log_choice: Tensor,
    baseline: Tensor,
    *,
    reward_weight: float = 1.0,
    bonus: Tensor | float = 0.0,
) -> Tensor:
    """Return -log p(y | s), whose gradient is that of its expectation over the places s that are drawn.

    That is -[∂ log p(y | s) + λ (log p(y | s) - b) ∂ log p(s) + ∂ bonus] (Xu et al. 2015, section 4.1), whose mean over
    s with λ = 1 is the gradient of -Σ p(s) log p(y | s), whatever the baseline b.

    Args:
        log_likelihood: log p(y | s), `[B]`.
        log_choice: log p(s), `[B]`, the sum over the places of a row.
        baseline: b, a scalar.
        reward_weight: λ.
        bonus: what is added for its gradient alone, `[B]`: of the entropy.
    """
    advantage = (log_likelihood - baseline).detach()
    taught = reward_weight * advantage * log_choice + bonus
    return -log_likelihood - (taught - taught.detach())
