"""The training options: those of alignattn, those of `transformers.TrainingArguments` that it reads, and the others."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from alignattn.models import AT_RANDOM, BY_LENGTH, IN_FILE_ORDER, REBALANCED
from alignattn.tasks import Task
from alignattn.tasks.task_types import processor_class
from alignattn.training.methods import MethodOptions, chosen_methods
from alignattn.training.options import AlignmentTrainingOptions
from alignattn.utils.errors import AlignAttnError, listing
from alignattn.utils.option import REQUIRED, Count, OutputDir, Seed, option
from alignattn.utils.options import Options, other_options

RUN, TRAINING, ALIGNMENT_GROUP, OTHERS = "run", "training", "alignment", "transformers' other options"
"""Groups in the help."""

PATIENCE_HELP = "Evaluations without improvement to stop."
LOGGING_STEPS = 0.05
"""Share of all steps between two logs."""
LOSS_FILTER = "Filter losses that are not finite from the logs; by default they end the run."
SAMPLING_HELP = "How rows form batches (default: group_by_length for encoders, else random)."

BALANCED = "balanced"
CLASS_WEIGHTS_HELP = "Weights in the loss: balanced, or CLASS=X."

SAVE_STRATEGIES = ("no", "epoch", "steps", "best")
BY_LENGTHS = (BY_LENGTH, REBALANCED)
"""The orders that use the lengths of rows."""
STEPS_OR_SHARES = ("eval_steps", "logging_steps", "save_steps", "warmup_steps")
"""Options that mean a share of all steps below 1, and a number of steps from 1."""

PUSHED = ("push_to_hub",)
PRIVATE_OPTION = "hub_token"
"""A secret that a run's folder must not contain."""

PUSH_OPTIONS = ("push_to_hub", "hub_model_id", PRIVATE_OPTION, "hub_private_repo", "hub_revision")
"""Options of the repository."""


NEVER, AT_STEPS, AT_THE_BEST = "no", "steps", "best"
"""Values of `--eval_strategy` and `--save_strategy`."""

PATIENCE, LOADING = "early_stopping_patience", "load_best_model_at_end"


