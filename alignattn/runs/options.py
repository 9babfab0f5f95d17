"""The options of a run, resolved once into one frozen object: its model, its data, its attention, its training."""

import dataclasses
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
from alignattn.models.packaged import PACKAGED
from alignattn.runs.training_options import ALIGNMENT_GROUP, UNWRITTEN_OPTION, TrainingOptions
from alignattn.support.errors import AlignAttnError
from alignattn.support.options import MOST_PROCESSES, REQUIRED, Options, option, options_of, renamed, values_of
from alignattn.tasks import Task, get_task, is_definition
from alignattn.tasks.definitions import read_definition
from alignattn.tasks.task import CONLL, MOST_TEXTS, TaskOptions

DEFAULT_ATTENTION = "aa-ct"
NO_ALIGNMENT = "none"
SEED_FOLDER_PREFIX = "seed-"
EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")

TASK_FILE = "task.json"
"""Of the task of a run that the user's own file defines."""

FIELDS_OF_THE_TASK = frozenset({"num_labels", "id2label", "label2id", "problem_type"})
"""Of a model's config."""

MODEL_GROUP, ATTENTION_GROUP, DATA_GROUP, ANSWER_GROUP = "model", "attention", "data", "question answering"
LORA_GROUP = "LoRA"
"""In the help."""

ATTENTION_HELP = f"{', '.join(PRESETS)}, or slots as aa-ct+sparsemax (default: {DEFAULT_ATTENTION})."
NAMED_VALUES = "NAME=X"

FROM_TASK = "--task without --train_file"
FROM_BOTH = "--task and --train_file together, whose rows are the task's"
FROM_CONLL = "a CoNLL file, whose last column has the tags"
FROM_TAGS = "--tokens_column"
FROM_TEXTS = "--text_columns"
"""What rows are read from, in words."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """The model and its attention."""

    model: str = option(REQUIRED, f"Folder or Hub id; or {', '.join([*PACKAGED, *MODELS])}.", group=MODEL_GROUP)
    model_config: tuple[str, ...] | None = option(
        None, "Fields of its config, as hidden_dropout_prob=0.1.", group=MODEL_GROUP, metavar=NAMED_VALUES
    )
    embeddings: str | None = option(
        None, "GloVe vectors (text or .npz), of a model that reads words.", group=MODEL_GROUP, metavar="FILE", rare=True
    )
    model_revision: str = option("main", "Branch, tag or commit on the Hub.", group=MODEL_GROUP, rare=True)
    cache_dir: str | None = option(None, "Where downloads are kept.", group=MODEL_GROUP, metavar="DIR", rare=True)
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


def _named_values(name: str, entries: Sequence[str]) -> dict[str, Any]:
    values = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise AlignAttnError(f"--{name} {entry!r} is not NAME=VALUE: write an equals sign, without blanks")
        try:
            # A number as 1e-3 is text to YAML.
            values[key] = float(value) if EXPONENT.fullmatch(value) else yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise AlignAttnError(f"--{name} {entry!r}: {value!r} is no value that YAML reads") from error
    return values


def check_fits(arguments: ModelOptions, task: Task | None) -> None:
    """Check that a model can do what the options ask of it: its task, where it is known, its attention, its vectors."""
    name, traits = arguments.model, traits_of(arguments.model)
    attention, fields = arguments.attention_config, arguments.model_config_fields
    if task is not None and traits.reads_pairs and len(getattr(task, "text_columns", ())) != MOST_TEXTS:
        raise AlignAttnError(f"--model {name} compares the two texts of a pair, and task {task.name!r} has none")
    if task is not None and not isinstance(task, traits.tasks):
        kinds = " and ".join(kind.kind for kind in traits.tasks)
        raise AlignAttnError(f"--model {name} is for {kinds}, and task {task.name!r} is {task.kind}")
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
    train_file: str | None = option(None, "Rows: CSV, JSON lines, Parquet or CoNLL.", group=DATA_GROUP, metavar="FILE")
    validation_file: str | None = option(None, "Your own evaluation rows.", group=DATA_GROUP, metavar="FILE")
    text_columns: tuple[str, ...] | None = option(None, "The one or two text columns of your files.", group=DATA_GROUP)
    label_column: str = option("label", "Their label column.", group=DATA_GROUP)
    tokens_column: str | None = option(None, "Their lists of words, whose tags are the label.", group=DATA_GROUP)
    skip_bad_rows: bool = option(False, "Leave bad rows out; results.json lists them.", group=DATA_GROUP)
    max_length: int | None = option(None, "Most tokens of a row (default: the task's).", group=DATA_GROUP, low=1)
    max_train_samples: int | None = option(None, "Use the first N training rows.", group=DATA_GROUP, low=1)
    max_eval_samples: int | None = option(None, "Use the first N of each evaluation split.", group=DATA_GROUP, low=1)
    preprocessing_num_workers: int | None = option(
        None, "Processes that tokenize (default: this).", group=DATA_GROUP, low=1, high=MOST_PROCESSES, rare=True
    )
    doc_stride: int = option(128, "Tokens that windows of a context share.", group=ANSWER_GROUP, low=0, rare=True)
    n_best_size: int = option(20, "Answers kept for each.", group=ANSWER_GROUP, low=1, rare=True)
    max_answer_length: int = option(30, "Most tokens of an answer.", group=ANSWER_GROUP, low=1, rare=True)

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
            return self._only(FROM_BOTH, "validation_file")
        if Path(self.train_file).suffix.lower() == CONLL:
            return self._only(FROM_CONLL, "validation_file")
        if self.tokens_column is not None:
            return self._only(FROM_TAGS, "validation_file", "tokens_column", "label_column")
        if self.text_columns:
            return self._only(FROM_TEXTS, "validation_file", "text_columns", "label_column")
        raise AlignAttnError(
            "--train_file needs --text_columns with its one or two text columns, --tokens_column with its lists of "
            "words, or --task NAME where it holds rows of that task"
        )

    def _only(self, source: str, *fitting: str) -> str:
        known = options_of(type(self))
        for name in ("data_dir", "validation_file", "text_columns", "tokens_column", "label_column"):
            if name not in fitting and getattr(self, name) != known[name].default:
                raise AlignAttnError(f"--{name} does not go with {source}: leave it out")
        return source

    def task_options(self, task: Task) -> TaskOptions:
        """Return how the rows of `task` become tensors."""
        return TaskOptions(
            max_length=task.max_length if self.max_length is None else self.max_length,
            doc_stride=self.doc_stride,
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

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the training options of a model that is not pretrained."""
        return traits_of(str(values.get("model"))).training

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
            name: _plain(value)
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
        theirs = _defaults(type(self)) | {former.get(name, name): value for name, value in written.items()}
        mine = self.to_dict()
        return sorted(name for name in mine | theirs if mine.get(name) != theirs.get(name))


def is_seed_folder(folder: Path) -> bool:
    """Return whether a folder's own name says no more than a seed."""
    return folder.resolve().name.removeprefix(SEED_FOLDER_PREFIX).isdecimal()


def _defaults(options: type[Options]) -> dict[str, Any]:
    known = options_of(options).values()
    return {option.name: _plain(option.default) for option in known if not option.is_required}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
