"""The Trainer of a run: it knows the task, and scores each evaluation set by the task's metrics."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import datasets
import torch
from torch import nn
from transformers import EvalPrediction, PrinterCallback, ProgressCallback, TrainingArguments
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from alignattn.finetuning.model import ignored_outputs
from alignattn.finetuning.rows import LengthGroupedSteps, padded_lengths, scattered
from alignattn.models import AT_RANDOM, BY_LENGTH, REBALANCED, SAMPLING_OPTION
from alignattn.tasks import Task
from alignattn.tasks.long_texts import WindowedRows, WindowPooling, pooled_outputs
from alignattn.tasks.task import EncodedSplit, Evaluation
from alignattn.training.arguments import refuse_data_parallel
from alignattn.training.private_api import TaskTrainerOverrides
from alignattn.training.trainer import AlignmentTrainer
from alignattn.training.weights import weighted_loss
from alignattn.utils.attributes import replaced
from alignattn.utils.errors import AlignAttnError, one_line

IN_ORDER: Mapping[str, Any] = {"dataloader_drop_last": False, SAMPLING_OPTION: AT_RANDOM}
"""Settings with which `Trainer` loads all evaluation rows in order, because outputs belong to rows."""


@contextmanager
def _checked(option: str) -> Iterator[None]:
    """Name the option whose values transformers or torch refuses only when training begins."""
    try:
        yield
    except AlignAttnError:
        raise
    except (ValueError, TypeError, ImportError, NotImplementedError) as error:
        raise AlignAttnError(f"{option}: {one_line(error)}") from error


class TaskTrainer(TaskTrainerOverrides, AlignmentTrainer):
    """`AlignmentTrainer` that scores each evaluation set by the metrics of its task and by its own rows."""

    def __init__(
        self,
        *,
        task: Task,
        splits: Mapping[str, EncodedSplit],
        class_weights: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        self.task, self.class_weights = task, class_weights or {}
        if class_weights:
            kwargs["compute_loss_func"] = partial(
                weighted_loss,
                weights=torch.tensor(list(class_weights.values()), dtype=torch.float64),
                label_smoothing=kwargs["args"].label_smoothing_factor,
            )
        self.scorers = {name: partial(self._score, split) for name, split in splits.items()}
        evaluation: Any = {name: split.encoded for name, split in splits.items()}
        if len(evaluation) == 1:
            # A single set without a name keeps the names of metrics short: eval_accuracy.
            evaluation = next(iter(evaluation.values()))
        self.evaluation_collator = None
        if splits:
            self.evaluation_collator = task.collator(kwargs.get("processing_class"), next(iter(splits.values())))
        super().__init__(
            eval_dataset=evaluation or None,
            compute_metrics=next(iter(self.scorers.values()), None),
            **kwargs,
        )
        self.task_options = next((split.options for split in splits.values()), None)
        self.pools_windows = self.task_options is not None and self.task_options.has_windows
        if isinstance(self.train_dataset, WindowedRows):
            refuse_data_parallel(self.args, "--long_texts windows")
            WindowPooling(self._model)
        # A run shows its progress by itself.
        for shown in (PrinterCallback, ProgressCallback):
            self.remove_callback(shown)

    @property
    def max_alignment_norm(self) -> float:
        """That of the model; if class weights turn its clipping off, the default, because they weigh no adversary."""
        norm = super().max_alignment_norm
        return norm or float(TrainingArguments.max_grad_norm) if self.class_weights else norm

    def train_sampler(self, rows: Any, default: Any) -> Any:
        """Return the sampler of `Trainer`, but sampling by length depends only on the run's seed."""
        args, order = self.args, self.args.train_sampling_strategy
        seed = scattered(args.seed if args.data_seed is None else args.data_seed)
        if order == BY_LENGTH:
            rows_a_step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
            return LengthGroupedSteps(padded_lengths(rows), rows_a_step, seed)
        if order == REBALANCED:
            lengths = datasets.Dataset.from_dict({args.length_column_name: padded_lengths(rows)})
            sampler = default(lengths)
            sampler.seed = seed
            return sampler
        return default(rows)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Create the optimizer as `Trainer` does, in the option's name."""
        with _checked(f"--optim {OptimizerNames(self.args.optim).value}"):
            return super().create_optimizer(*args, **kwargs)

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        """Create the schedule as `Trainer` does, in the option's name."""
        name = SchedulerType(self.args.lr_scheduler_type).value
        with _checked(f"--lr_scheduler_type {name} with --lr_scheduler_kwargs {self.args.lr_scheduler_kwargs or {}}"):
            return super().create_scheduler(*args, **kwargs)

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        """Return the loader of `Trainer`, with all rows in their order."""
        # `Trainer` would apply the settings of training rows to evaluation rows, too.
        collator = self.evaluation_collator or self.data_collator
        with replaced(self, data_collator=collator), replaced(self.args, **IN_ORDER):
            return super().get_eval_dataloader(*args, **kwargs)

    def get_test_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        """Return the loader of `Trainer`, with all rows in their order."""
        collator = self.evaluation_collator or self.data_collator
        with replaced(self, data_collator=collator), replaced(self.args, **IN_ORDER):
            return super().get_test_dataloader(*args, **kwargs)

    def _score(self, split: EncodedSplit, prediction: EvalPrediction) -> dict[str, float]:
        """Return the metrics of the outputs for a split; with windows, also the loss of the pooled logits."""
        logits, labels = pooled_outputs(split.encoded, prediction.predictions, prediction.label_ids)
        metrics = self.task.evaluate(split, logits, labels).metrics
        if not self.pools_windows:
            return metrics
        # As `compute_loss` does for a batch.
        logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)
        own: Any = self.compute_loss_func or self.label_smoother
        if own is not None:
            return metrics | {"loss": float(own({"logits": logits}, labels))}
        model: Any = self._model
        loss = model.loss_function(labels=labels, pooled_logits=logits, config=model.config)
        return metrics | {"loss": float(loss)}

    def predict(self, test_dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict as `Trainer` does, and pool the logits of the windows of each row."""
        output = super().predict(test_dataset, *args, **kwargs)
        logits, labels = pooled_outputs(test_dataset, output.predictions, output.label_ids)
        return output._replace(predictions=logits, label_ids=labels)

    def predict_split(self, split: EncodedSplit) -> Evaluation:
        """Return the scores of the model's outputs for a split."""
        # The rows may be nodes of another graph.
        self.evaluation_collator = self.task.collator(self.processing_class, split)
        # The scores below use this split's rows, unlike the current `compute_metrics`.
        scorer, self.compute_metrics = self.compute_metrics, None
        method = next((method for method in self.methods if method.predicts), None)
        try:
            outputs = self.predict(split.encoded) if method is None else method.predict(self, split.encoded)
        finally:
            self.compute_metrics = scorer
        return self.task.evaluate(split, outputs.predictions, outputs.label_ids)

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """Return the loss, outputs and labels of a batch as `Trainer` does, or with generated sequences as outputs."""
        step: Any = super().prediction_step
        ignore_keys = ignored_outputs(self._model) if ignore_keys is None else ignore_keys
        if not self.task.is_generative or prediction_loss_only:
            loss, logits, labels = step(model, inputs, prediction_loss_only, ignore_keys)
            # The loss of windows is not a loss of rows.
            return None if self.pools_windows else loss, logits, labels
        loss, _, _ = step(model, inputs, True, ignore_keys)
        batch = self.prepared(inputs)
        assert self.task_options is not None
        return (
            loss,
            self.task.generate(self.accelerator.unwrap_model(model), batch, self.task_options),
            batch.get("labels"),
        )

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as `Trainer` does; for several sets, `Trainer` calls this method with the name of each."""
        if isinstance(eval_dataset, str):
            self.compute_metrics = self.scorers[eval_dataset]
        # A loader draws a number, and training would go on with other dropout.
        device = self.args.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            return super().evaluate(eval_dataset, *args, **kwargs)