def implied_by_choice(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults for early stopping or loading the best model: evaluate and save together, after each epoch.

    Args:
        values: the given options by name.
    """
    stops = values.get(PATIENCE) is not None
    loads = values.get(LOADING, stops)
    if not (stops or loads):
        return {}
    saved = values.get("save_strategy")
    evaluation = values.get("eval_strategy") or (saved if saved not in (None, NEVER, AT_THE_BEST) else "epoch")
    implied: dict[str, Any] = {LOADING: loads, "eval_strategy": evaluation}
    if loads and evaluation != NEVER:
        implied["save_strategy"] = evaluation
    if loads and evaluation == AT_STEPS:
        steps = values.get("eval_steps") or values.get("save_steps") or values.get("logging_steps", LOGGING_STEPS)
        implied |= {"eval_steps": steps, "save_steps": steps}
    return implied


def is_to_keep_checkpoints(values: Mapping[str, Any]) -> bool:
    """Return whether the options ask to keep checkpoints next to the model of the finished run.

    Args:
        values: the given options by name.
    """
    asks_for_several = (values.get("save_total_limit") or 1) > 1
    asks_for_the_best = values.get("save_strategy") == AT_THE_BEST or values.get("metric_for_best_model") is not None
    loads = values.get(LOADING, values.get(PATIENCE) is not None)
    return asks_for_several or bool(values.get("save_only_model")) or (asks_for_the_best and not loads)


@dataclass(frozen=True, kw_only=True)
class TransformersOptions(Options):
    """transformers' training options: those that each command reads or whose default it changes, and the others.

    Attributes:
        transformers: the given values of other fields of `TrainingArguments`, by name.
    """

    heading = TRAINING

    transformers: Mapping[str, Any] = other_options("alignattn.finetuning.training_arguments:transformers_options")
    output_dir: OutputDir = option(REQUIRED, "Folder of the run.", group=RUN)
    seed: Seed = option(42, "Seed of the run.", group=RUN)
    save_strategy: str = option("epoch", "When to save checkpoints.", group=RUN, choices=SAVE_STRATEGIES)
    save_steps: float = option(
        500, "Steps between checkpoints; below 1, a share of all.", group=RUN, above=0, rare=True
    )
    resume_from_checkpoint: str | bool | None = option(
        None, "Folder of a checkpoint to resume from.", group=RUN, rare=True
    )
    push_to_hub: bool = option(False, "Push the finished run to the Hub.", group=RUN)
    learning_rate: float = option(2e-5, "Peak learning rate.", low=0)
    num_train_epochs: float = option(3.0, "Training epochs.", above=0)
    max_steps: Count = option(-1, "Steps instead of epochs.")
    per_device_train_batch_size: Count = option(8, "Training batch size per device.")
    per_device_eval_batch_size: Count = option(8, "Evaluation batch size per device.", rare=True)
    gradient_accumulation_steps: Count = option(1, "Batches per optimizer step.")
    warmup_steps: float = option(0, "Warm-up steps; below 1, a share.", low=0)
    weight_decay: float = option(0.0, "Weight decay.", low=0)
    logging_steps: float = option(LOGGING_STEPS, "Steps between logs; below 1, a share of all.", above=0, rare=True)
    logging_nan_inf_filter: bool = option(False, LOSS_FILTER, rare=True)
    lr_scheduler_type: str = option("linear", "Schedule of the learning rate.", rare=True)
    optim: str = option("adamw_torch_fused", "Optimizer.", rare=True)
    max_grad_norm: float = option(
        1.0, "Maximum gradient norm; 0 (with --class_weights): no clipping.", low=0, rare=True
    )
    bf16: bool = option(False, "Train in bfloat16.")
    fp16: bool = option(False, "Train in float16, on a GPU.", rare=True)
    use_cpu: bool = option(False, "Train on the CPU, even where there is a GPU.", rare=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in STEPS_OR_SHARES:
            value = getattr(self, name, None) or 0
            if value > 1 and value != int(value):
                raise AlignAttnError(f"--{name} {value}: give a whole number of steps, or a share of all steps below 1")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(MethodOptions, AlignmentTrainingOptions, TransformersOptions):
    """The training options of a fine-tuning run, including those of the training methods."""

    heading, all_rare = TRAINING, False

    seeds: tuple[Seed, ...] | None = option(
        None,
        "Several seeds, one run each in DIR/seed-N.",
        group=RUN,
        distinct="seed",
        excludes={"seed": "each run has its own"},
    )
    save_total_limit: Count | None = option(1, "Maximum number of checkpoints.", group=RUN, rare=True)
    save_only_model: bool = option(False, "Save checkpoints without the optimizer's state.", group=RUN, rare=True)
    keep_checkpoints: bool = option(False, "Keep the checkpoints of the finished run.", group=RUN, rare=True)
    hub_model_id: str | None = option(None, "Repository to push to.", group=RUN, requires=PUSHED)
    hub_token: str | None = option(None, "Token of the Hub.", group=RUN, requires=PUSHED, rare=True)
    hub_private_repo: bool | None = option(
        None, "Make a new repository private.", group=RUN, requires=PUSHED, rare=True
    )
    hub_revision: str | None = option(None, "Branch to push to.", group=RUN, requires=PUSHED, rare=True)
    eval_strategy: str = option(
        NEVER,
        "When to evaluate in training (default: epoch, if there are rows to evaluate on).",
        choices=(NEVER, "epoch", AT_STEPS),
        rare=True,
    )
    eval_steps: float | None = option(None, "Steps between evaluations; below 1, a share of all.", above=0, rare=True)
    early_stopping_patience: Count | None = option(None, PATIENCE_HELP)
    load_best_model_at_end: bool = option(False, "Load the best checkpoint after training.", rare=True)
    metric_for_best_model: str | None = option(None, "Metric that selects the best checkpoint.", rare=True)
    greater_is_better: bool | None = option(None, "Whether a higher metric is better.", rare=True)
    train_sampling_strategy: str = option(
        AT_RANDOM, SAMPLING_HELP, choices=(AT_RANDOM, IN_FILE_ORDER, BY_LENGTH, REBALANCED), rare=True
    )
    class_weights: tuple[str, ...] | None = option(None, CLASS_WEIGHTS_HELP, metavar="W")
    log_query_key_distance: bool = option(
        False, "Log the distance of queries and keys on evaluation rows.", group=ALIGNMENT_GROUP, rare=True
    )
    balance: str | None = option(
        None,
        "Balance queries and keys at the start.",
        group=ALIGNMENT_GROUP,
        choices=("start",),
        capability="has_heads",
        rare=True,
    )
    balance_centre: bool = option(
        False,
        "Equalise only the means, which changes one bias.",
        group=ALIGNMENT_GROUP,
        requires=("balance",),
        rare=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.named_weights
        if self.push_to_hub and len(self.seeds or ()) > 1:
            raise AlignAttnError(
                f"--push_to_hub: {len(self.seeds or ())} seeds make several models, and a repository holds one: "
                "leave it out, and push one with --seed N --output_dir <output_dir>/seed-N --push_to_hub "
                "--hub_model_id NAME"
            )

    @property
    def named_weights(self) -> dict[str, float]:
        """The given weights by class name; empty if they are balanced, or not given.

        Raises:
            AlignAttnError: if one is not a number above 0.
        """
        named: dict[str, float] = {}
        for given in () if self.class_weights in (None, (BALANCED,)) else self.class_weights or ():
            name, _, text = given.rpartition("=")
            try:
                weight = float(text)
            except ValueError:
                weight = math.nan
            if not name or not 0 < weight < math.inf:
                raise AlignAttnError(
                    f"--class_weights {given}: give {BALANCED} alone, or NAME=WEIGHT of a class with a number above 0"
                )
            if name in named:
                raise AlignAttnError(f"--class_weights contains {name!r} twice: give each class once")
            named[name] = weight
        return named

    def reason_unsupported(self, task: Task | None, *, has_crf: bool = False) -> str:
        """Return which option a task does not support, and why; empty if it supports all.

        Args:
            task: the task to train on; None if it is not known yet.
            has_crf: whether a CRF scores whole sequences of tags.
        """
        order = self.train_sampling_strategy
        if task is not None and order in BY_LENGTHS and not processor_class(task).has_lengths:
            return f"--train_sampling_strategy {order}: rows of task {task.name!r} are not sequences and have no length"
        if self.class_weights is not None and (reason := self._reason_unweighted(task, has_crf=has_crf)):
            return f"--class_weights{reason}"
        reasons = (
            f"--{method.switch}{reason}"
            for method in chosen_methods(self)
            if (reason := method.reason_unsupported(task, has_crf=has_crf))
        )
        return next(reasons, "")

    def _reason_unweighted(self, task: Task | None, *, has_crf: bool) -> str:
        if has_crf:
            return " scales the loss of each word, and a CRF has one loss per sequence"
        if task is None:
            return ""
        if not task.can_weight_classes:
            return f": task {task.name!r} has no classes"
        classes: tuple[str, ...] = getattr(task, "labels", ())
        unknown = [name for name in self.named_weights if classes and name not in classes]
        return f": task {task.name!r} has no class {unknown[0]!r}, but {listing(classes)}" if unknown else ""
