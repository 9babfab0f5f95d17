"""Monte Carlo dropout (Gal & Ghahramani 2016): the mean of predictions with dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from alignattn.tasks import Task
from alignattn.training.methods.base import EVALUATION_ROWS, OptionsOfMethod, TrainingMethod
from alignattn.utils.options import Count, option

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class MCDropoutOptions(OptionsOfMethod):
    """The options of `MCDropout`."""

    mc_dropout_passes: Count | None = option(
        None, "MC dropout: average this many passes with dropout.", requires=EVALUATION_ROWS
    )


class MCDropout(TrainingMethod):
    """Predicts the mean of several passes with dropout.

    Gal & Ghahramani 2016, "Dropout as a Bayesian Approximation", eq. 6. The run's seed determines the masks; other
    random numbers are unaffected.
    """

    label = "MC dropout"
    summary = "the mean prediction of several passes with dropout (Gal & Ghahramani 2016)"
    switch = "mc_dropout_passes"
    options = MCDropoutOptions
    predicts = True

    def __init__(self, args: Any, model: nn.Module) -> None:
        self.passes: int = args.mc_dropout_passes

    @classmethod
    def reason_unsupported(cls, task: Task | None, *, has_crf: bool) -> str:
        """Return why predictions of a task have no mean, as in `TrainingMethod`."""
        if task is None or task.can_average:
            return ""
        return f": predictions of task {task.name!r} are neither classes nor scores of a row and cannot be averaged"

    def check_prediction(self, trainer: Any, rows: Any) -> str:
        """Return a remark if two passes over a batch of rows are equal."""
        import torch

        batch = trainer.prepared(next(iter(trainer.get_test_dataloader(rows))))
        with torch.no_grad(), mc_dropout(trainer.model, trainer.args.seed, trainer.args.device):
            first, second = (trainer.model(**batch).to_tuple() for _ in range(2))
        if not all(map(torch.equal, first, second)):
            return ""
        return f"--mc_dropout_passes {self.passes}: the model has no dropout, so all passes are equal"

    def predict(self, trainer: Any, rows: Any) -> Any:
        """Return the mean prediction."""
        with mc_dropout(trainer.model, trainer.args.seed, trainer.args.device):
            outputs = [trainer.predict(rows) for _ in range(self.passes)]
        mean = trainer.task.average_outputs([output.predictions for output in outputs])
        return outputs[0]._replace(predictions=mean)


def can_drop(model: Any) -> bool:
    """Return whether a dropout rate in a model's config is above 0; True for a model without a transformers config."""
    from transformers import PreTrainedConfig

    config = getattr(model, "config", None)
    if not isinstance(config, PreTrainedConfig):
        return True
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    settings = [setting for part in parts if part is not None for setting in vars(part).items()]
    # A flag, such as ESM's `token_dropout`, is no rate.
    return any("drop" in name and value and not isinstance(value, bool) for name, value in settings)


@contextmanager
def mc_dropout(model: nn.Module, seed: int, device: torch.device) -> Iterator[None]:
    """Apply dropout in each forward pass, from a seed, even if a loop puts the model into evaluation mode.

    Other random numbers are unaffected; the model is in evaluation mode afterwards.

    Args:
        model: the model.
        seed: seed of the masks of all forward passes in the context.
        device: the model's device.
    """
    import torch

    def train_dropout(module: nn.Module, _args: Any) -> None:
        module.train()
        # Batch normalization would normalise a row by its batch, and change its running statistics.
        for part in module.modules():
            if getattr(part, "track_running_stats", False):
                part.eval()

    hook = model.register_forward_pre_hook(train_dropout)
    devices = [] if device.type == "cpu" else [device]
    try:
        with torch.random.fork_rng(devices, device_type="cuda" if not devices else device.type):
            torch.manual_seed(seed)
            yield
    finally:
        hook.remove()
        model.eval()
