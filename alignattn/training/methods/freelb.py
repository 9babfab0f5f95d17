"""FreeLB (Zhu et al. 2020): adversarial perturbations of the word embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from alignattn.training.methods.base import Inputs, OptionsOfMethod, TrainingMethod
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.option import Count, option

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

STEP_SHARE = 1 / 3
"""Default step size, as a share of the maximum norm, which has no default: the best norm depends on model and task."""
MIN_NORM = 1e-20
"""Minimum norm by which a gradient is divided."""


@dataclass(frozen=True, kw_only=True)
class FreeLBOptions(OptionsOfMethod):
    """The options of `FreeLB`."""

    freelb_steps: Count | None = option(
        None,
        "FreeLB: forward passes with adversarial embeddings per step.",
        requires=("freelb_max_norm",),
    )
    freelb_step_size: float | None = option(
        None,
        "Step size of FreeLB's gradient ascent (default: a third of --freelb_max_norm).",
        above=0,
        requires=("freelb_steps",),
    )
    freelb_max_norm: float | None = option(
        None, "Maximum norm of FreeLB's perturbation of a sequence.", above=0, requires=("freelb_steps",)
    )


class FreeLB(TrainingMethod):
    """FreeLB (Zhu et al. 2020, "FreeLB: Enhanced Adversarial Training for Natural Language Understanding").

    Its algorithm 1, for a batch with word embeddings X and K steps:

        δ_0 ~ U(-ε, ε) / √N                                     N = size of a sequence's embeddings
        δ_t = Π_{‖δ‖ ≤ ε} (δ_{t-1} + α g_t / ‖g_t‖)            g_t = ∇_δ of the task's loss at X + δ_{t-1}

    The loss is the mean of the task's losses at X + δ_0, …, X + δ_{K-1}. A norm is taken over the real tokens of one
    sequence. All K forward passes share one dropout mask (section 3.4). The perturbation ascends the task's loss alone;
    the alignment is the mean over the K forward passes. A step keeps the graphs of all K forward passes in memory.
    """

    label = "FreeLB"
    summary = "adversarial perturbations of the word embeddings (Zhu et al. 2020)"
    switch = "freelb_steps"
    options = FreeLBOptions
    runs_in_data_parallel = False

    def __init__(self, args: Any, model: nn.Module) -> None:
        if args.torch_compile:
            raise AlignAttnError("freelb_steps needs a hook that torch_compile skips: leave one of them out")
        self.forwards = args.freelb_steps
        self.max_norm: float = args.freelb_max_norm
        self.step_size: float = args.freelb_step_size or self.max_norm * STEP_SHARE
        embeddings_of(model, self.switch)
        self._deltas: list[Tensor] = []
        self._states: list[Any] = []
        self._calls = 0

    def before_forwards(self, model: nn.Module, inputs: Inputs) -> None:
        """Start a batch without a perturbation.

        Raises:
            AlignAttnError: for a packed batch.
        """
        from alignattn.training.weights import PACKED_BOUNDS

        if inputs.get(PACKED_BOUNDS) is not None:
            raise AlignAttnError(
                "freelb_steps bounds the perturbation of each row, but a packed batch is one row: pad it instead"
            )
        self._embeddings = embeddings_of(model, self.switch)
        self._mask = inputs.get("attention_mask")
        self._deltas, self._states = [], [_random_state(self._embeddings.weight.device)]

    @contextmanager
    def around_forward(self) -> Iterator[None]:
        """Add a δ to the output of each call of the embeddings; the first forward pass draws them.

        From each call on, a forward pass uses the random numbers of the first one, so that all share one dropout mask.
        """
        self._calls = 0
        _set_random_state(self._states[0])
        hook = self._embeddings.register_forward_hook(self._perturb)
        try:
            yield
        finally:
            hook.remove()

    def after_forward(self, loss: Tensor) -> None:
        """Take one step of gradient ascent, and project onto the ball."""
        import torch

        slopes = torch.autograd.grad(loss, self._deltas, retain_graph=True)
        for index, (delta, slope) in enumerate(zip(self._deltas, slopes, strict=True)):
            moved = delta.detach() + self.step_size * slope / _norms(slope)
            self._deltas[index] = (moved * (self.max_norm / _norms(moved)).clamp(max=1)).requires_grad_()

    def _perturb(self, module: nn.Module, args: Sequence[Any], embedded: Tensor) -> Tensor:
        if self._calls == len(self._deltas):
            self._deltas.append(self._first_delta(args[0], embedded))
            self._states.append(_random_state(embedded.device))
        self._calls += 1
        _set_random_state(self._states[self._calls])
        return embedded + self._deltas[self._calls - 1].to(embedded.dtype)

    def _first_delta(self, tokens: Tensor, embedded: Tensor) -> Tensor:
        """Return δ_0 in float32, `[B, n, d]`; 0 at padding."""
        import torch

        padding, mask = self._embeddings.padding_idx, self._mask
        if mask is not None and not self._deltas and mask.numel() == tokens.numel():
            is_real = mask.reshape(tokens.shape)  # of the first call; a decoder's tokens are the second
        else:
            is_real = torch.ones_like(tokens) if padding is None else tokens.ne(padding)
        numbers = is_real.sum(dim=-1).clamp(min=1) * embedded.shape[-1]
        size = (self.max_norm / numbers.sqrt())[:, None, None] * is_real[..., None]
        return (torch.empty(embedded.shape, device=embedded.device).uniform_(-1, 1) * size).requires_grad_()


def _norms(perturbations: Tensor) -> Tensor:
    """Return the Frobenius norms of `[B, n, d]`, `[B, 1, 1]`."""
    return perturbations.flatten(1).norm(dim=1).clamp(min=MIN_NORM)[:, None, None]


def embeddings_of(model: nn.Module, option: str) -> nn.Embedding:
    """Return the word embeddings of a model, which an option perturbs.

    Raises:
        AlignAttnError: if they are not a single `nn.Embedding`.
    """
    from torch import nn

    try:
        found: Any = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        found = None
    if not isinstance(found, nn.Embedding):
        raise AlignAttnError(
            f"{option} perturbs word embeddings, and {type(model).__name__} has no single table of them: leave it out"
        )
    return found


def _random_state(device: torch.device) -> tuple[Tensor, torch.device, Tensor | None]:
    import torch

    module = None if device.type == "cpu" else torch.get_device_module(device)
    return torch.get_rng_state(), device, None if module is None else module.get_rng_state(device)


def _set_random_state(state: tuple[Tensor, torch.device, Tensor | None]) -> None:
    import torch

    on_host, device, on_device = state
    torch.set_rng_state(on_host)
    if on_device is not None:
        torch.get_device_module(device).set_rng_state(on_device, device)
