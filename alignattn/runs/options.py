"""The options of a run, resolved once into one frozen object: its model, its data, its attention, its training."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import yaml

from alignattn.attention.choices import ALIGNMENTS, NORMALIZERS, SCORES, SLOTS, VALUES
from alignattn.attention.config import PLAIN, PLAIN_ATTENTION, PRESETS, AttentionConfig
from alignattn.models import MODELS, traits_of
from alignattn.models.lengths import row_length
from alignattn.models.names import model_name
from alignattn.models.packaged import PACKAGED
from alignattn.runs.best_checkpoint import check_choice, implied_by_choice, is_to_keep_checkpoints
from alignattn.runs.idle_options import ALWAYS_DONE, check_use, idle_options
from alignattn.runs.training_options import ALIGNMENT_GROUP, SCORING_OPTIONS, UNWRITTEN_OPTION, TrainingOptions
from alignattn.support.compression import check_encoding, plain_suffix
from alignattn.support.errors import AlignAttnError
from alignattn.support.options import (
    MOST_PROCESSES,
    NAMED_VALUES,
    REQUIRED,
    Options,
    option,
    options_of,
    renamed,
    resolve,
    values_of,
)
from alignattn.support.places import input_path, output_folder
from alignattn.tasks import Task, get_task, is_definition
from alignattn.tasks.class_folders import TEXT
from alignattn.tasks.definitions import read_definition
from alignattn.tasks.task import CONLL, DRAWN, FIRST, MOST_TEXTS, TaskOptions

DEFAULT_ATTENTION = "aa-ct"
NO_ALIGNMENT = "none"
SEED_FOLDER_PREFIX = "seed-"
EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")

CONFIG_FILE = "config.yaml"
"""Of the options of a run."""

TASK_FILE = "task.json"
"""Of the task of a run that the user's own file defines."""

ONCE_SINGLE = ("label_column",)
"""Options that took one value before they took several: one is written as it was."""

FIELDS_OF_THE_TASK = frozenset({"num_labels", "id2label", "label2id", "problem_type"})
"""Of a model's config."""

MODEL_GROUP, ATTENTION_GROUP, DATA_GROUP, ANSWER_GROUP = "model", "attention", "data", "question answering"
LORA_GROUP = "LoRA"
"""In the help."""

ATTENTION_HELP = f"{', '.join(PRESETS)}, or slots as aa-ct+sparsemax (default: {DEFAULT_ATTENTION})."

LIMITS_OF_ROWS = ("max_train_samples", "max_eval_samples")
OF_OWN_FILES = ("validation_file", "validation_share", "encoding")
"""Options that go with any file of rows."""

