"""The options of a run, resolved once into one frozen object: its training, its data, its model with the attention."""

import dataclasses
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, get_args

import yaml

from alignattn.attention.choices import (
    ALIGNMENTS,
    FERTILITY,
    NORMALIZERS,
    PREDICTIVE,
    SCORES,
    VALUES,
    HeadReduction,
    choices_with,
)
from alignattn.attention.config import ALL_ROWS, PLAIN, PLAIN_ATTENTION, PRESETS, AttentionConfig, GradientScope
from alignattn.finetuning.results import CONFIG_FILE, RESULTS_FILE, SEED_FOLDER_PREFIX, TASK_FILE, has_begun
from alignattn.models import (
    AT_RANDOM,
    BY_LENGTH,
    ENCODER,
    IN_FILE_ORDER,
    MODELS,
    REBALANCED,
    SAMPLING_OPTION,
    capabilities_of,
)
from alignattn.models.lengths import row_length
from alignattn.models.names import model_to_train
from alignattn.tasks import (
    ImageClassification,
    MultiLabelClassification,
    QuestionAnswering,
    Task,
    TextClassification,
    TokenClassification,
    is_definition,
)
from alignattn.tasks.definitions import get_task, read_definition
from alignattn.tasks.names import (
    BY_SEED,
    CONLL,
    DRAWN,
    FIRST,
    IMAGE,
    MAX_TEXTS,
    TAGS,
    TEXT,
    TEXT_FILE,
    TOKENS,
    TRAIN,
    TRUNCATE,
    WINDOWS,
    is_picture,
)
from alignattn.tasks.task import TaskOptions
from alignattn.tasks.visual_question_answering import with_features
from alignattn.training.methods import MethodOptions, chosen_methods
from alignattn.training.methods.base import EVALUATION_ROWS
from alignattn.training.options import NAMES_AN_ALIGNMENT, AlignmentTrainingOptions
from alignattn.utils.errors import AlignAttnError, check_installed, listing
from alignattn.utils.files import check_encoding, plain_suffix
from alignattn.utils.options import (
    GIVEN,
    REQUIRED,
    Count,
    InputDir,
    InputFile,
    NamedValue,
    Options,
    OutputDir,
    Processes,
    Seed,
    option,
    options_of,
    values_of,
)
from alignattn.utils.paths import input_path

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
        "epoch", "When to save checkpoints.", group=RUN, choices=(NEVER, "epoch", AT_STEPS, AT_THE_BEST)
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
        False, "Leave losses that are not finite out of evaluation losses; in training they end the run.", rare=True
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
        if self.push_to_hub and self.seeds is not None and self.hub_model_id is None:
            raise AlignAttnError(
                "--push_to_hub: a repository has the name of its folder, which is only seed-N with --seeds: give "
                "--hub_model_id NAME"
            )

    @property
    def acts_on_evaluations(self) -> bool:
        """Whether evaluations in training choose the best checkpoint or end the training; otherwise they only log."""
        loads_or_keeps_best = self.load_best_model_at_end or self.save_strategy == AT_THE_BEST
        return loads_or_keeps_best or self.early_stopping_patience is not None

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


DOC_STRIDE = 128
"""Tokens that windows of a text share by default."""

LABEL_COLUMN = ("label",)
OF_FILES = ("train_file",)
OF_THE_TASK = {"task": "the task defines the columns"}
IN_THE_FILE = {"train_file": "the task file contains its rows"}
"""Shared requirements and conflicts of the options for a user's files and for the rows of a task."""

FROM_TASK = "--task without --train_file"
FROM_BOTH = "--task with --train_file, a file of the task's rows"
FROM_CONLL = "a CoNLL file, whose last column has the tags"
FROM_TAGS = "--tokens_column"
FROM_TEXTS = "--text_columns"
FROM_IMAGES = "--image_column"
"""Where the rows come from, in words."""


def is_folder(path: str | None) -> bool:
    """Return whether a path is a folder: one that exists, or one that ends with a separator."""
    return path is not None and (path.endswith(os.sep) or Path(path).is_dir())


