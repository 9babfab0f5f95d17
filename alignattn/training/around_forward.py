"""What surrounds the forward of a training step: the one place that decides how many there are, and what they cost.

Every such method is a loss around the task's: it calls the model's forward as often as it wants, and the alignment is
then the mean over all of a step's forwards.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from alignattn.training.arguments import refuse_data_parallel
from alignattn.training.mc_dropout import can_drop
from alignattn.training.weights import IGNORED_LABEL, PACKED_BOUNDS, loss_is_of_rows
from alignattn.utils.errors import AlignAttnError

Inputs = Mapping[str, Any]
Forward = Callable[[Inputs], tuple[Tensor, Any]]
"""Of a batch: the task's loss, a scalar, and the model's outputs, None where nobody reads them."""

LABELS = "labels"
OF_SPANS = ("start_logits", "end_logits")
"""Names of a model's outputs where an answer is a span."""

REGRESSION = "regression"
"""A `problem_type` of a model's config."""


@dataclass(frozen=True)
class ForwardLoss:
    """What a batch's forwards cost.

    Attributes:
        task: the task's loss, a scalar: the mean over the forwards.
        outputs: of the first forward; None where nobody reads them.
        extra: what a method adds to it, a scalar as a mean over the batch; None where it adds nothing.
        weight: of `extra`.
        name: under which `extra` is logged.
    """

    task: Tensor
    outputs: Any
    extra: Tensor | None = None
    weight: float = 0.0
    name: str = ""


class TrainingMethod(ABC):
    """A method that surrounds a training forward."""

    reads_outputs: ClassVar[bool] = False
    """Whether it reads what the model returns beside the loss."""

    @abstractmethod
    def loss(self, forward: Forward, inputs: Inputs, model: nn.Module) -> ForwardLoss:
        """Return the loss of a batch, having made its forwards.

        Args:
            forward: of the model and its task's loss.
            inputs: the batch, which stays as it is.
            model: that `forward` calls.
        """


class OneForward(TrainingMethod):
    """Plain training: one forward."""

    def loss(self, forward: Forward, inputs: Inputs, model: nn.Module) -> ForwardLoss:
        """Return the task's loss."""
        return ForwardLoss(*forward(inputs))


class RDrop(TrainingMethod):
    """R-Drop (Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks"), two forwards of each batch.

    With two dropout masks, and so two predictions P1 and P2 of each row, half of its eq. 4 is minimised:

        1/2 [ -log P1(y|x) - log P2(y|x) + α · 1/2 (KL(P1 || P2) + KL(P2 || P1)) ]

    so that the task's loss stays a mean, and α is the paper's. What stands for the symmetric divergence where a row is
    not one class: of tags, its mean over labelled tokens; of a sequence that is written, its sum over the words; of
    several labels at once, the mean of that of each; of a span, the mean of those of its start and its end; of a score,
    the squared difference of the two predictions (the divergence of two Gaussians of variance 1/2, whose negative
    log-likelihood is the squared error).

    Args:
        weight: α.
        problem_type: of the model's config, which tells several scores from several labels; None if it says nothing.
        is_of_rows: whether the task's loss is a mean over rows that have a label a word.
    """

    reads_outputs = True

    def __init__(self, weight: float, problem_type: str | None = None, *, is_of_rows: bool = False) -> None:
        self.weight = weight
        self.problem_type = problem_type
        self.is_of_rows = is_of_rows
        self._has_differed = False

    def loss(self, forward: Forward, inputs: Inputs, model: nn.Module) -> ForwardLoss:
        """Return the mean task loss of two forwards, and half their divergence.

        Raises:
            AlignAttnError: if the model returns no logits, or draws no dropout: both forwards are then the same.
        """
        # A loss that reads the labels may take them out of what it is given.
        labels = inputs.get(LABELS)
        (first_loss, first), (second_loss, second) = forward(dict(inputs)), forward(dict(inputs))
        divergence = symmetric_divergence(first, second, labels, self.problem_type, is_of_rows=self.is_of_rows)
        # Of a batch without a label the divergence is 0 as well.
        self._has_differed = self._has_differed or not all(map(torch.equal, *compared(first, second)))
        if not self._has_differed:
            remedy = ", or give the model's config a dropout" if can_drop(model) else ": no model of its kind ever does"
            raise AlignAttnError(
                f"r_drop_weight compares two dropout masks, and this model drops nothing: leave it out{remedy}"
            )
        return ForwardLoss((first_loss + second_loss) / 2, first, divergence / 2, self.weight, "r_drop_loss")