FROM_TASK = "--task without --train_file"
FROM_BOTH = "--task and --train_file together, whose rows are the task's"
FROM_CONLL = "a CoNLL file, whose last column has the tags"
FROM_TAGS = "--tokens_column"
FROM_TEXTS = "--text_columns"
"""What rows are read from, in words."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """The model and its attention."""

    model: str = option(
        REQUIRED, f"Folder or Hub id; or {', '.join([*PACKAGED, *MODELS])}.", group=MODEL_GROUP, place=model_name
    )
    model_config: tuple[str, ...] | None = option(
        None, "Config fields, as hidden_dropout_prob=0.1.", group=MODEL_GROUP, metavar=NAMED_VALUES
    )
    model_sha256: str | None = option(
        None, "Of the folder of a run, if it must hold this.", group=MODEL_GROUP, metavar="HEX", rare=True
    )
    embeddings: str | None = option(
        None, "GloVe vectors (text or .npz), of a model that reads words.", group=MODEL_GROUP, metavar="FILE", rare=True
    )
    model_revision: str = option("main", "Branch, tag or commit on the Hub.", group=MODEL_GROUP, rare=True)
    cache_dir: str | None = option(
        None, "Where downloads are kept.", group=MODEL_GROUP, metavar="DIR", place=output_folder, rare=True
    )
    lora_r: int | None = option(
        None, "Train LoRA adapters of this rank, not the model.", group=LORA_GROUP, rare=True, low=1
    )
    lora_alpha: float | None = option(
        None, "Their scale, over the rank (default: twice it).", group=LORA_GROUP, rare=True, above=0
    )
    lora_target_modules: tuple[str, ...] | None = option(
        None, "As query key (default: every linear layer).", group=LORA_GROUP, rare=True, metavar="NAME"
    )
    attention: str | None = option(None, ATTENTION_HELP, group=ATTENTION_GROUP)
    score: str | None = option(None, f"{', '.join(SCORES)}.", group=ATTENTION_GROUP)
    normalizer: str | None = option(None, f"{', '.join(NORMALIZERS)}.", group=ATTENTION_GROUP)
    value: str | None = option(None, f"{', '.join(VALUES)}.", group=ATTENTION_GROUP)
    alignment: str | None = option(None, f"{NO_ALIGNMENT}, {', '.join(ALIGNMENTS)}.", group=ATTENTION_GROUP)
    normalizer_options: tuple[str, ...] | None = option(
        None, "Such as alpha=1.3 learned=true for entmax.", group=ATTENTION_GROUP, metavar=NAMED_VALUES, rare=True
    )
    value_options: tuple[str, ...] | None = option(
        None, "Such as init=paper for qvi.", group=ATTENTION_GROUP, metavar=NAMED_VALUES, rare=True
    )
    layers: tuple[int, ...] | None = option(
        None, "Layers to patch, from 0 (default: all).", group=ATTENTION_GROUP, low=0
    )
    alignment_options: tuple[str, ...] | None = option(
        None, "Such as epsilon=0.05 for ot.", group=ALIGNMENT_GROUP, metavar=NAMED_VALUES, rare=True
    )
    alignment_weight: float | None = option(
        None, "Its weight λ (default: the preset's, 0.01).", group=ALIGNMENT_GROUP, low=0
    )
    gradient_scope: str | None = option(None, "What it trains: projections (default) or all.", group=ALIGNMENT_GROUP)
    head_reduction: str | None = option(None, "Of heads: sum (default) or mean.", group=ALIGNMENT_GROUP, rare=True)

    @cached_property
    def attention_config(self) -> AttentionConfig:
        """The attention that the options name."""
        names = {field.name for field in dataclasses.fields(AttentionConfig)}
        given = {name: value for name, value in vars(self).items() if name in names and value is not None}
        for name in given:
            if name.endswith("_options"):
                given[name] = _named_values(name, given[name])
        fills_slots = bool(given.keys() & SLOTS.keys())
        is_plain = fills_slots or not traits_of(self.model).has_attention
        attention = self.attention or (PLAIN_ATTENTION if is_plain else DEFAULT_ATTENTION)
        if self.alignment == NO_ALIGNMENT:
            given["alignment"] = None
        return AttentionConfig.resolve(attention, **given)

    @property
    def lora_scale(self) -> float:
        """α of the adapters, whose output is scaled by α over their rank."""
        return 2 * (self.lora_r or 0) if self.lora_alpha is None else self.lora_alpha

    @cached_property
    def model_config_fields(self) -> Mapping[str, Any]:
        """The fields of the model's config to set, values read as YAML."""
        return _named_values("model_config", self.model_config or ())


def _is_folder(path: str | None) -> bool:
    return path is not None and (path.endswith(os.sep) or Path(path).is_dir())


def _named_values(name: str, entries: Sequence[str]) -> dict[str, Any]:
    values = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise AlignAttnError(f"--{name} {entry!r} is not NAME=VALUE: write an equals sign, without blanks")
        if not value:
            raise AlignAttnError(
                f"--{name} {entry} has no value: write null for none (a file of --config has no {key})"
            )
        try:
            # A number as 1e-3 is text to YAML.
            values[key] = float(value) if EXPONENT.fullmatch(value) else yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise AlignAttnError(f"--{name} {entry!r}: {value!r} is no value that YAML reads") from error
    return values


def misfit(arguments: ModelOptions, task: Task | None) -> str:
    """Return why a model is not for a task, in one line; empty where it is, or where the task is not known."""
    name, traits = arguments.model, traits_of(arguments.model)
    if task is not None and traits.reads_pairs and len(getattr(task, "text_columns", ())) != MOST_TEXTS:
        return f"--model {name} compares the two texts of a pair, and task {task.name!r} has none"
    if task is not None and not isinstance(task, traits.tasks):
        kinds = " and ".join(kind.kind for kind in traits.tasks)
        return f"--model {name} is for {kinds}, and task {task.name!r} is {task.kind}"
    return ""


