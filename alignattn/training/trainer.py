"""Trainers that add λ · A(Q, K) to the task loss (Zhang et al. 2021, eq. 1)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel, Trainer
from transformers.trainer_utils import TrainOutput

from alignattn.attention.alignment.base import sum_of
from alignattn.patching import Patch, aligned_patches, step_alignments
from alignattn.training.arguments import refuse_data_parallel
from alignattn.training.callbacks import AfterStep, LossMeter, SaveAfterEpoch
from alignattn.training.checkpoints import check_finite_weights, explain_disk_errors
from alignattn.training.distributed import own_rows, reach_alignment_from_output, without_repeats
from alignattn.training.methods import Inputs, TrainingMethod, chosen_methods
from alignattn.training.options import ALIGNMENT_LEARNING_RATE
from alignattn.training.parameter_groups import add_l2, take_own_groups
from alignattn.training.private_api import TrainerOverrides, division_after_loss, knows_shifted_labels
from alignattn.training.weights import BatchSize, StepSize, shifts_labels, weighted
from alignattn.utils.attributes import replaced
from alignattn.utils.errors import AlignAttnError


def step_losses(
    methods: Sequence[TrainingMethod],
    forward: Callable[[Inputs], tuple[Tensor, Any]],
    model: nn.Module,
    inputs: Inputs,
) -> tuple[Tensor, Any, list[tuple[TrainingMethod, Tensor]]]:
    """Run the forward passes of a batch that training methods ask for.

    Args:
        methods: the training methods; at most one of them makes several forward passes.
        forward: maps a batch to the task's loss, a scalar, and the model's outputs.
        model: the model that `forward` calls.
        inputs: the batch; with several forward passes it is not changed.

    Returns:
        The mean task loss of the forward passes, a scalar; the outputs of the first one; and the extra loss of each
        method that adds one.
    """
    forwards = max((method.forwards for method in methods), default=1)
    # A loss that reads the labels may remove them from its inputs.
    passes = [forward(dict(inputs) if forwards > 1 else inputs) for _ in range(forwards)]
    losses, outputs = [loss for loss, _ in passes], [found for _, found in passes]
    extra = ((method, method.extra_loss(model, inputs, outputs)) for method in methods)
    task_loss = torch.stack(losses).mean() if forwards > 1 else losses[0]
    return task_loss, outputs[0], [(method, loss) for method, loss in extra if loss is not None]


class AlignmentMixin(TrainerOverrides):
    """Makes a Trainer minimise task loss + λ · mean over layers of A(Q, K), whatever computes the task loss.

        class AlignedTrainer(AlignmentMixin, SentenceTransformerTrainer): ...

    It must be the first base, before `transformers.Trainer` or a subclass of it. `training_step` adds the alignment to
    the task's loss, whether that comes from the Trainer, from an override of `compute_loss` or from a
    `compute_loss_func`.

    `args` select training methods (`alignattn.training.methods`). If a method makes several forward passes of a batch,
    the alignment is the mean over them.

    Apart from `alignment_rows`, which each batch draws anew, and losses that pool the tokens of a batch, the loss of a
    step does not depend on how its rows are split into batches and processes: the task's loss of a batch is weighted by
    its number of labels other than -100 (of rows, if there are no labels), and its alignment by its number of rows.
    Rows that accelerate repeats at the end of an epoch, so that each process has a batch, have the weight 0. For that,
    `compute_loss` or `compute_loss_func` receives the number of the batch's own labels as `num_items_in_batch`. A
    trainer whose loss normalises over the whole step declares it as for `Trainer`, with `loss_is_scaled_for_ga = True`;
    the loss then receives the number of the step's labels.

    It logs `loss` (the total), `task_loss`, `align_loss`, `alignment_weight` (λ at this step) and the alignment's
    diagnostic (`discriminator_accuracy`, `marginal_error`, `critic_gap` or `mean_gap`), each a mean over processes. The
    alignment's own networks form a parameter group with the learning rate `args.alignment_learning_rate` (default 1e-3)
    and without weight decay. Their gradient is clipped separately, and `grad_norm` is that of the model without them.
    The parameters that scores, normalizers and values add have the learning rate `args.slot_learning_rate`, if given.
    For a model that is not patched, or patched without an alignment, the loss is the task's.

    Args:
        *args: as for the Trainer.
        **kwargs: as for the Trainer. `args` need not be `AlignmentArguments`; `model_init` returns a patched model.

    Raises:
        AlignAttnError: on DataParallel (several GPUs in one process), on reentrant gradient checkpointing (at the first
            step) and on a loss that is not finite.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Since transformers 5.19, a trainer says so; before, no loss is scaled.
        self._is_scaled = bool(getattr(self, "loss_is_scaled_for_ga", None))
        if not self._is_scaled:
            # The loss of every model is then the mean over the batch's own labels, as with models that ignore the
            # number of items (transformers issue 47688), and the weight of a batch is right for both.
            self.model_accepts_loss_kwargs = False
        self._shifts_labels = knows_shifted_labels(self) or shifts_labels(self._model)
        self._step_size: StepSize | None = None
        self._batch_sizes: list[tuple[Any, BatchSize]] = []
        self.repeated_batches = []
        self._train_loader: DataLoader[Any] | None = None
        self._reach: RemovableHandle | None = None
        self.add_callback(LossMeter())
        if getattr(self.args, "neftune_noise_alpha", None) is not None:
            # Checked here, because Trainer's own noise would fail only at the first step.
            embeddings_of(self._model, "neftune_noise_alpha")
        self.methods = self.choose_methods()
        self.add_callback(AfterStep(self.methods))
        self.add_callback(SaveAfterEpoch())
        patches = [part for part in self._model.modules() if isinstance(part, Patch)]
        changes_function = any(patch.config.changes_function for patch in patches)
        if self.args.load_best_model_at_end and self.loads_checkpoints_itself and changes_function:
            # It would fail at the end, and only log the failure.
            raise AlignAttnError(
                f"load_best_model_at_end: {type(self).__name__} loads checkpoints with plain transformers, which "
                "cannot load a patched score, normalizer or value: leave it out, or patch an alignment alone"
            )
        if aligned_patches(self._model):
            refuse_data_parallel(self.args, "alignment attention")
            # DistributedDataParallel need not search: transformers models with a task head use all parameters.
            if self.args.ddp_find_unused_parameters is None and isinstance(self.model, PreTrainedModel):
                self.args.ddp_find_unused_parameters = False
                if self.accelerator.ddp_handler is not None:
                    self.accelerator.ddp_handler.find_unused_parameters = False
        self._step_alignments = step_alignments
        if self.args.torch_compile:
            backend, mode = self.args.torch_compile_backend or "inductor", self.args.torch_compile_mode
            self._step_alignments = torch.compile(step_alignments, backend=backend, mode=mode)

    def choose_methods(self) -> list[TrainingMethod]:
        """Return new training methods, as the arguments choose them."""
        chosen = chosen_methods(self.args)
        for method in chosen:
            if method.extra_loss is not TrainingMethod.extra_loss:
                # Several GPUs in one process compute the task's loss alone.
                refuse_data_parallel(self.args, method.label)
            if method.needs_whole_weights and (self.is_deepspeed_enabled or self.is_fsdp_enabled):
                raise AlignAttnError(
                    f"{method.switch} needs whole weights, which DeepSpeed and FSDP shard: leave it out"
                )
        return [method(self.args, self._model) for method in chosen]

    @property
    def _model(self) -> nn.Module:
        # transformers types it as optional: it is None only before a hyperparameter search creates a model.
        assert self.model is not None
        return self.model

    @property
    def meter(self) -> LossMeter:
        """The meter of the logged means; Trainer may replace its callbacks when it loads a checkpoint."""
        callbacks: list[Any] = self.callback_handler.callbacks
        return next(callback for callback in callbacks if isinstance(callback, LossMeter))

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train as the Trainer does; `training_loss` is the mean over the whole run, resumed or not."""
        for method in self.methods:
            method.before_training()
        try:
            output = super().train(*args, **kwargs)
        finally:
            if self._reach is not None:
                self._reach.remove()
                self._reach = None
        self._step_size, self._batch_sizes, self.repeated_batches = None, [], []
        self.meter.check_finite(self.state.global_step)
        for method in self.methods:
            method.after_training(self._model)
        mean = self.mean_over_processes({"train_loss": self.meter.mean_run_loss()})
        return TrainOutput(output.global_step, mean["train_loss"], output.metrics | mean)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the data loader as the Trainer does, without the rows that accelerate repeats."""
        self._train_loader = without_repeats(super().get_train_dataloader)
        return self._train_loader

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], *args: Any, **kwargs: Any
    ) -> tuple[list[Any], Tensor | int | None]:
        """Return the batches of a step as the Trainer does, without repeated rows, and record their sizes."""
        self.repeated_batches = []

        def own_batches() -> Iterator[Any]:
            for batch in epoch_iterator:
                own, is_repeated = own_rows(batch, self._train_loader)
                if is_repeated:
                    self.repeated_batches.append(own)
                yield own

        batches, num_items = super().get_batch_samples(own_batches(), *args, **kwargs)
        processes = self.accelerator.num_processes if self.args.average_tokens_across_devices else 1
        self._batch_sizes = [(batch, self._size_of(batch)) for batch in batches]
        sizes = (size for _, size in self._batch_sizes)
        self._step_size = StepSize.of(sizes, processes, self._sum_over_processes)
        return batches, num_items

    def _size_of(self, batch: Any) -> BatchSize:
        size = BatchSize.of(batch, self._model, is_shifted=self._shifts_labels)
        if not self.is_repeated(batch):
            return size
        return BatchSize(0, None if size.labels is None else torch.zeros_like(size.labels))

    def training_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Compute a batch's gradient as the Trainer does, for the task loss and the alignment."""
        if self.args.n_gpu > 1:  # refused for an alignment
            loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
            self.meter.add(loss, {})
            return loss
        size = next((size for batch, size in self._batch_sizes if batch is inputs), None) or self._size_of(inputs)
        # A subclass may compute the task's loss, so only an attribute of the instance comes before every class.
        self._size, self._compute_task_loss = size, self.compute_loss
        with replaced(self, compute_loss=self._batch_loss, loss_is_scaled_for_ga=True):
            return super().training_step(model, inputs, *args, **kwargs)

    def _batch_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return what a batch adds to the loss of its step; arguments as for `compute_loss`.

        It is the task loss + Σ weight · extra loss of a training method + λ · mean over layers of A(Q, K).
        """
        divided = division_after_loss(self, num_items_in_batch)
        of_one = 0.0 if self._size.samples == 0 else 1.0
        task_weight, weight = (of_one, of_one) if self._step_size is None else self._step_size.weights_of(self._size)
        patches = aligned_patches(self._model)
        for patch in patches:
            patch.collector.take()  # left by a forward pass before this step
        task_loss, outputs, extra = self._task_loss(model, patches, inputs, return_outputs, num_items_in_batch)
        loss = task_loss = weighted(task_loss, of_one if self._is_scaled else task_weight)
        parts: dict[str, Tensor | float] = {}
        for method, extra_loss in extra:
            parts = {"task_loss": task_loss, **parts, method.extra_name: weighted(extra_loss, task_weight)}
            loss = loss + method.extra_weight * parts[method.extra_name]
        if patches:
            factor, distance, diagnostics = self._alignment_loss(self._step_alignments(self._model))
            distance = distance.to(loss.device)
            parts = {
                "task_loss": task_loss,
                **parts,
                "align_loss": weight * distance,
                "alignment_weight": weight * factor,
            }
            parts |= {name: weight * value for name, value in diagnostics.items()}
            loss = loss + factor * parts["align_loss"]
        self.meter.add(loss, parts)
        if divided > 1:
            loss = loss * divided
        return (loss, outputs) if return_outputs else loss

    def _task_loss(
        self,
        model: nn.Module,
        patches: list[Patch],
        inputs: Inputs,
        return_outputs: bool,
        num_items_in_batch: Tensor | int | None,
    ) -> tuple[Tensor, Any, list[tuple[TrainingMethod, Tensor]]]:
        """Return the task's loss of a batch, the outputs if they are needed, and the training methods' extra losses."""
        if not self._is_scaled:
            num_items_in_batch = None if self._size.labels is None else self._size.labels.clamp(min=1)
        # The mean over processes is taken by the weights, so only the task's loss is computed inside.
        averages = self._is_scaled and self.args.average_tokens_across_devices
        reads_outputs = return_outputs or any(method.reads_outputs for method in self.methods)
        compute_loss: Any = self._compute_task_loss

        def forward(inputs: Inputs) -> tuple[Tensor, Any]:
            for patch in patches:
                patch.collector.labels = inputs.get("labels") if isinstance(inputs, Mapping) else None
            result = compute_loss(model, inputs, return_outputs=reads_outputs, num_items_in_batch=num_items_in_batch)
            return result if reads_outputs else (result, None)

        # The task's loss may call `self.compute_loss` itself, which must not be `_batch_loss` meanwhile.
        with (
            replaced(self, compute_loss=compute_loss),
            replaced(self.args, average_tokens_across_devices=averages),
        ):
            return step_losses(self.methods, forward, self._model, inputs)

    def _alignment_loss(
        self, parts: list[tuple[Patch, Tensor, dict[str, Tensor]]]
    ) -> tuple[float, Tensor, dict[str, Tensor]]:
        """Return λ, the distance that it weights, and the diagnostics; with several patched parts, λ is their mean."""
        # λ rises linearly from 0 during the warm-up.
        warmup_steps = getattr(self.args, "alignment_warmup_ratio", 0.0) * self.state.max_steps
        warmup = 1.0 if warmup_steps < 1 else min(1.0, self.state.global_step / warmup_steps)
        weights = [patch.config.alignment_weight for patch, _, _ in parts]
        mean = sum(weights) / len(weights)
        factors = [weight / mean if mean > 0 else 1.0 for weight in weights]
        distance = sum_of(factor * part[1] for factor, part in zip(factors, parts, strict=True))
        values: dict[str, list[Tensor]] = {}
        for _, _, diagnostics in parts:
            for name, value in diagnostics.items():
                values.setdefault(name, []).append(value)
        return warmup * mean, distance, {name: sum_of(of_name) / len(of_name) for name, of_name in values.items()}

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as the Trainer does, and the parts of the loss."""
        if "loss" in logs:
            logs |= self.mean_over_processes(self.meter.take_interval())
        if "train_loss" in logs:
            logs |= self.mean_over_processes({"train_loss": self.meter.mean_run_loss()})
        super().log(logs, *args, **kwargs)

    def mean_over_processes(self, means: dict[str, float]) -> dict[str, float]:
        """Return the means of numbers over processes."""
        if self.accelerator.num_processes == 1 or not means:
            return means
        sums = self._sum_over_processes(list(means.values())).tolist()
        return {name: value / self.accelerator.num_processes for name, value in zip(means, sums, strict=True)}

    def _sum_over_processes(self, values: Sequence[Tensor | float]) -> Tensor:
        # Numbers are filled in on the device, because copying them there would synchronise.
        device = self.args.device
        here = [value if isinstance(value, Tensor) else torch.full((), value, device=device) for value in values]
        return self.accelerator.reduce(torch.stack([value.to(device) for value in here]), "sum")

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create the optimizer, with parameter groups for the parameters that a patch added."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        model = self._model if model is None else model
        searches = self.accelerator.ddp_handler is not None and self.accelerator.ddp_handler.find_unused_parameters
        if self.accelerator.num_processes > 1 and searches and self._reach is None:
            self._reach = reach_alignment_from_output(model)
        if is_new:
            alignment_rate = getattr(self.args, "alignment_learning_rate", ALIGNMENT_LEARNING_RATE)
            slot_rate = getattr(self.args, "slot_learning_rate", None)
            for group in take_own_groups(optimizer.param_groups, model, alignment_rate, slot_rate):
                optimizer.add_param_group(group)
            decaying = self.get_decay_parameter_names(model)
            add_l2(optimizer, getattr(self.args, "l2_penalty", 0.0), decaying, model)
        return optimizer

    def before_checkpoint(self) -> None:
        """Replace the logged values by means over processes, which a checkpoint stores."""
        self.meter.share(self.mean_over_processes)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the model as the Trainer does, if its weights are finite."""
        check_finite_weights(self._model, self.state.global_step)
        with explain_disk_errors("the model", self.args.output_dir):
            super().save_model(*args, **kwargs)

    def save_state(self) -> None:
        """Save the state as the Trainer does."""
        with explain_disk_errors("the log history", self.args.output_dir):
            super().save_state()


class AlignmentTrainer(AlignmentMixin, Trainer):
    """`transformers.Trainer` for a patched model: minimises task loss + λ · mean over layers of A(Q, K).

    See `AlignmentMixin`.
    """


def embeddings_of(model: nn.Module, option: str) -> nn.Embedding:
    """Return the word embeddings of a model, which an option perturbs.

    Raises:
        AlignAttnError: if they are not a single `nn.Embedding`.
    """
    try:
        table: Any = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        table = None
    if not isinstance(table, nn.Embedding):
        raise AlignAttnError(
            f"{option} perturbs word embeddings, and {type(model).__name__} has no single table of them: leave it out"
        )
    return table
