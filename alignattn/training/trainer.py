"""A Trainer that adds λ · L_align to the task loss (Zhang et al. 2021, eq. 1)."""

import json
import math
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from alignattn.patching import alignment_parameters, has_alignment, patch_of, step_alignments
from alignattn.support.errors import AlignAttnError

ALIGNMENT_LEARNING_RATE = 1e-3
"""Adversaries and navigators are new networks: at a pretrained model's learning rate they stay at chance."""


@dataclass
class AlignmentTrainingArguments(TrainingArguments):
    """`transformers.TrainingArguments` and what the alignment loss needs."""

    alignment_learning_rate: float = field(
        default=ALIGNMENT_LEARNING_RATE,
        metadata={"help": "Learning rate of the alignment losses' own networks."},
    )
    alignment_warmup_ratio: float = field(
        default=0.0,
        metadata={"help": "Share of the training steps over which the alignment weight rises linearly from 0."},
    )

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[no-untyped-call]
        # Accelerate's YAML gives 1e-3 as a string.
        self.alignment_learning_rate = float(self.alignment_learning_rate)
        self.alignment_warmup_ratio = float(self.alignment_warmup_ratio)
        if not 0 <= self.alignment_warmup_ratio <= 1:
            raise AlignAttnError(f"alignment_warmup_ratio={self.alignment_warmup_ratio} must lie between 0 and 1")
        if not self.alignment_learning_rate > 0:
            raise AlignAttnError(f"alignment_learning_rate={self.alignment_learning_rate} must be positive")


class LossMeter(TrainerCallback, ExportableState):
    """Means of the losses and diagnostics over a logging interval and over the run, a checkpoint's past included.

    It also stops a run whose loss is no longer finite before anything of it is logged, evaluated or saved.
    """

    def __init__(self) -> None:
        self.interval: dict[str, Tensor | float] = {}
        self.interval_batches = 0
        self.run_loss: Tensor | float = 0.0
        self.run_batches = 0

    def add(self, loss: Tensor, parts: dict[str, Tensor | float]) -> None:
        """Count one batch: its total loss and the parts to be logged, all detached scalars."""
        self.run_loss = self.run_loss + loss
        self.run_batches += 1
        self.interval_batches += 1
        for name, value in parts.items():
            self.interval[name] = self.interval.get(name, 0.0) + value

    def take_interval(self) -> dict[str, float]:
        """Return the means since the last call, and start anew."""
        batches = max(self.interval_batches, 1)
        means = {name: float(value) / batches for name, value in self.interval.items()}
        self.interval, self.interval_batches = {}, 0
        return means

    def mean_run_loss(self) -> float:
        """Return the mean total loss of the whole run."""
        return float(self.run_loss) / max(self.run_batches, 1)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        attributes = {
            "interval": {name: float(value) for name, value in self.interval.items()},
            "interval_batches": self.interval_batches,
            "run_loss": float(self.run_loss),
            "run_batches": self.run_batches,
        }
        return {"args": {}, "attributes": attributes}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take up what the checkpoint kept, or start at zero."""
        callbacks: Any = state.stateful_callbacks or {}
        saved = callbacks.get(type(self).__name__) if state.global_step else None
        for name, value in (saved or LossMeter().state())["attributes"].items():
            setattr(self, name, value)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop at a loss that is not finite, where it would be written anywhere."""
        if control.should_log or control.should_save or control.should_evaluate:
            self.check_finite(state.global_step)

    def check_finite(self, step: int) -> None:
        """Raise if a loss of the run so far was not finite.

        Raises:
            AlignAttnError: if so.
        """
        if not math.isfinite(float(self.run_loss)):
            raise AlignAttnError(
                f"the loss is no longer finite (at or before step {step}): lower --learning_rate, "
                "--alignment_learning_rate or the alignment weight; earlier checkpoints are untouched"
            )


def refuse_data_parallel(args: TrainingArguments, what: str) -> None:
    """Refuse several GPUs in one process, whose replicas see a part of a batch each.

    Raises:
        AlignAttnError: if `args` asks for them.
    """
    if args.n_gpu > 1:
        raise AlignAttnError(
            f"{what} does not run in DataParallel: start one process a GPU with torchrun --nproc_per_node, or show one "
            "GPU only with CUDA_VISIBLE_DEVICES"
        )