def has_class_pictures(folder: Path) -> bool:
    """Return whether a folder has pictures in its class folders and no texts."""
    files = list(folder.glob("*/*"))
    return any(map(is_picture, files)) and not any(path.suffix.lower() == TEXT_FILE for path in files)


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """The task and its rows."""

    heading = "data"

    task: str | None = option(None, "Of `alignattn list tasks`, or a YAML file.", metavar="TASK")
    data_dir: InputDir | None = option(None, "Folder of Parquet files (default: the Hub).", excludes=IN_THE_FILE)
    train_file: str | None = option(
        None, "CSV, TSV, JSON, Parquet, CoNLL or a folder.", metavar="FILE", place=input_path
    )
    validation_file: str | None = option(
        None, "Evaluation rows, in the same formats.", metavar="FILE", place=input_path, requires=OF_FILES
    )
    validation_share: float | None = option(
        None,
        "Share of the training rows to evaluate on.",
        above=0,
        below=1,
        requires=OF_FILES,
        excludes={"validation_file": "--validation_file holds the evaluation rows"},
    )
    text_columns: tuple[str, ...] | None = option(
        None, "One or two text columns of the files.", requires=OF_FILES, excludes=OF_THE_TASK
    )
    label_column: tuple[str, ...] = option(
        LABEL_COLUMN, "Column of labels, or several.", requires=OF_FILES, excludes=OF_THE_TASK
    )
    tokens_column: str | None = option(
        None,
        "Column of word lists, one tag per word.",
        requires=OF_FILES,
        excludes={**OF_THE_TASK, "text_columns": "a row is a list of words or texts"},
    )
    image_column: str | None = option(
        None,
        "Column of image files.",
        requires=OF_FILES,
        excludes={
            **OF_THE_TASK,
            "text_columns": "a row is an image or texts",
            "tokens_column": "a row is an image or a list of words",
        },
    )
    skip_bad_rows: bool = option(False, "Skip bad rows and list them in results.json.")
    slice_by: str | None = option(
        None, "Score each value of an evaluation column.", metavar="COLUMN", requires=EVALUATION_ROWS
    )
    max_length: Count | None = option(None, "Maximum tokens per row (default: the task's).")
    long_texts: str = option(TRUNCATE, "truncate (default), or windows to read all.", choices=(TRUNCATE, WINDOWS))
    doc_stride: int = option(
        DOC_STRIDE,
        "Tokens shared by windows of a text (default: 128, at most a third of --max_length).",
        low=0,
        rare=True,
    )
    max_train_samples: Count | None = option(None, "Sample N training rows, by class.")
    max_eval_samples: Count | None = option(None, "Sample N rows of each evaluation split.", requires=EVALUATION_ROWS)
    evaluation_splits: tuple[str, ...] | None = option(
        None,
        "Splits to evaluate on, such as test (default: the task's).",
        rare=True,
        metavar="SPLIT",
        excludes=IN_THE_FILE,
    )
    take: str | None = option(
        None,
        "drawn: one random sample for all runs; first: the first N rows; seed: a training sample per seed.",
        choices=(DRAWN, FIRST, BY_SEED),
        rare=True,
    )
    encoding: str | None = option(
        None, "Encoding of the files (default: utf-8).", metavar="NAME", requires=OF_FILES, rare=True
    )
    preprocessing_num_workers: Processes | None = option(
        None, "Processes that tokenize (default: 1).", rare=True, may_differ=True
    )
    fan_out: tuple[int, ...] | None = option(
        None, "Sampled neighbours per graph layer; -1: all (default: the whole graph).", low=-1, rare=True
    )
    features: InputDir | None = option(
        None, "Folder of image region features, .npz or .npy.", excludes=IN_THE_FILE, rare=True
    )
    n_best_size: Count = option(20, "Number of candidate answers per question.", group="question answering", rare=True)
    max_answer_length: Count = option(30, "Maximum tokens of an answer.", group="question answering", rare=True)
    num_beams: Count = option(1, "Beams of beam search; 1: greedy.", group="generation", high=256, rare=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_encoding(self.encoding)
        if 0 in (self.fan_out or ()):
            raise AlignAttnError("--fan_out 0 samples no neighbours: give at least 1, or -1 for all")

    @cached_property
    def source(self) -> str:
        """The source of the rows, one of the constants `FROM_…`.

        Raises:
            AlignAttnError: if the options name no rows, or columns that a file of that kind does not have.
        """
        if self.train_file is None and self.task is None:
            raise AlignAttnError(
                "no data: give --task NAME or FILE.yaml, or --train_file FILE with --text_columns (or --tokens_column, "
                "--image_column)"
            )
        if self.task is not None:
            return FROM_TASK if self.train_file is None else FROM_BOTH
        is_conll = plain_suffix(str(self.train_file)) == CONLL
        if is_conll and (
            self.text_columns or self.tokens_column or self.image_column or self.label_column != LABEL_COLUMN
        ):
            raise AlignAttnError(
                f"{self.train_file}: a CoNLL file has its tags in the last column: leave column options out"
            )
        is_of_texts = self.tokens_column is None and self.image_column is None
        if not is_conll and is_of_texts and (self.text_columns or is_folder(self.train_file)):
            return FROM_TEXTS
        # Only a row of texts may have several labels, each in its own column.
        is_multi_label = len(self.label_column) > 1
        if self.image_column is not None:
            if is_multi_label:
                raise AlignAttnError("--label_column names several columns, and an image has one label: give one")
            return FROM_IMAGES
        if is_multi_label:
            raise AlignAttnError("--label_column: give the one column of the tags")
        if is_conll:
            return FROM_CONLL
        if self.tokens_column is not None:
            return FROM_TAGS
        raise AlignAttnError(
            "--train_file needs --text_columns with its one or two text columns, --tokens_column with its lists of "
            "words, --image_column with its image files, or --task NAME if it holds rows of that task"
        )

    def own_task(self, labels: tuple[str, ...] = ()) -> Task:
        """Return the task of a user's rows, as far as the options define it.

        Args:
            labels: the names of the classes, if known; without them, one label per row is taken for a score.

        Raises:
            AlignAttnError: if the options name a column twice.
        """
        if self.source in (FROM_CONLL, FROM_TAGS):
            tokens, tags = (
                (TOKENS, TAGS) if self.source == FROM_CONLL else (str(self.tokens_column), self.label_column[0])
            )
            if tokens == tags:
                raise AlignAttnError(f"duplicate column: --tokens_column {tokens} --label_column {tags}")
            return TokenClassification(name="user", tokens_column=tokens, tags_column=tags, labels=labels)
        metrics: Any = ("accuracy",) if labels else ("pearson",)
        if self.source == FROM_IMAGES:
            return ImageClassification(
                name="user",
                image_column=str(self.image_column),
                label_column=self.label_column[0],
                labels=labels,
                metrics=metrics,
            )
        columns = tuple(self.text_columns or (TEXT,))
        if len(self.label_column) > 1:
            task = MultiLabelClassification(name="user", text_columns=columns, label_columns=self.label_column)
            if problem := task.problem():
                raise AlignAttnError(f"--text_columns and --label_column: {problem}")
            return task
        return TextClassification(
            name="user", text_columns=columns, label_column=self.label_column[0], labels=labels, metrics=metrics
        )

    @property
    def has_windows(self) -> bool:
        """Whether long texts are read in windows, whose logits are pooled."""
        return self.long_texts == WINDOWS

    def stride(self, length: int) -> int:
        """Return how many tokens neighbouring windows share, given the length of a window."""
        return min(DOC_STRIDE, length // 3) if self.doc_stride == DOC_STRIDE else self.doc_stride

    def task_options(self, task: Task, tokenizer: Any) -> TaskOptions:
        """Return how the rows of `task` become tensors.

        Args:
            task: the task of the rows.
            tokenizer: the model's tokenizer or image processor, as in `alignattn.models.build.BuiltModel`.
        """
        most = getattr(tokenizer, "model_max_length", task.max_length)
        length = row_length(self.max_length, task.max_length, most)
        return TaskOptions(
            max_length=length,
            long_texts=self.long_texts,
            doc_stride=self.stride(length),
            n_best_size=self.n_best_size,
            max_answer_length=self.max_answer_length,
            num_beams=self.num_beams,
            num_proc=self.preprocessing_num_workers,
            fan_out=self.fan_out,
        )


OF_ATTENTION = frozenset(field.name for field in dataclasses.fields(AttentionConfig))
NAMES_OF_ATTENTION = OF_ATTENTION | {"attention"}
"""Options that choose the attention."""

ATTENTION_GROUP, LORA_GROUP = "attention", "LoRA"
"""Groups in the help."""

AS_STORED = "auto"


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """The model and its attention."""

    heading = "model"

    model: str = option(REQUIRED, "Folder, Hub id, or of `alignattn list models`.", place=model_to_train)
    model_config: tuple[NamedValue, ...] | None = option(None, "Config fields, such as hidden_dropout_prob=0.1.")
    model_sha256: str | None = option(
        None,
        "Expected SHA-256 of the run given as --model.",
        metavar="HEX",
        rare=True,
        may_differ=True,
        capability="is_pretrained",
    )
    embeddings: InputFile | None = option(
        None, "GloVe vectors (text or .npz) for models of words.", rare=True, capability="reads_embeddings"
    )
    model_revision: str = option("main", "Branch, tag or commit on the Hub.", rare=True)
    cache_dir: OutputDir | None = option(None, "Cache folder of downloads.", rare=True, may_differ=True)
    dtype: str | None = option(
        None,
        f"Type of the weights; {AS_STORED}: as stored (default: float32; with adapters, as stored).",
        choices=("float32", "float16", "bfloat16", AS_STORED),
        rare=True,
        capability="is_pretrained",
    )
    crf: bool = option(False, "Tag words with a CRF over the encoder's scores.", rare=True, capability="is_pretrained")
    lora_r: Count | None = option(
        None,
        "Train LoRA adapters of this rank, not the model.",
        group=LORA_GROUP,
        rare=True,
        excludes={
            "crf": "adapters cannot hold a CRF",
            "balance": "adapters wrap the projections; balance the model with `alignattn balance` first",
        },
        capability="is_pretrained",
    )
    lora_alpha: float | None = option(
        None,
        "Scale α of the adapters (default: twice the rank).",
        group=LORA_GROUP,
        rare=True,
        above=0,
        requires=("lora_r",),
    )
    lora_target_modules: tuple[str, ...] | None = option(
        None,
        "Modules to adapt, such as query key (default: all linear layers).",
        group=LORA_GROUP,
        rare=True,
        metavar="NAME",
        requires=("lora_r",),
    )
    attention: str | None = option(
        None,
        f"{', '.join(PRESETS)}, or slots such as aa-ct+sparsemax (default: {PLAIN_ATTENTION}; no alignment "
        "is shown to help).",
        group=ATTENTION_GROUP,
    )
    score: str | None = option(None, f"{', '.join(SCORES)}.", group=ATTENTION_GROUP)
    normalizer: str | None = option(None, f"{', '.join(NORMALIZERS)}.", group=ATTENTION_GROUP)
    value: str | None = option(None, f"{', '.join(VALUES)}.", group=ATTENTION_GROUP)
    alignment: str | None = option(None, f"none, {', '.join(ALIGNMENTS)}.", group=ATTENTION_GROUP)
    normalizer_options: tuple[NamedValue, ...] | None = option(
        None, "Options such as alpha=1.3 learned=true for entmax.", group=ATTENTION_GROUP, rare=True
    )
    value_options: tuple[NamedValue, ...] | None = option(
        None, "Options such as init=paper for qvi.", group=ATTENTION_GROUP, rare=True
    )
    layers: tuple[int, ...] | None = option(
        None, "Layers to patch, from 0 (default: all).", group=ATTENTION_GROUP, low=0
    )
    alignment_options: tuple[NamedValue, ...] | None = option(
        None, "Options such as epsilon=0.05 for ot.", group=ALIGNMENT_GROUP, requires=NAMES_AN_ALIGNMENT, rare=True
    )
    alignment_weight: float | None = option(
        None, "Weight λ (default: 0.01; of moments 0.001).", group=ALIGNMENT_GROUP, requires=NAMES_AN_ALIGNMENT, low=0
    )
    alignment_rows: int | None = option(
        None, "Drawn rows of a batch for gan, ot and ct (default: 8); 0: all.", group=ALIGNMENT_GROUP, low=0
    )
    gradient_scope: str | None = option(
        None,
        "Updates projections (default) or all.",
        group=ALIGNMENT_GROUP,
        requires=NAMES_AN_ALIGNMENT,
        choices=get_args(GradientScope),
    )
    head_reduction: str | None = option(
        None,
        "Reduction over heads: sum (default) or mean.",
        group=ALIGNMENT_GROUP,
        requires=NAMES_AN_ALIGNMENT,
        choices=get_args(HeadReduction),
        rare=True,
    )

    @cached_property
    def attention_config(self) -> AttentionConfig:
        """The attention that the options name."""
        given = {name: value for name, value in vars(self).items() if name in OF_ATTENTION and value is not None}
        for name in given:
            if name.endswith("_options"):
                given[name] = _named_values(name, given[name])
        if self.alignment == "none":
            given["alignment"] = None
        config = AttentionConfig.resolve(self.attention or PLAIN_ATTENTION, **given)
        for slot, choices in capabilities_of(self.model).default_slot_options.items():
            of_model, name = choices.get(getattr(config, slot) or "", {}), f"{slot}_options"
            config = AttentionConfig.resolve(config, **{name: {**of_model, **getattr(config, name)}})
        return config

    @property
    def has_crf(self) -> bool:
        """Whether words are tagged by a CRF."""
        return self.crf or capabilities_of(self.model).has_crf

    @property
    def hub(self) -> dict[str, Any]:
        """Keyword arguments of `from_pretrained` that locate the model's files."""
        return {"revision": self.model_revision, "cache_dir": self.cache_dir}

    @property
    def lora_scale(self) -> float:
        """α of the adapters, whose output is scaled by α over their rank."""
        return 2 * (self.lora_r or 0) if self.lora_alpha is None else self.lora_alpha

    @cached_property
    def model_config_fields(self) -> Mapping[str, Any]:
        """The fields of the model's config to set, with values parsed as YAML."""
        return _named_values("model_config", self.model_config or ())

    def check(self, task: Task | None = None) -> None:
        """Refuse a task, an attention and config fields that the model does not support.

        Args:
            task: the task; None if it is not known yet.

        Raises:
            AlignAttnError: if one does not fit.
        """
        name, capabilities, attention = self.model, capabilities_of(self.model), self.attention_config
        if task is not None:
            self._check_task(task)
        if not capabilities.has_attention and attention != PLAIN:
            raise AlignAttnError(f"--model {name} has no self-attention: leave out --attention, --layers and the slots")
        for slot in attention.filled_slots:
            if slot not in capabilities.slots:
                raise AlignAttnError(
                    f"--model {name} {capabilities.reasons_unsupported[slot]}: leave out the {slot} "
                    f"{getattr(attention, slot)!r}, or fill its {', '.join(capabilities.slots)}"
                )
        normalizer = attention.choices["normalizer"]
        if capabilities.attends_edges and not normalizer.has_edge_form:
            raise AlignAttnError(
                f"--normalizer {attention.normalizer} does not support the edges of a graph: --model {name} supports "
                f"{', '.join(choices_with('normalizer', 'has_edge_form'))}"
            )
        if normalizer.counts_positions and not capabilities.has_positions:
            raise AlignAttnError(
                f"--normalizer {attention.normalizer} uses a window around the query's position among the keys, which "
                f"--model {name} lacks: give --normalizer_options kind={PREDICTIVE}, or another normalizer"
            )
        if normalizer.has_budget and not capabilities.attends_step_by_step:
            takers = ", ".join(model for model in MODELS if capabilities_of(model).attends_step_by_step)
            raise AlignAttnError(
                f"--normalizer_options {FERTILITY}={attention.normalizer_options[FERTILITY]} needs a decoder that "
                f"attends one step at a time ({takers}), unlike --model {name}: give --normalizer_options bound=0.5"
            )
        own_score, named = capabilities.own_score, (self.score, *(self.attention or "").split("+"))
        if PLAIN.score in named and own_score != PLAIN.score:
            raise AlignAttnError(
                f"--score {PLAIN.score} is the default, with which --model {name} keeps its own score, {own_score!r}: "
                "leave it out, or choose another score"
            )
        for config_field, value in self.model_config_fields.items():
            if config_field in ("dtype", "torch_dtype"):
                raise AlignAttnError(f"--model_config {config_field}={value}: give --dtype {value} instead")
            if config_field in ("num_labels", "id2label", "label2id", "problem_type"):
                raise AlignAttnError(f"--model_config {config_field}={value}: the task sets this field: leave it out")
        if not self.model_config_fields.get("hard_attention"):
            return
        if attention.value != PLAIN.value:
            raise AlignAttnError(f"--model_config hard_attention=true allows no value: leave out {attention.value!r}")
        if normalizer.counts_positions:
            raise AlignAttnError(
                "--model_config hard_attention=true needs a word to attend to at each step, and the window of "
                f"--normalizer {attention.normalizer} may hold none: give --normalizer_options kind={PREDICTIVE}, or "
                "another normalizer"
            )

    def _check_task(self, task: Task) -> None:
        name, capabilities = self.model, capabilities_of(self.model)
        texts = len(getattr(task, "text_columns", ()))
        if capabilities.texts_per_row == (MAX_TEXTS,) and texts != MAX_TEXTS:
            raise AlignAttnError(f"--model {name} compares two texts, and task {task.name!r} has one")
        if texts and capabilities.texts_per_row and texts not in capabilities.texts_per_row:
            others = (
                other
                for other in MODELS
                if texts in capabilities_of(other).texts_per_row and isinstance(task, capabilities_of(other).tasks)
            )
            raise AlignAttnError(
                f"--model {name} reads one text, and task {task.name!r} has {texts} per row: give "
                f"{', '.join(others)} or an encoder"
            )
        if not isinstance(task, capabilities.tasks):
            kinds = " and ".join(kind.kind for kind in capabilities.tasks)
            raise AlignAttnError(f"--model {name} is for {kinds}, and task {task.name!r} is {task.kind}")
        if self.crf and not isinstance(task, TokenClassification):
            raise AlignAttnError(f"--crf is for token-classification, and task {task.name!r} is {task.kind}")


def drawn_by_default(values: Mapping[str, Any]) -> int:
    """Return the number of rows that the attention of given options draws by default; 0 for all, or if it is wrong."""
    names = options_of(ModelOptions).keys() & values.keys() - {"alignment_rows"}
    with suppress(AlignAttnError):
        return ModelOptions(**{name: values[name] for name in names}).attention_config.alignment_rows
    return ALL_ROWS


def _named_values(name: str, entries: Sequence[str]) -> dict[str, Any]:
    values = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise AlignAttnError(f"--{name} {entry!r} is not NAME=VALUE: write an equals sign and no blanks")
        if not value:
            raise AlignAttnError(f"--{name} {entry} has no value: write null for none, or leave it out")
        try:
            # YAML reads a number such as 1e-3 as text.
            has_exponent = re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", value)
            values[key] = float(value) if has_exponent else yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise AlignAttnError(f"--{name} {entry!r}: {value!r} is not a YAML value") from error
    return values


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """The options of one call of `alignattn finetune`, for one run or for one run per seed.

    Attributes:
        model: the model and its attention.
        data: the task and its rows.
        training: the training of the model on the rows.
        given: the names of the options that were given, and not derived; None if they are not known.
    """

    model: ModelOptions
    data: DataOptions
    training: TrainingOptions
    given: frozenset[str] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Report mistakes before anything is read. No task is passed: tables list runs that do not support theirs.
        _ = self.task
        self.model.check()
        name, data, training = self.model.model, self.data, self.training
        capabilities = capabilities_of(name)
        for declared in options_of(type(self)).values():
            needed = declared.capability
            if needed and self.values[declared.name] != declared.default and not getattr(capabilities, needed):
                able = [other for other in MODELS if getattr(capabilities_of(other), needed)]
                encoders = ["pretrained encoders"] if getattr(ENCODER, needed) else []
                raise AlignAttnError(
                    f"--{declared.name} is for {listing([*encoders, *able])}, not for {name}: leave it out"
                )
        for switch in ("activation_checkpointing", "gradient_checkpointing"):
            if self.values.get(switch) and not capabilities.is_pretrained:
                raise AlignAttnError(f"--{switch} is for pretrained encoders, not for {name}: leave it out")
        if training.balance is not None:
            # The default score leaves a layer its own, as in a graph attention network.
            score = capabilities.own_score if self.attention.score == PLAIN.score else PLAIN.score
            if reason := replace(PLAIN, score=score).reason_unbalanced or self.attention.reason_unbalanced:
                raise AlignAttnError(
                    f"--balance {training.balance}: {reason}, so balancing would change what the model computes: "
                    "leave one of them out"
                )
        training.check(None, has_crf=self.model.has_crf)
        # Early stopping and the best checkpoint are chosen from evaluations and checkpoints, which must exist.
        if not training.acts_on_evaluations:
            return
        patience = training.early_stopping_patience
        given = f"--{LOADING}" if training.load_best_model_at_end else f"--save_strategy {AT_THE_BEST}"
        if patience is not None:
            given = f"--{PATIENCE} {patience}"
        if data.train_file is not None and data.validation_file is None and data.validation_share is None:
            raise AlignAttnError(
                f"{given}: selecting the best checkpoint needs evaluation rows: give --validation_file or "
                "--validation_share"
            )
        if training.eval_strategy == NEVER:
            raise AlignAttnError(f"{given}: nothing is evaluated during training: give --eval_strategy epoch or steps")
        if not training.load_best_model_at_end or training.save_strategy == AT_THE_BEST:
            return
        if training.save_strategy != training.eval_strategy:
            raise AlignAttnError(
                f"{given}: each evaluated step must be saved: give --save_strategy {training.eval_strategy}, or best"
            )
        evaluated = training.eval_steps or training.logging_steps
        if training.eval_strategy == AT_STEPS and evaluated != training.save_steps:
            raise AlignAttnError(
                f"{given}: the best step may not be saved: set --save_steps to --eval_steps, {evaluated:g}, or "
                "--save_strategy best"
            )

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the defaults that follow from the given values: of the model, a folder, and what is evaluated."""
        get = values.get
        capabilities = capabilities_of(str(get("model")))
        implied = dict(capabilities.training_defaults)
        # A run records its attention and its drawn rows, because a later version may have other defaults.
        if capabilities.has_attention:
            implied["attention"] = PLAIN_ATTENTION
        if get("model") is not None and (drawn := drawn_by_default(values)) != ALL_ROWS:
            implied["alignment_rows"] = drawn
        if get("max_train_samples") is not None or get("max_eval_samples") is not None:
            implied["take"] = DRAWN
        task, folder = get("task"), get("train_file")
        if is_folder(folder) and not any(map(get, ("task", "tokens_column", "text_columns", "image_column"))):
            implied |= {"image_column": IMAGE} if has_class_pictures(Path(str(folder))) else {"text_columns": (TEXT,)}
        is_of_images = task is not None and isinstance(_named_task(task, get("output_dir")), ImageClassification)
        if SAMPLING_OPTION in implied and (is_of_images or "image_column" in {**implied, **values}):
            # Images have no length.
            implied[SAMPLING_OPTION] = AT_RANDOM
        if get("class_weights") is not None:
            # A rare row's gradient is large on purpose: clipping would undo its weight (docs/fine-tuning.md).
            implied.setdefault("max_grad_norm", 0.0)
        stops, saved = get(PATIENCE) is not None, get("save_strategy")
        loads = get(LOADING, stops)
        # Whoever asks for several checkpoints, or for the best without loading it, wants to have them.
        asks_for_the_best = saved == AT_THE_BEST or get("metric_for_best_model") is not None
        if (get("save_total_limit") or 1) > 1 or get("save_only_model") or (asks_for_the_best and not loads):
            implied["keep_checkpoints"] = True
        if get("warmup_steps") and implied.get("lr_scheduler_type") == "constant":
            implied["lr_scheduler_type"] = "constant_with_warmup"
        if folder is None or get("validation_file") or get("validation_share"):
            implied["eval_strategy"] = AT_STEPS if get("eval_steps") else "epoch"
        if get("save_steps"):
            implied["save_strategy"] = AT_STEPS
        if stops or loads:
            # Early stopping and loading the best model evaluate and save together, after each epoch if nothing is said.
            when = AT_STEPS if get("eval_steps") or get("save_steps") else "epoch"
            evaluation = get("eval_strategy") or (saved if saved not in (None, NEVER, AT_THE_BEST) else when)
            implied |= {LOADING: loads, "eval_strategy": evaluation}
            if loads and evaluation != NEVER:
                implied["save_strategy"] = evaluation
            if loads and evaluation == AT_STEPS:
                steps = get("eval_steps") or get("save_steps") or get("logging_steps", LOGGING_STEPS)
                implied |= {"eval_steps": steps, "save_steps": steps}
        return implied

    def check_places(self, *, reads: bool = True) -> None:
        """Check the files and folders that the options name; runs that have finished need none of them."""
        if self.training.seeds is not None and (self.output_dir / CONFIG_FILE).exists():
            raise AlignAttnError(
                f"{self.output_dir} holds a single run, and this call makes several: give another --output_dir"
            )
        have_finished = all((run.output_dir / RESULTS_FILE).is_file() for run in self.runs())
        super().check_places(reads=reads and not have_finished)
        if self.model.has_crf:
            check_installed("torchcrf", "crf", "a CRF")

    def check(self, task: Task) -> None:
        """Refuse options that do not fit a task, as far as it is known before and after its rows are read."""
        self.model.check(task)
        if self.data.has_windows and not task.can_pool_windows:
            reason = "has its own windows" if task.kind == QuestionAnswering.kind else "has no logits per row to pool"
            raise AlignAttnError(f"--long_texts {WINDOWS}: task {task.name!r} is {task.kind}, which {reason}")
        self.training.check(task, has_crf=self.model.has_crf)

    @property
    def attention(self) -> AttentionConfig:
        """The model's attention."""
        return self.model.attention_config

    @cached_property
    def task(self) -> Task | None:
        """The task, or None; if a user's file defines the task, the copy in the folder of a run that has begun."""
        _ = self.data.source
        if self.data.task is None:
            return None
        return self.chosen(_named_task(self.data.task, self.training.output_dir))

    @cached_property
    def task_of_rows(self) -> Task:
        """The task, or that of a user's file, whose rows complete it with their labels."""
        return self.task or self.data.own_task()

    def chosen(self, task: Task) -> Task:
        """Return a task with the features and the evaluation splits that the options choose."""
        task, splits = with_features(task, self.data.features), self.data.evaluation_splits
        if splits is None:
            return task
        files = {split: file for split, file in task.sources.files.items() if split in (TRAIN, *splits)}
        task = replace(task, evaluation_splits=splits, sources=replace(task.sources, files=files))
        if task.problem() is not None:
            raise AlignAttnError("--evaluation_splits lists a split twice, or the training split: leave it out")
        return task

    @property
    def keeps_task(self) -> bool:
        """Whether the run's folder keeps a copy of the task, because a user's file may change or be removed."""
        return self.data.task is not None and is_definition(self.data.task)

    @cached_property
    def values(self) -> dict[str, Any]:
        """Every option by name."""
        return values_of(self)

    @property
    def output_dir(self) -> Path:
        """The folder of the call: of its run, or of the runs of its seeds."""
        return Path(self.training.output_dir)

    def runs(self) -> list[Self]:
        """Return the options of each single run of the call: one, or one per seed."""
        if self.training.seeds is None:
            return [self]
        return list(map(self.of_seed, self.training.seeds))

    def of_seed(self, seed: int) -> Self:
        """Return the options of the run of one seed of the call."""
        folder = str(self.output_dir / f"{SEED_FOLDER_PREFIX}{seed}")
        given = None if self.given is None else self.given - {"seeds"} | {"seed"}
        return replace(self, training=replace(self.training, seeds=None, seed=seed, output_dir=folder), given=given)

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain types, without the secret and without options left at a default of None."""
        declared = options_of(type(self))
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.values.items()
            if name != PRIVATE_OPTION
            and (value is not None or (name in declared and declared[name].default is not None))
        }

    def to_yaml(self) -> str:
        """Return the options as YAML that `--config` reads back, with the names of those that were given."""
        values = self.to_dict()
        given = {} if self.given is None else {GIVEN: sorted(self.given & values.keys())}
        text: str = yaml.safe_dump(values | given, sort_keys=True, allow_unicode=True)
        return text

    def differences(self, written: Mapping[str, Any]) -> list[str]:
        """Return the options in which another run differs that was made with the options `written`.

        An option that is missing there counts as its default; attentions are compared by content, not by name.
        """
        declared = options_of(type(self)).values()
        defaults = {each.name: each.default for each in declared if each.default is not REQUIRED}
        theirs: dict[str, Any] = {
            name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()
        }
        theirs |= written
        mine = self.to_dict()
        if "alignment_rows" in mine and theirs["alignment_rows"] is None:
            # As in `read_run_options`.
            theirs["alignment_rows"] = ALL_ROWS
        passed_over = {GIVEN, "disable_tqdm", "report_to", *(each.name for each in declared if each.may_differ)}
        if not self.training.acts_on_evaluations:
            passed_over |= {"eval_strategy", "eval_steps"}
        differing = {name for name in mine | theirs if mine.get(name) != theirs.get(name)} - passed_over
        if differing & NAMES_OF_ATTENTION:
            with suppress(AlignAttnError):
                names = options_of(ModelOptions).keys() & theirs.keys()
                if ModelOptions(**{name: theirs[name] for name in names}).attention_config == self.attention:
                    differing -= NAMES_OF_ATTENTION
        return sorted(differing)


def _named_task(name: str, output_dir: str | None) -> Task:
    """Return a task by name; for a user's file, the copy of a run that has begun, or of a file that is gone."""
    folder = Path(output_dir or "")
    if not (output_dir and is_definition(name) and (folder / TASK_FILE).is_file()):
        return get_task(name)
    return read_definition(folder / TASK_FILE) if has_begun(folder) or not Path(name).is_file() else get_task(name)
