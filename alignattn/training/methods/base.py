"""A training method: what it declares, and the hooks around a training step that it may override."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from alignattn.tasks import Task
from alignattn.utils.options import Options

if TYPE_CHECKING:
    from torch import Tensor, nn

Inputs = Mapping[str, Any]
"""A batch, the keyword arguments of a model."""

EVALUATION_ROWS = ("task", "validation_file", "validation_share")
"""Options that give a run evaluation rows, which a method that changes predictions needs."""


@dataclass(frozen=True, kw_only=True)
class OptionsOfMethod(Options):
    """Base of the options of a method."""

    heading = "training methods"
    all_rare = True


class TrainingMethod:
    """A method that changes how a model is trained, or how a trained model predicts.

    A subclass is one file: its class attributes declare the method to the command line, the model card and the tables,
    and it overrides the hooks that it needs. The options are read without torch, so the file imports torch only where
    it computes. An instance belongs to one Trainer.

    Attributes:
        label: its name, in tables and model cards.
        summary: what it does, in a few words, for the model card.
        switch: name of the option that enables it, with a value other than its default (0, False or None).
        options: a dataclass of its options, which declare what they require and exclude.
        predicts: whether it changes how a trained model predicts, and not the training.
        needs_whole_weights: whether it cannot work with sharded weights, as with DeepSpeed and FSDP.
        forwards: number of forward passes of each batch in a step.
        reads_outputs: whether `extra_loss` uses the model's outputs in addition to the loss.
        extra_name: the name under which `extra_loss` is logged.
        extra_weight: the factor of `extra_loss`.
    """

    label: ClassVar[str]
    summary: ClassVar[str]
    switch: ClassVar[str]
    options: ClassVar[type[OptionsOfMethod]]
    predicts: ClassVar[bool] = False
    needs_whole_weights: ClassVar[bool] = False
    forwards: int = 1
    reads_outputs: ClassVar[bool] = False
    extra_name: ClassVar[str] = ""
    extra_weight: float = 0.0

    def __init__(self, args: Any, model: nn.Module) -> None:
        """Prepare a training.

        Args:
            args: the arguments of a Trainer, with the method's options.
            model: the model to train.

        Raises:
            AlignAttnError: if the method cannot be used with them.
        """

    @classmethod
    def reason_unsupported(cls, task: Task | None, *, has_crf: bool) -> str:
        """Return why a task cannot be trained with the method, in words that follow the option; empty if it can.

        Args:
            task: the task; None if it is not known yet.
            has_crf: whether a CRF scores whole sequences of tags.
        """
        return ""

    def before_training(self) -> None:
        """Forget an earlier training with the same Trainer."""

    def extra_loss(self, model: nn.Module, inputs: Inputs, outputs: Sequence[Any]) -> Tensor | None:
        """Return the extra loss, which is multiplied by `extra_weight` and added; or None.

        It is a scalar, averaged as the task's loss is: over rows or labelled tokens.

        Args:
            model: the model.
            inputs: the batch.
            outputs: the model's outputs, one for each forward pass.
        """
        return None

    def after_step(self, model: nn.Module, step: int, max_steps: int) -> None:
        """Use the model after an optimizer step.

        Args:
            model: the model, with the weights after the step.
            step: number of the step, from 1.
            max_steps: number of steps of the training.
        """

    def after_training(self, model: nn.Module) -> None:
        """Finish the trained model."""

    def save(self, checkpoint: Path) -> None:
        """Write what a resumed training needs to the folder of a checkpoint."""

    def load(self, checkpoint: Path, model: nn.Module) -> None:
        """Read what `save` wrote."""

    def check_prediction(self, trainer: Any, rows: Any) -> str:
        """Check before training that `predict` supports the model; return a remark for the user, or an empty string.

        Args:
            trainer: as for `predict`.
            rows: encoded rows.

        Raises:
            AlignAttnError: if it does not.
        """
        return ""

    def predict(self, trainer: Any, rows: Any) -> Any:
        """Return the `PredictionOutput` of rows; only for a method that `predicts`.

        Args:
            trainer: a `TaskTrainer`.
            rows: encoded rows.
        """
        raise NotImplementedError