class FreeLB(TrainingMethod):
    """FreeLB (Zhu et al. 2020, "FreeLB: Enhanced Adversarial Training for Natural Language Understanding").

    Its algorithm 1, of a batch with word embeddings X, K steps long:

        δ_0 ~ U(-ε, ε) / √N                                     N = numbers of a sequence's embeddings
        δ_t = Π_{‖δ‖ ≤ ε} (δ_{t-1} + α g_t / ‖g_t‖)            g_t = ∇_δ of the task's loss at X + δ_{t-1}

    and the loss that is minimised is the mean of the task's losses at X + δ_0, …, X + δ_{K-1}. Norms are a sequence's
    own, over its real tokens. All K forwards have one dropout mask (section 3.4). The opponent ascends the task's loss
    alone; the alignment is the mean over the K forwards. A step holds the graphs of all K forwards.

    Args:
        steps: K.
        step_size: α.
        max_norm: ε.
    """

    def __init__(self, steps: int, step_size: float, max_norm: float) -> None:
        self.steps = steps
        self.step_size = step_size
        self.max_norm = max_norm

    def loss(self, forward: Forward, inputs: Inputs, model: nn.Module) -> ForwardLoss:
        """Return the mean task loss over the ascending perturbations of the model's input embeddings."""
        if inputs.get(PACKED_BOUNDS) is not None:
            raise AlignAttnError("freelb_steps bounds what it adds to each row, and a packed batch is one row: pad it")
        perturbations = _Perturbations(embeddings_of(model, "freelb_steps"), self.max_norm)
        losses, outputs = [], None
        for step in range(self.steps):
            with perturbations:
                loss, found = forward(dict(inputs))
            losses.append(loss)
            outputs = outputs if step else found
            if step + 1 < self.steps:
                perturbations.ascend(loss, self.step_size)
        return ForwardLoss(torch.stack(losses).mean(), outputs)


class _Perturbations:
    """δ of each call of the embeddings in a forward: a context in which it is added, drawn in the first one.

    A forward goes on from each call with the random numbers that the first had there: the dropout mask is one.
    """

    def __init__(self, embeddings: nn.Embedding, max_norm: float) -> None:
        self.embeddings = embeddings
        self.max_norm = max_norm
        self.deltas: list[Tensor] = []
        self._states: list[Any] = [_random_state(embeddings.weight.device)]
        self._calls = 0

    def __enter__(self) -> None:
        self._calls = 0
        _set_random_state(self._states[0])
        self._handle = self.embeddings.register_forward_hook(self._add)

    def __exit__(self, *_: Any) -> None:
        self._handle.remove()

    def _add(self, module: nn.Module, args: tuple[Any, ...], embedded: Tensor) -> Tensor:
        if self._calls == len(self.deltas):
            self.deltas.append(self._drawn(args[0], embedded))
            self._states.append(_random_state(embedded.device))
        self._calls += 1
        _set_random_state(self._states[self._calls])
        return embedded + self.deltas[self._calls - 1].to(embedded.dtype)

    def _drawn(self, tokens: Tensor, embedded: Tensor) -> Tensor:
        """δ_0 in float32, `[B, n, d]`; nothing on padding."""
        padding = self.embeddings.padding_idx
        is_real = torch.ones_like(tokens) if padding is None else tokens.ne(padding)
        numbers = is_real.sum(dim=-1).clamp(min=1) * embedded.shape[-1]
        size = (self.max_norm / numbers.sqrt())[:, None, None] * is_real[..., None]
        return (torch.empty(embedded.shape, device=embedded.device).uniform_(-1, 1) * size).requires_grad_()

    def ascend(self, loss: Tensor, step_size: float) -> None:
        """Take a step of the given length up the slope of a loss, and back into the ball."""
        slopes = torch.autograd.grad(loss, self.deltas, retain_graph=True)
        self.deltas = [self._ascended(*pair, step_size) for pair in zip(self.deltas, slopes, strict=True)]

    def _ascended(self, delta: Tensor, slope: Tensor, step_size: float) -> Tensor:
        moved = delta.detach() + step_size * slope / _norms(slope)
        return (moved * (self.max_norm / _norms(moved)).clamp(max=1)).requires_grad_()


