"""Weight averaging, EMA and SWA: the trained model has the mean of its weights over the steps, not the last ones."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignattn.training.methods.base import OptionsOfMethod, TrainingMethod
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.options import option

if TYPE_CHECKING:
    from torch import Tensor, nn

EMA, SWA = "ema", "swa"

AVERAGE_FILE = "weight_average.safetensors"
"""File in a checkpoint with the average so far."""

NAME_PREFIX = "average/"
"""Prefix of its tensors, so that they are not mistaken for a model's weights."""

COUNT = "steps"
"""Key of its metadata for the number of averaged steps."""


@dataclass(frozen=True, kw_only=True)
class WeightAveragingOptions(OptionsOfMethod):
    """The options of `WeightAveraging`."""

    weight_averaging: str | None = option(
        None,
        "Average the model's weights over steps: ema or swa.",
        choices=(EMA, SWA),
        excludes={
            "load_best_model_at_end": "the best checkpoint has the weights of one step, not their average",
        },
    )
    ema_decay: float = option(
        0.999, "Maximum decay of ema per step.", low=0, below=1, requires=("weight_averaging=ema",)
    )
    swa_start: float = option(
        0.75, "Share of the steps before swa starts.", low=0, below=1, requires=("weight_averaging=swa",)
    )


class WeightAveraging(TrainingMethod):
    """Averages the trained weights after every step, with `torch.optim.swa_utils`; the model ends with the average.

    `ema` is the exponential moving average (Polyak & Juditsky 1992; Tarvainen & Valpola 2017, eq. 2),
    θ' ← d θ' + (1 - d) θ with d = min(decay, (1 + n) / (10 + n)) after n steps, so that the start does not
    dominate the average of a short training. `swa` is the plain mean (Izmailov et al. 2018, "Averaging Weights Leads to
    Wider Optima and Better Generalization", algorithm 1, with a cycle of one step) over the steps after a given share
    of all steps.

    The running statistics of batch normalization are averaged, too, as by `AveragedModel(use_buffers=True)` of PyTorch:
    those of the last step do not fit the mean of the weights. Izmailov et al. instead compute them anew, in another
    pass over the training rows.

    Evaluations during training and checkpoints use the weights of their step; a checkpoint also contains the average so
    far.
    """

    label = "average"
    summary = "the model is the mean of its weights over the steps"
    switch = "weight_averaging"
    options = WeightAveragingOptions
    needs_whole_weights = True

    def __init__(self, args: Any, model: nn.Module) -> None:
        self.kind: str = args.weight_averaging
        self.decay: float = args.ema_decay
        self.start: float = args.swa_start
        self.averages: dict[str, Tensor] = {}
        self.count = 0

    def before_training(self) -> None:
        """Discard the average; a run that resumes from a checkpoint loads its average afterwards."""
        self.averages, self.count = {}, 0

    def after_step(self, model: nn.Module, step: int, max_steps: int) -> None:
        """Add the weights after a step to the average."""
        import torch
        from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

        if self.kind == SWA and step <= self.start * max_steps:
            return
        weights = _averaged(model)
        with torch.no_grad():
            if not self.count:
                self.averages = {name: _in_full(weight, copy=True) for name, weight in weights.items()}
            else:
                left = min(self.decay, (1 + self.count) / (10 + self.count))  # as in TensorFlow
                average = get_ema_multi_avg_fn(left) if self.kind == EMA else get_swa_multi_avg_fn()
                for name, weight in weights.items():
                    average([self.averages[name]], [_in_full(weight)], self.count)
        self.count += 1

    def after_training(self, model: nn.Module) -> None:
        """Replace the model's weights by the average; if no step was averaged, warn and keep the weights."""
        if not self.count:
            unmet = f"weight_averaging {self.kind}: training ended before the first averaged step"
            warnings.warn(f"{unmet}, so the model has the weights of the last step", stacklevel=2)
            return
        for name, weight in _averaged(model).items():
            weight.detach().copy_(self.averages[name])

    def save(self, checkpoint: Path) -> None:
        """Write the average to the folder of a checkpoint."""
        from safetensors.torch import save_file

        tensors = {NAME_PREFIX + name: average.contiguous() for name, average in self.averages.items()}
        save_file(tensors, checkpoint / AVERAGE_FILE, metadata={COUNT: str(self.count)})

    def load(self, checkpoint: Path, model: nn.Module) -> None:
        """Read the average of a checkpoint.

        Raises:
            AlignAttnError: if it has none, or one of another model.
        """
        from safetensors import safe_open

        path, weights = checkpoint / AVERAGE_FILE, _averaged(model)
        if not path.is_file():
            raise AlignAttnError(f"{checkpoint} has no averaged weights: it belongs to a run without weight_averaging")
        with safe_open(path, "pt") as saved:
            averages = {name.removeprefix(NAME_PREFIX): saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118
            count = (saved.metadata() or {}).get(COUNT, "")
        shapes = {name: average.shape for name, average in averages.items()}
        fits = not averages or shapes == {name: weight.shape for name, weight in weights.items()}
        if not count.isdecimal() or not fits:
            raise AlignAttnError(f"{path} has the average of another model: give another checkpoint")
        self.averages = {name: averages[name].to(weight.device) for name, weight in weights.items()} if averages else {}
        self.count = int(count) if averages else 0


def _in_full(weight: Tensor, *, copy: bool = False) -> Tensor:
    """A weight in float32 or its own wider type: an average in half precision would lose the changes of a step."""
    import torch

    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32), copy=copy)


def _averaged(model: nn.Module) -> dict[str, Tensor]:
    """Return the trained parameters and the running statistics of batch normalization, by name."""
    trained: dict[str, Tensor] = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    for path, module in model.named_modules():
        if getattr(module, "track_running_stats", False):
            prefix = f"{path}." if path else ""
            # Other buffers are counts, or constants such as masks.
            trained |= {f"{prefix}{name}": getattr(module, name) for name in ("running_mean", "running_var")}
    return trained
