"""The private names of transformers on which training depends.

Checked with transformers 5.23 and accelerate 1.15. If an update renames one, tests/training fails, or
tests/finetuning for `TaskTrainerOverrides`. The rest of `alignattn.training` and `TaskTrainer` use public names.
"""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from alignattn.patching import alignment_parameters
from alignattn.training.callbacks import JointBest
from alignattn.training.checkpoints import explain_disk_errors, own_parameters_from
from alignattn.training.methods import TrainingMethod
from alignattn.training.weights import without_labels
from alignattn.utils.errors import AlignAttnError

if TYPE_CHECKING:
    _Trainer = Trainer
else:
    _Trainer = object


def knows_shifted_labels(trainer: Any) -> bool:
    """Return whether a Trainer knows that its model's loss predicts the next token; it says so nowhere else."""
    return bool(getattr(trainer, "_loss_shifts_labels", False))


def division_after_loss(trainer: Any, num_items_in_batch: Tensor | int | None) -> int:
    """Return the number by which `training_step` divides a loss that is already scaled.

    Since transformers 5.19, `loss_is_scaled_for_ga` declares such a loss, and it is not divided. Before, a loss counts
    as scaled only if the model or a `compute_loss_func` accepts the number of items.

    Args:
        trainer: the trainer, within its `training_step`.
        num_items_in_batch: as `training_step` passes it to `compute_loss`.
    """
    if hasattr(Trainer, "loss_is_scaled_for_ga"):
        return 1
    takes_items = trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
    if takes_items or trainer.compute_loss_func is not None:
        return 1
    steps: int = trainer.current_gradient_accumulation_steps
    return steps


class TrainerOverrides(_Trainer):
    """The private methods of `Trainer` that `AlignmentMixin` overrides."""

    methods: list[TrainingMethod]
    repeated_batches: list[Any]

    @property
    def max_alignment_norm(self) -> float:
        """The maximum gradient norm of the alignment's networks; 0 for no clipping."""
        return float(self.args.max_grad_norm)

    def choose_methods(self) -> list[TrainingMethod]:
        """Return new training methods, as the arguments choose them."""
        raise NotImplementedError

    def before_checkpoint(self) -> None:
        """Prepare what a checkpoint stores, on every process."""

    @property
    def loads_checkpoints_itself(self) -> bool:
        """Whether another library's trainer loads checkpoints in its own way."""
        return super()._load_from_checkpoint.__func__ is not Trainer._load_from_checkpoint  # type: ignore[attr-defined]

    def _hp_search_setup(self, trial: Any) -> None:
        """Set the arguments of a trial as the Trainer does, and choose the training methods by them."""
        # No callback runs between the arguments of a trial and the loading of a checkpoint.
        super()._hp_search_setup(trial)
        if trial is not None:
            # In place, because the callback holds the same list.
            self.methods[:] = self.choose_methods()

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Tensor | int | None:
        """Count the labels of a step as the Trainer does, without those of repeated rows."""
        # `get_batch_samples` is public, but returns the batches that it counts.
        batches = [without_labels(batch) if self.is_repeated(batch) else batch for batch in batch_samples]
        num_items: Tensor | int | None = super()._get_num_items_in_batch(batches, device)
        return num_items

    def is_repeated(self, batch: Any) -> bool:
        """Return whether a batch of the current step has repeated rows only."""
        return any(repeated is batch for repeated in self.repeated_batches)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip the gradients of the model without the alignment's networks: an adversary's are often huge."""
        return super()._clip_grad_norm(_without_alignment(model))  # type: ignore[no-untyped-call]

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Return the norm of the model, and clip the alignment's networks separately."""
        # The Trainer calls it in every step, and `_clip_grad_norm` only with a `max_grad_norm`.
        norm = super()._get_grad_norm(_without_alignment(model), grad_norm)  # type: ignore[no-untyped-call]
        own = alignment_parameters(model)
        if own and self.max_alignment_norm > 0:
            nn.utils.clip_grad_norm_(own, self.max_alignment_norm)
        return norm

    def _save(self, *args: Any, **kwargs: Any) -> None:
        """Save as the Trainer does, and the tokenizer without the truncation and padding of its last call."""
        # `save_model` gets here only on processes that save.
        backend = getattr(self.processing_class, "backend_tokenizer", None)
        if backend is not None:
            backend.no_truncation()
            backend.no_padding()
        super()._save(*args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Save as the Trainer does, completely or not at all."""
        # The callback `on_save` runs when the state is already written.
        self.before_checkpoint()
        folder = Path(str(self.args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        was_there = folder.exists()
        try:
            with explain_disk_errors("a checkpoint", self.args.output_dir):
                super()._save_checkpoint(*args, **kwargs)
        except AlignAttnError:
            # An incomplete checkpoint is useless, and takes up the space that the report of the failure needs.
            if not was_there and self.args.should_save:
                shutil.rmtree(folder, ignore_errors=True)
            raise

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save as the Trainer does, and the state of the training methods."""
        # Before the Trainer's state, whose file says that a checkpoint is complete.
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.should_save:
            for method in self.methods:
                method.save(Path(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load as the Trainer does, and the state of the training methods."""
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            assert self.model is not None
            for method in self.methods:
                method.load(Path(checkpoint), self.model)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        """Load as the Trainer does, and the parts of the patches if it leaves them out."""
        assert self.model is not None
        with own_parameters_from(resume_from_checkpoint, self.model):
            super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)


def _without_alignment(model: nn.Module) -> Any:
    """Return a model's parameters without those of the alignment, as transformers' gradient clipping asks for them."""
    own = {id(parameter) for parameter in alignment_parameters(model)}
    return SimpleNamespace(parameters=lambda: (one for one in model.parameters() if id(one) not in own))


class TaskTrainerOverrides(_Trainer):
    """The private methods of `Trainer` that `TaskTrainer` overrides."""

    sampler: Any = None

    def train_sampler(self, rows: Any, default: Any) -> Any:
        """Return the sampler of training rows; `default` maps rows to the Trainer's own."""
        raise NotImplementedError

    def prepared(self, batch: Any) -> Any:
        """Return a batch on the model's device."""
        return self._prepare_inputs(batch)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        # A loader of our own would lose what accelerate does with the Trainer's.
        rows = self.train_dataset if train_dataset is None else train_dataset
        self.sampler = self.train_sampler(rows, super()._get_train_sampler)
        return self.sampler

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Train an epoch, unless the run had already taken its last step before it was interrupted."""
        # `Trainer` takes one more step if it resumes after `--max_steps` within an epoch.
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            return
        # If a run of several processes resumes within an epoch, `Trainer` does not reach the nested sampler. Rows of
        # long texts choose their windows of the epoch.
        parts: tuple[Any, ...] = (self.sampler, self.train_dataset)
        for part in parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(kwargs["epoch"])
        super()._run_epoch(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Return whether a step is the best, by one metric as `Trainer` does, or as `JointBest` judges by several."""
        judge = next((judge for judge in self.callback_handler.callbacks if isinstance(judge, JointBest)), None)
        if judge is None:
            return super()._determine_best_metric(metrics, trial)
        if judge.is_best:
            self.state.best_metric = metrics[next(iter(judge.metrics))]
            self.state.best_global_step = self.state.global_step
        return judge.is_best