def around_forward(args: Any, model: nn.Module) -> TrainingMethod:
    """Return what surrounds the training forwards that arguments ask for.

    Args:
        args: of a Trainer; those of `AlignmentArguments` count, where it has them.
        model: to be trained.

    Raises:
        AlignAttnError: if it cannot be done with the rest of the arguments, or with the model.
    """
    if getattr(args, "neftune_noise_alpha", None) is not None:
        # Trainer's own, which would fail at the first step.
        embeddings_of(model, "neftune_noise_alpha")
    weight, steps = getattr(args, "r_drop_weight", 0.0), getattr(args, "freelb_steps", None)
    if weight:
        refuse_data_parallel(args, "R-Drop")
        problem_type = getattr(getattr(model, "config", None), "problem_type", None)
        return RDrop(weight, problem_type, is_of_rows=loss_is_of_rows(model))
    if steps is None:
        return OneForward()
    refuse_data_parallel(args, "FreeLB")
    if args.torch_compile:
        raise AlignAttnError("freelb_steps perturbs embeddings by a hook, which torch_compile passes over: drop one")
    embeddings_of(model, "freelb_steps")
    return FreeLB(steps, args.freelb_step_size, args.freelb_max_norm)


def symmetric_divergence(
    first: Any, second: Any, labels: Tensor | None, problem_type: str | None = None, *, is_of_rows: bool = False
) -> Tensor:
    """Return how far two predictions of a batch lie apart, a scalar, as `RDrop` says for each kind of labels.

    Args:
        first: outputs of a model: `logits`, or `start_logits` and `end_logits`.
        second: likewise, of the same rows.
        labels: as the model takes them; None where the outputs are spans.
        problem_type: as for `RDrop`.
        is_of_rows: likewise.

    Raises:
        AlignAttnError: if there are no such outputs.
    """
    pairs = zip(*compared(first, second), strict=True)
    return torch.stack([_divergence(*pair, labels, problem_type, is_of_rows=is_of_rows) for pair in pairs]).mean()


def compared(first: Any, second: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Return the logits of two outputs of a model, in float32; arguments and error as of `symmetric_divergence`."""
    names = [name for name in OF_SPANS if _has(first, name)] or ["logits"]
    if not all(_has(outputs, name) for outputs in (first, second) for name in names):
        raise AlignAttnError("r_drop_weight compares logits, and this model returns none: leave it out")
    return [first[name].float() for name in names], [second[name].float() for name in names]


def _has(outputs: Any, name: str) -> bool:
    return isinstance(outputs, Mapping) and isinstance(outputs.get(name), Tensor)


def _divergence(
    first: Tensor, second: Tensor, labels: Tensor | None, problem_type: str | None, *, is_of_rows: bool
) -> Tensor:
    is_number = labels is not None and labels.is_floating_point()
    if is_number and (first.shape[-1] == 1 or problem_type == REGRESSION):
        return (first - second).square().mean()
    if is_number:
        return ((first.sigmoid() - second.sigmoid()) * (first - second)).mean() / 2
    logs = F.log_softmax(first, dim=-1), F.log_softmax(second, dim=-1)
    # KL(p || q) + KL(q || p) = Σ (p - q) (log p - log q)
    by_item = ((logs[0].exp() - logs[1].exp()) * (logs[0] - logs[1])).sum(dim=-1) / 2
    if labels is None or labels.shape != by_item.shape:
        return by_item.mean()
    is_labelled = labels.ne(IGNORED_LABEL)
    return (by_item * is_labelled).sum() / (len(labels) if is_of_rows else is_labelled.sum().clamp(min=1))


MIN_NORM = 1e-20
"""Stands for the norm of a gradient of nothing."""


def _norms(perturbations: Tensor) -> Tensor:
    """Frobenius norms of `[B, n, d]`, `[B, 1, 1]`."""
    return perturbations.flatten(1).norm(dim=1).clamp(min=MIN_NORM)[:, None, None]


def embeddings_of(model: nn.Module, option: str) -> nn.Embedding:
    """Return the word embeddings of a model, which an option perturbs; raises `AlignAttnError` if they are not one."""
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
    module = None if device.type == "cpu" else torch.get_device_module(device)
    return torch.get_rng_state(), device, None if module is None else module.get_rng_state(device)


def _set_random_state(state: tuple[Tensor, torch.device, Tensor | None]) -> None:
    on_host, device, on_device = state
    torch.set_rng_state(on_host)
    if on_device is not None:
        torch.get_device_module(device).set_rng_state(on_device, device)
