"""The training options: those of alignattn, those of `transformers.TrainingArguments` that it reads, and the others."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from alignattn.models import AT_RANDOM, BY_LENGTH, IN_FILE_ORDER, REBALANCED
from alignattn.tasks import Task
from alignattn.training.methods import MethodOptions, chosen_methods
from alignattn.training.options import AlignmentTrainingOptions
from alignattn.utils.errors import AlignAttnError, listing
from alignattn.utils.options import REQUIRED, Count, Options, OutputDir, Seed, option

RUN, TRAINING, ALIGNMENT_GROUP = "run", "training", "alignment"
"""Groups in the help."""

LOGGING_STEPS = 0.05
"""Share of all steps between two logs."""

BALANCED = "balanced"
"""The value of `--class_weights` with which all classes count equally."""

STEPS_OR_SHARES = ("eval_steps", "logging_steps", "save_steps", "warmup_steps")
"""Options that mean a share of all steps below 1, and a number of steps from 1."""

PRIVATE_OPTION = "hub_token"
"""A secret that a run's folder must not contain."""

PUSH_OPTIONS = ("push_to_hub", "hub_model_id", PRIVATE_OPTION, "hub_private_repo", "hub_revision")
"""Options of the repository."""

NEVER, AT_STEPS, AT_THE_BEST = "no", "steps", "best"
"""Values of `--eval_strategy` and `--save_strategy`."""

PATIENCE, LOADING = "early_stopping_patience", "load_best_model_at_end"


@dataclass(frozen=True, kw_only=True)
class TransformersOptions(Options):
    """transformers' training options: those that each command reads or whose default it changes, and the others.

    Attributes:
        transformers: the given values of other fields of `TrainingArguments`, by name.
    """

    heading = TRAINING
    other_parser = "alignattn.finetuning.training_arguments:other_arguments_parser"

    transformers: Mapping[str, Any] = field(default_factory=dict)
    output_dir: OutputDir = option(REQUIRED, "Folder of the run.", group=RUN, may_differ=True)
    seed: Seed = option(42, "Seed of the run.", group=RUN)
    save_strategy: str = option(
        "epoch", "When to save checkpoints.", group=RUN, choices=("no", "epoch", "steps", "best")
    )
    save_steps: float = option(
        500, "Steps between checkpoints; below 1, a share of all.", group=RUN, above=0, rare=True
    )
    resume_from_checkpoint: str | bool | None = option(
        None, "Folder of a checkpoint to resume from.", group=RUN, rare=True, may_differ=True
    )
    push_to_hub: bool = option(False, "Push the finished run to the Hub.", group=RUN, may_differ=True)
    learning_rate: float = option(2e-5, "Peak learning rate.", low=0)
    num_train_epochs: float = option(3.0, "Training epochs.", above=0)
    max_steps: Count = option(-1, "Steps instead of epochs.")
    per_device_train_batch_size: Count = option(8, "Training batch size per device.")
    per_device_eval_batch_size: Count = option(8, "Evaluation batch size per device.", rare=True)
    gradient_accumulation_steps: Count = option(1, "Batches per optimizer step.")
    warmup_steps: float = option(0, "Warm-up steps; below 1, a share.", low=0)
    weight_decay: float = option(0.0, "Weight decay.", low=0)
    logging_steps: float = option(LOGGING_STEPS, "Steps between logs; below 1, a share of all.", above=0, rare=True)
    logging_nan_inf_filter: bool = option(
        False, "Filter losses that are not finite from the logs; by default they end the run.", rare=True
    )
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
    keep_checkpoints: bool = option(
        False, "Keep the checkpoints of the finished run.", group=RUN, rare=True, may_differ=True
    )
    hub_model_id: str | None = option(
        None, "Repository to push to.", group=RUN, requires=("push_to_hub",), may_differ=True
    )
    hub_token: str | None = option(
        None, "Token of the Hub.", group=RUN, requires=("push_to_hub",), rare=True, may_differ=True
    )
    hub_private_repo: bool | None = option(
        None, "Make a new repository private.", group=RUN, requires=("push_to_hub",), rare=True, may_differ=True
    )
    hub_revision: str | None = option(
        None, "Branch to push to.", group=RUN, requires=("push_to_hub",), rare=True, may_differ=True
    )
    eval_strategy: str = option(
        NEVER,
        "When to evaluate in training (default: epoch, if there are rows to evaluate on).",
        choices=(NEVER, "epoch", AT_STEPS),
        rare=True,
    )
    eval_steps: float | None = option(None, "Steps between evaluations; below 1, a share of all.", above=0, rare=True)
    early_stopping_patience: Count | None = option(None, "Evaluations without improvement to stop.")
    load_best_model_at_end: bool = option(False, "Load the best checkpoint after training.", rare=True)
    metric_for_best_model: str | None = option(None, "Metric that selects the best checkpoint.", rare=True)
    greater_is_better: bool | None = option(None, "Whether a higher metric is better.", rare=True)
    train_sampling_strategy: str = option(
        AT_RANDOM,
        "How rows form batches (default: group_by_length for encoders, else random).",
        choices=(AT_RANDOM, IN_FILE_ORDER, BY_LENGTH, REBALANCED),
        rare=True,
    )
    class_weights: tuple[str, ...] | None = option(None, "Weights in the loss: balanced, or CLASS=X.", metavar="W")
    log_query_key_distance: bool = option(
        False,
        "Log the distance of queries and keys on evaluation rows.",
        group=ALIGNMENT_GROUP,
        rare=True,
        may_differ=True,
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

    def check(self, task: Task | None, *, has_crf: bool = False) -> None:
        """Refuse a task that an option does not support.

        Args:
            task: the task to train on; None if it is not known yet.
            has_crf: whether a CRF scores whole sequences of tags.

        Raises:
            AlignAttnError: if an option does not support it.
        """
        order = self.train_sampling_strategy
        if task is not None and order in (BY_LENGTH, REBALANCED) and not task.has_lengths:
            raise AlignAttnError(
                f"--train_sampling_strategy {order}: rows of task {task.name!r} are not sequences and have no length"
            )
        if self.class_weights is not None and has_crf:
            raise AlignAttnError("--class_weights scales the loss of each word, and a CRF has one loss per sequence")
        if self.class_weights is not None and task is not None:
            classes: tuple[str, ...] = getattr(task, "labels", ())
            if not task.can_weight_classes:
                raise AlignAttnError(f"--class_weights: task {task.name!r} has no classes")
            if unknown := [name for name in self.named_weights if classes and name not in classes]:
                raise AlignAttnError(
                    f"--class_weights: task {task.name!r} has no class {unknown[0]!r}, but {listing(classes)}"
                )
        for method in chosen_methods(self):
            if reason := method.reason_unsupported(task, has_crf=has_crf):
                raise AlignAttnError(f"--{method.switch}{reason}")
