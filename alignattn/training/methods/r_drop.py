"""R-Drop (Liang et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from alignattn.tasks import Task
from alignattn.training.methods.base import Inputs, OptionsOfMethod, TrainingMethod
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.options import option

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class RDropOptions(OptionsOfMethod):
    """The options of `RDrop`."""

    r_drop_weight: float = option(0.0, "α of R-Drop: two forward passes and their divergence.", low=0)


class RDrop(TrainingMethod):
    """R-Drop (Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks"): two forward passes.

    Two dropout masks give two predictions P1 and P2 of each row. Half of the paper's eq. 4 is minimised,

        1/2 [ -log P1(y|x) - log P2(y|x) + α · 1/2 (KL(P1 || P2) + KL(P2 || P1)) ],

    so that the task's loss stays a mean, and α is the paper's. If a row is not one class, the symmetric divergence is,
    for tags, its mean over labelled tokens; for generated sequences, its sum over the words; for several labels, the
    mean over the labels; for a span, the mean of the divergences of its start and its end; for a score, the squared
    difference of both predictions (the divergence of two Gaussians of variance 1/2, whose negative log-likelihood is
    the squared error).
    """

    label = "R-Drop"
    summary = "two forward passes of each batch, and their divergence (Liang et al. 2021)"
    switch = "r_drop_weight"
    options = RDropOptions
    forwards = 2
    reads_outputs = True
    extra_name = "r_drop_loss"

    def __init__(self, args: Any, model: nn.Module) -> None:
        self.extra_weight = args.r_drop_weight
        self._has_differed = False

    @classmethod
    def reason_unsupported(cls, task: Task | None, *, has_crf: bool) -> str:
        """Return why predictions of a task have no divergence, as in `TrainingMethod`."""
        if has_crf:
            return " needs probabilities per word, but a CRF has those of whole sequences"
        if task is not None and not task.supports_r_drop:
            return f": task {task.name!r} does not have one class per row: its loss scores each answer separately"
        return ""

    def extra_loss(self, model: nn.Module, inputs: Inputs, outputs: Sequence[Any]) -> Tensor:
        """Return half the symmetric divergence of both predictions.

        Raises:
            AlignAttnError: if the model returns no logits, or has no dropout, so that both forward passes are equal.
        """
        import torch

        from alignattn.training.weights import loss_is_of_rows

        first, second = map(_logits, outputs)
        # The divergence of a batch without a label is 0 as well, so the logits are compared.
        self._has_differed = self._has_differed or not all(map(torch.equal, first, second))
        if not self._has_differed:
            raise AlignAttnError(
                "r_drop_weight compares two dropout masks, but this model has no dropout, or only rates of 0: "
                "leave it out"
            )
        problem_type = getattr(getattr(model, "config", None), "problem_type", None)
        divergences = [
            symmetric_divergence(*pair, inputs.get("labels"), problem_type, is_of_rows=loss_is_of_rows(model))
            for pair in zip(first, second, strict=True)
        ]
        return torch.stack(divergences).mean() / 2


def _logits(outputs: Any) -> list[Tensor]:
    """Return the logits of a model's outputs, in float32: those of the classes, or of the start and the end."""
    from torch import Tensor

    named = outputs if isinstance(outputs, Mapping) else {}
    names = [name for name in ("start_logits", "end_logits") if isinstance(named.get(name), Tensor)] or ["logits"]
    if not all(isinstance(named.get(name), Tensor) for name in names):
        raise AlignAttnError("r_drop_weight compares logits, but this model returns none: leave it out")
    return [named[name].float() for name in names]


def symmetric_divergence(
    first: Tensor, second: Tensor, labels: Tensor | None, problem_type: str | None = None, *, is_of_rows: bool = False
) -> Tensor:
    """Return the mean of both divergences of two predictions, a scalar; `RDrop` defines it for each kind of labels.

    Args:
        first: logits, `[..., C]`.
        second: likewise, for the same rows.
        labels: as the model accepts them; None for the logits of spans.
        problem_type: `problem_type` of the model's config, which distinguishes several scores from several labels.
        is_of_rows: whether the task's loss is a mean over rows that have a label per word.
    """
    from alignattn.training.weights import IGNORED_LABEL

    is_number = labels is not None and labels.is_floating_point()
    if is_number and (first.shape[-1] == 1 or problem_type == "regression"):
        return (first - second).square().mean()
    if is_number:
        return ((first.sigmoid() - second.sigmoid()) * (first - second)).mean() / 2
    logs = first.log_softmax(dim=-1), second.log_softmax(dim=-1)
    # KL(p || q) + KL(q || p) = Σ (p - q) (log p - log q)
    by_item = ((logs[0].exp() - logs[1].exp()) * (logs[0] - logs[1])).sum(dim=-1) / 2
    if labels is None or labels.shape != by_item.shape:
        return by_item.mean()
    is_labelled = labels.ne(IGNORED_LABEL)
    return (by_item * is_labelled).sum() / (len(labels) if is_of_rows else is_labelled.sum().clamp(min=1))