def check_fits(arguments: ModelOptions, task: Task | None) -> None:
    """Check that a model can do what the options ask of it: its task, where it is known, its attention, its vectors."""
    name, traits = arguments.model, traits_of(arguments.model)
    attention, fields = arguments.attention_config, arguments.model_config_fields
    if problem := misfit(arguments, task):
        raise AlignAttnError(problem)
    if not traits.has_attention and attention != PLAIN:
        raise AlignAttnError(
            f"--model {name} has no self-attention for {attention.name!r} or layers of it: leave out --attention, "
            "--layers and what fills its slots"
        )
    if arguments.embeddings is not None and not traits.reads_embeddings:
        readers = " and ".join(model for model in MODELS if traits_of(model).reads_embeddings)
        raise AlignAttnError(f"--embeddings is for {readers}: {name} takes none, drop it")
    if arguments.lora_r is None and (arguments.lora_alpha or arguments.lora_target_modules):
        raise AlignAttnError("--lora_alpha and --lora_target_modules are of adapters: give --lora_r as well, as 8")
    if arguments.lora_r is not None and not traits.is_pretrained:
        raise AlignAttnError(f"--lora_r is for pretrained models, and {name} starts from nothing: leave it out")
    for field in fields.keys() & FIELDS_OF_THE_TASK:
        raise AlignAttnError(f"--model_config {field}={fields[field]} is what the task says: leave it out")


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """The task and its rows."""

    task: str | None = option(None, "One of `alignattn list tasks`, or a YAML file.", group=DATA_GROUP, metavar="TASK")
    data_dir: str | None = option(None, "Reads Parquet files there, not the Hub.", group=DATA_GROUP, metavar="DIR")
    train_file: str | None = option(
        None, "CSV, TSV, JSON lines, Parquet, CoNLL or folder.", group=DATA_GROUP, metavar="FILE", place=input_path
    )
    validation_file: str | None = option(
        None, "Your own evaluation rows.", group=DATA_GROUP, metavar="FILE", place=input_path
    )
    validation_share: float | None = option(
        None, "Evaluates on this share of the training rows.", group=DATA_GROUP, above=0, below=1
    )
    text_columns: tuple[str, ...] | None = option(None, "The one or two text columns of your files.", group=DATA_GROUP)
    label_column: tuple[str, ...] = option(("label",), "Of labels; several of 0 and 1: a label each.", group=DATA_GROUP)
    tokens_column: str | None = option(None, "Their lists of words, whose tags are the label.", group=DATA_GROUP)
    skip_bad_rows: bool = option(False, "Leave bad rows out; results.json lists them.", group=DATA_GROUP)
    max_length: int | None = option(None, "Most tokens of a row (default: the task's).", group=DATA_GROUP, low=1)
    max_train_samples: int | None = option(None, "Draw N training rows, class by class.", group=DATA_GROUP, low=1)
    max_eval_samples: int | None = option(None, "Draw N rows of each evaluation split.", group=DATA_GROUP, low=1)
    take: str | None = option(
        None, "first takes the first N rows (default: drawn).", group=DATA_GROUP, choices=(DRAWN, FIRST), rare=True
    )
    encoding: str | None = option(None, "Of your files (default: utf-8).", group=DATA_GROUP, metavar="NAME", rare=True)
    preprocessing_num_workers: int | None = option(
        None, "Processes that tokenize (default: this).", group=DATA_GROUP, low=1, high=MOST_PROCESSES, rare=True
    )
    doc_stride: int = option(128, "Tokens that windows of a context share.", group=ANSWER_GROUP, low=0, rare=True)
    n_best_size: int = option(20, "Answers kept for each.", group=ANSWER_GROUP, low=1, rare=True)
    max_answer_length: int = option(30, "Most tokens of an answer.", group=ANSWER_GROUP, low=1, rare=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_encoding(self.encoding)

    @cached_property
    def source(self) -> str:
        """What the rows are read from: `FROM_TASK`, `FROM_BOTH`, `FROM_CONLL`, `FROM_TAGS` or `FROM_TEXTS`.

        Options of the other sources would be passed over, and are refused.
        """
        if self.train_file is None:
            if self.task is None:
                raise AlignAttnError(
                    "no data: give --task NAME or FILE.yaml, or --train_file FILE with --text_columns (or "
                    "--tokens_column)"
                )
            return self._only(FROM_TASK, "data_dir")
        if self.task is not None:
            return self._only(FROM_BOTH, *OF_OWN_FILES)
        if plain_suffix(self.train_file) == CONLL:
            return self._only(FROM_CONLL, *OF_OWN_FILES)
        if self.tokens_column is not None:
            return self._only(FROM_TAGS, *OF_OWN_FILES, "tokens_column", "label_column")
        if self.text_columns or _is_folder(self.train_file):
            return self._only(FROM_TEXTS, *OF_OWN_FILES, "text_columns", "label_column")
        raise AlignAttnError(
            "--train_file needs --text_columns with its one or two text columns, --tokens_column with its lists of "
            "words, or --task NAME where it holds rows of that task"
        )

    @property
    def is_multi_label(self) -> bool:
        """Whether a row of texts may have several labels at once, each in a column of its own."""
        return len(self.label_column) > 1

    @property
    def has_evaluation_rows(self) -> bool:
        """Whether there are rows beside those to train on."""
        return self.train_file is None or self.validation_file is not None or self.validation_share is not None

    def _only(self, source: str, *fitting: str) -> str:
        known = options_of(type(self))
        for name in ("data_dir", *OF_OWN_FILES, "text_columns", "tokens_column", "label_column"):
            if name not in fitting and getattr(self, name) != known[name].default:
                raise AlignAttnError(f"--{name} does not go with {source}: leave it out")
        if self.is_multi_label and source != FROM_TEXTS:
            raise AlignAttnError("--label_column names several columns, and words have one of tags: give that")
        if self.validation_share is not None and self.validation_file is not None:
            raise AlignAttnError("--validation_share draws evaluation rows, and --validation_file holds them: give one")
        return source

    def task_options(self, task: Task, processor: Any) -> TaskOptions:
        """Return how the rows of `task` become tensors.

        Args:
            task: that they are of.
            processor: of the model, as in `alignattn.models.build.BuiltModel`.
        """
        most = getattr(processor, "model_max_length", task.max_length)
        length, stride = row_length(self.max_length, task.max_length, most), self.doc_stride
        if self.max_length is None and stride == options_of(type(self))["doc_stride"].default:
            # Windows of a model that takes less share less: as large a part.
            stride = stride * length // task.max_length
        return TaskOptions(
            max_length=length,
            doc_stride=stride,
            n_best_size=self.n_best_size,
            max_answer_length=self.max_answer_length,
            num_proc=self.preprocessing_num_workers,
        )


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """The options of one call of `alignattn finetune`: of a run, or of one run a seed.

    Attributes:
        model: the model and its attention.
        data: the task and its rows.
        training: of the model on the rows.
    """

    model: ModelOptions
    data: DataOptions
    training: TrainingOptions

    def __post_init__(self) -> None:
        super().__post_init__()
        # What is wrong is to be said before anything is read; tables list runs whose model is not for their task.
        _ = self.task
        check_fits(self.model, None)
        if self.training.balance is not None:
            self._check_balance()

    def _check_balance(self) -> None:
        given, obstacle = f"--balance {self.training.balance}", self.attention.unbalanced_by()
        if not traits_of(self.model.model).has_attention:
            raise AlignAttnError(f"{given}: {self.model.model} has no self-attention to balance: leave it out")
        if obstacle is not None:
            raise AlignAttnError(
                f"{given}: {obstacle}, and the function would not stay as it is: leave one of them out"
            )
        if self.model.lora_r is not None:
            raise AlignAttnError(
                f"{given}: adapters lie around the projections: balance the base with `alignattn balance` and adapt "
                "that, or leave --lora_r out"
            )

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what an untrained model trains by, how fewer rows are taken, a folder's column, what is evaluated."""
        implied = dict(traits_of(str(values.get("model"))).training)
        if any(values.get(name) is not None for name in LIMITS_OF_ROWS):
            implied["take"] = DRAWN
        if _is_folder(values.get("train_file")) and values.get("task") is None and values.get("tokens_column") is None:
            implied["text_columns"] = (TEXT,)
        if is_to_keep_checkpoints(values):
            implied["keep_checkpoints"] = True
        return implied | implied_by_choice(values)

    @classmethod
    def of_before(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return values with what they meant before: the first rows were taken, what did nothing passed over."""
        is_cut = any(values.get(name) is not None for name in LIMITS_OF_ROWS)
        values = {"take": FIRST, **values} if is_cut else dict(values)
        for name in ALWAYS_DONE:
            values.pop(name, None)
        try:
            options = resolve(cls, values, may_be_idle=True)
        except AlignAttnError:
            # Whoever uses the values says what is wrong with them.
            return values
        idle = {name for name, _ in idle_options(options, values)}
        return {name: value for name, value in values.items() if name not in idle}

    def check_use(self, given: Mapping[str, Any]) -> None:
        """Refuse given options that would do nothing."""
        check_choice(self)
        check_use(self, given)

    @classmethod
    def read_back(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of a file, which a user wrote or, with every option that has a value, a run."""
        return cls.of_before(values) if SCORING_OPTIONS.keys() & values.keys() else values

    def check_places(self, *, reads: bool = True) -> None:
        """Check what the options name on this machine; a run that is there may have finished, and need none of it."""
        is_there = any((run.output_dir / CONFIG_FILE).is_file() for run in self.runs())
        super().check_places(reads=reads and not is_there)

    @property
    def attention(self) -> AttentionConfig:
        """The model's attention."""
        return self.model.attention_config

    @cached_property
    def task(self) -> Task | None:
        """Its task: of one that the user's own file defines, what the folder of the run keeps of it; None without."""
        _ = self.data.source
        if self.data.task is None:
            return None
        kept = self.output_dir / TASK_FILE
        return read_definition(kept) if self.keeps_task and kept.is_file() else get_task(self.data.task)

    @property
    def keeps_task(self) -> bool:
        """Whether the folder of the run keeps the task: a user's own file may change or go."""
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
        """Return the options of each single run of the call: one, or one a seed."""
        if self.training.seeds is None:
            return [self]
        return [
            self.changed(seeds=None, seed=seed, output_dir=str(self.output_dir / f"{SEED_FOLDER_PREFIX}{seed}"))
            for seed in self.training.seeds
        ]

    def changed(self, **training: Any) -> Self:
        """Return the same with some training options replaced."""
        return replace(self, training=replace(self.training, **training))

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain types; the secret and what is None by default are left out."""
        defaults = _defaults(type(self))
        return {
            name: _plain(name, value)
            for name, value in self.values.items()
            if name != UNWRITTEN_OPTION and (value is not None or defaults.get(name) is not None)
        }

    def to_yaml(self) -> str:
        """Return the options as YAML that `--config` reads back."""
        text: str = yaml.safe_dump(self.to_dict(), sort_keys=True, allow_unicode=True)
        return text

    def differences(self, written: Mapping[str, Any]) -> list[str]:
        """Return the options in which a run differs whose options are `written`.

        An option that they lack, as of a version that did not have it, counts at its default.
        """
        former = renamed(type(self))
        present = {former.get(name, name): value for name, value in written.items()}
        theirs = _defaults(type(self)) | dict(self.of_before(present))
        mine = self.to_dict()
        return sorted(name for name in mine | theirs if mine.get(name) != theirs.get(name))


def is_seed_folder(folder: Path) -> bool:
    """Return whether a folder's own name says no more than a seed."""
    return folder.resolve().name.removeprefix(SEED_FOLDER_PREFIX).isdecimal()


def _defaults(options: type[Options]) -> dict[str, Any]:
    known = options_of(options).values()
    return {option.name: _plain(option.name, option.default) for option in known if not option.is_required}


def _plain(name: str, value: Any) -> Any:
    if name in ONCE_SINGLE and len(value) == 1:
        return value[0]
    return list(value) if isinstance(value, tuple) else value