class AlignmentTrainer(Trainer):
    """`transformers.Trainer` for a patched model: minimises task loss + λ · mean over layers of A(Q, K).

    Logs `loss` (what is minimised), `task_loss`, `align_loss`, `alignment_weight` (λ at this step) and the alignment's
    diagnostics (`discriminator_accuracy`, `marginal_error` or `critic_gap`). The alignment's own networks form a
    parameter group with the learning rate `args.alignment_learning_rate` (default 1e-3) and no weight decay. With a
    model that is not patched, or patched without an alignment, it trains as `Trainer` does.

    Args:
        *args: as for `transformers.Trainer`.
        **kwargs: as for `transformers.Trainer`; `args` may be plain `TrainingArguments`.

    Raises:
        AlignAttnError: on DataParallel (several GPUs in one process), on reentrant gradient checkpointing (at the first
            step) and on a loss that is not finite.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        model = kwargs.get("model", args[0] if args else None)
        training_args = kwargs.get("args", args[1] if len(args) > 1 else None)
        if has_alignment(model) and training_args is not None and training_args.ddp_find_unused_parameters is None:
            # The alignment loss leaves the model beside its output: a search for unused parameters from the output
            # would miss its networks and end in "marked ready only once".
            training_args.ddp_find_unused_parameters = False
        super().__init__(*args, **kwargs)
        # Otherwise the gradient of a sequence classifier grows with the accumulation steps (transformers issue 47688).
        self.model_accepts_loss_kwargs = False
        self.meter = LossMeter()
        self.add_callback(self.meter)
        if has_alignment(self.model):
            refuse_data_parallel(self.args, "alignment attention")

    @property
    def _patched_model(self) -> nn.Module:
        # transformers types it as optional: it is None only before a hyperparameter search makes one.
        assert self.model is not None
        return self.model

    @property
    def alignment_weight(self) -> float:
        """λ at the present step: linear from 0 during the warm-up."""
        weight = patch_of(self._patched_model).config.alignment_weight
        warmup_steps = getattr(self.args, "alignment_warmup_ratio", 0.0) * self.state.max_steps
        return weight if warmup_steps < 1 else weight * min(1.0, self.state.global_step / warmup_steps)

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as `transformers.Trainer` does; `training_loss` is the mean over the whole run, resumed or not."""
        output = super().train(*args, **kwargs)
        self.meter.check_finite(self.state.global_step)
        loss = self.meter.mean_run_loss()
        return TrainOutput(output.global_step, loss, output.metrics | {"train_loss": loss})

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the loss to be minimised: in evaluation mode the task's alone."""
        task_loss, outputs = self._task_loss(model, inputs, num_items_in_batch)
        loss = task_loss
        if model.training:
            loss, parts = self._with_alignment(task_loss)
            self.meter.add(loss.detach(), parts)
        return (loss, outputs) if return_outputs else loss

    def _task_loss(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None
    ) -> tuple[Tensor, Any]:
        if has_alignment(self.model):
            patch_of(self._patched_model).collector.take()  # what a forward before this step left
        task_loss, outputs = super().compute_loss(
            model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch
        )
        return task_loss, outputs

    def _with_alignment(self, task_loss: Tensor) -> tuple[Tensor, dict[str, Tensor | float]]:
        if not has_alignment(self.model):
            return task_loss, {}
        ((_, align_loss, diagnostics),) = step_alignments(self._patched_model)
        weight = self.alignment_weight
        parts = {"task_loss": task_loss.detach(), "align_loss": align_loss.detach()}
        return task_loss + weight * align_loss, {**diagnostics, **parts, "alignment_weight": weight}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as `transformers.Trainer` does, with the parts of the loss beside it."""
        if "loss" in logs:
            logs |= self._mean_over_processes(self.meter.take_interval())
        if "train_loss" in logs:
            logs["train_loss"] = self.meter.mean_run_loss()
        super().log(logs, start_time)

    def _mean_over_processes(self, means: dict[str, float]) -> dict[str, float]:
        if self.accelerator.num_processes == 1 or not means:
            return means
        values = torch.tensor(list(means.values()), device=self.args.device)
        return dict(zip(means, self.accelerator.reduce(values, "mean").tolist(), strict=True))

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create the optimizer, with a parameter group for the alignment's own networks."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        own = alignment_parameters(self._patched_model if model is None else model)
        if is_new and own:
            own_ids = {id(parameter) for parameter in own}
            for group in optimizer.param_groups:
                group["params"] = [parameter for parameter in group["params"] if id(parameter) not in own_ids]
            learning_rate = getattr(self.args, "alignment_learning_rate", ALIGNMENT_LEARNING_RATE)
            optimizer.add_param_group({"params": own, "lr": learning_rate, "weight_decay": 0.0})
            optimizer.register_load_state_dict_pre_hook(_stack_state)
        return optimizer


def _stack_state(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Stack the state that the alignment's parameters had in a checkpoint where each layer had its own."""
    own, numbers = optimizer.param_groups[-1]["params"], saved["param_groups"][-1]["params"]
    state = dict(saved["state"])
    of_layers = [state.pop(number, {}) for number in numbers]
    for index, parameter in enumerate(own):
        layers = of_layers[index :: len(own)]
        if any(getattr(value, "shape", None) == parameter.shape for value in layers[0].values()):
            return saved
        state[numbers[index]] = {
            name: torch.stack([layer[name] for layer in layers]) if value.shape == parameter.shape[1:] else value
            for name, value in layers[0].items()
        }
    groups = [*saved["param_groups"][:-1], saved["param_groups"][-1] | {"params": numbers[: len(own)]}]
    return {"state": state, "param_groups": groups}


def last_whole_checkpoint(output_dir: str | Path) -> Path | None:
    """Return the newest checkpoint folder of a run that can be resumed, or None.

    A run killed while it saved leaves a torn folder behind, which `transformers` would pick up and crash on. The state
    file is written last, safetensors and zip archives tell a cut file by their ends.

    Args:
        output_dir: the run's folder, with `checkpoint-<step>` folders in it.
    """
    folders = [
        folder
        for folder in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*")
        if folder.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-").isdigit() and _is_whole(folder)
    ]
    return max(folders, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)


def _is_whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_text())
        for weights in checkpoint.glob("*.safetensors"):
            with safe_open(weights, "pt"):
                pass
    except (OSError, ValueError, SafetensorError):
        return False
    archives = [checkpoint / name for name in ("optimizer.pt", "scheduler.pt")]
    has_weights = any(checkpoint.glob("*.safetensors"))
    return has_weights and all(archive.is_file() and zipfile.is_zipfile(archive) for archive in archives)
