"""Weights averaged over the steps of a training, which the trained model has in place of its last ones."""

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from alignattn.training.arguments import AVERAGES
from alignattn.utils.errors import AlignAttnError

EMA, SWA = AVERAGES

AVERAGE_FILE = "weight_average.safetensors"
"""In a checkpoint: the average so far."""

NAME_PREFIX = "average/"
"""Of its tensors: nothing that loads a model's weights takes them for such."""

COUNT = "steps"
"""In its metadata: how many steps it is of."""

EMA_WARMUP = 10
"""While n steps are averaged, at most (1 + n) / (10 + n) of the average is left, as TensorFlow does it."""


class WeightAverage(TrainerCallback):
    """The average of what a training trains, taken after every step by `torch.optim.swa_utils`.

    `ema`: the exponential moving average (Polyak & Juditsky 1992; Tarvainen & Valpola 2017, eq. 2),
    θ' ← d θ' + (1 - d) θ with d = min(decay, (1 + n) / (10 + n)) after n steps, so that a short training is not an
    average with its start. `swa`: the plain mean (Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima and
    Better Generalization", algorithm 1, with a cycle of one step) over the steps after a share of all.

    Args:
        kind: one of `AVERAGES`.
        decay: of `ema`, from 0 to below 1.
        start: of `swa`, the share of the steps before the first that counts.
    """

    def __init__(self, kind: str, decay: float, start: float) -> None:
        self.kind = kind
        self.decay = decay
        self.start = start
        self.averages: dict[str, Tensor] = {}
        self.count = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start anew, unless the training goes on from a checkpoint."""
        if state.global_step == 0:
            self.averages, self.count = {}, 0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Take in the weights after a step."""
        if self.kind == EMA or state.global_step > self.start * state.max_steps:
            self.take_in(kwargs["model"])

    @torch.no_grad()
    def take_in(self, model: nn.Module) -> None:
        """Average a model's weights in."""
        weights = _trained(model)
        if not self.count:
            self.averages = {name: weight.detach().clone() for name, weight in weights.items()}
        else:
            left = min(self.decay, (1 + self.count) / (EMA_WARMUP + self.count))
            average = get_ema_multi_avg_fn(left) if self.kind == EMA else get_swa_multi_avg_fn()
            average(list(self.averages.values()), list(weights.values()), self.count)
        self.count += 1

    @torch.no_grad()
    def give(self, model: nn.Module) -> None:
        """Give a model the average in place of its weights; one of no step warns, and leaves them as they are."""
        if not self.count:
            unmet = f"weight_averaging {self.kind}: the training ended before the first step that counts"
            warnings.warn(f"{unmet}, and the weights are those of its last one", stacklevel=2)
            return
        for name, weight in _trained(model).items():
            weight.copy_(self.averages[name])

    def save(self, checkpoint: Path) -> None:
        """Write the average to the folder of a checkpoint."""
        tensors = {NAME_PREFIX + name: average.contiguous() for name, average in self.averages.items()}
        save_file(tensors, checkpoint / AVERAGE_FILE, metadata={COUNT: str(self.count)})

    def load(self, checkpoint: Path, model: nn.Module) -> None:
        """Take up the average of a checkpoint.

        Args:
            checkpoint: its folder.
            model: that is trained, whose weights it is of.

        Raises:
            AlignAttnError: if it has none, or one of another model.
        """
        path, weights = checkpoint / AVERAGE_FILE, _trained(model)
        if not path.is_file():
            raise AlignAttnError(f"{checkpoint} holds no average of weights: it is of a run without weight_averaging")
        with safe_open(path, "pt") as saved:
            found = {name.removeprefix(NAME_PREFIX): saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118
            count = (saved.metadata() or {}).get(COUNT, "")
        shapes = {name: weight.shape for name, weight in weights.items()}
        if not count.isdecimal() or (found and {name: one.shape for name, one in found.items()} != shapes):
            raise AlignAttnError(f"{path} holds the average of another model: give another checkpoint")
        self.averages = {name: found[name].to(weight) for name, weight in weights.items()} if found else {}
        self.count = int(count) if found else 0


def weight_average(args: Any) -> WeightAverage | None:
    """Return the average of weights that a Trainer's arguments ask for; None if they ask for none."""
    kind = getattr(args, "weight_averaging", None)
    return None if kind is None else WeightAverage(kind, args.ema_decay, args.swa_start)


def _trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
