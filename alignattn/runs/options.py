"""The options of a run, resolved once into one frozen object: its model, its data, its attention, its training."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import yaml

from alignattn.attention.choices import ALIGNMENTS, NORMALIZERS, SCORES, SLOTS, VALUES
from alignattn.attention.config import PLAIN_ATTENTION, PRESETS, AttentionConfig
from alignattn.models import MODELS, traits_of
from alignattn.models.packaged import PACKAGED
from alignattn.runs.training_options import ALIGNMENT, UNWRITTEN_OPTION, TrainingOptions
from alignattn.support.errors import AlignAttnError
from alignattn.support.options import REQUIRED, Options, option, options_of, renamed, values_of
from alignattn.tasks import TASKS, Task, get_task, is_definition
from alignattn.tasks.definitions import read_definition
from alignattn.tasks.task import TaskOptions

DEFAULT_ATTENTION = "aa-ct"
NO_ALIGNMENT = "none"
SEED_FOLDER_PREFIX = "seed-"

TASK_FILE = "task.json"
"""Of the task of a run that the user's own file defines."""

MODEL, ATTENTION, DATA = "model", "attention", "data"
"""Groups in the help."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """The model and its attention."""

    model: str = option(
        REQUIRED, f"Folder or Hub id, such as albert-base-v2; or {', '.join([*PACKAGED, *MODELS])}.", group=MODEL
    )
    model_config: tuple[str, ...] | None = option(
        None, "Fields of its config, such as hidden_dropout_prob=0.1.", group=MODEL, metavar="NAME=X"
    )
    embeddings: str | None = option(
        None,
        "GloVe vectors (text or .npz), of a model that reads words.",
        group=MODEL,
        metavar="FILE",
    )
    model_revision: str = option("main", "Branch, tag or commit on the Hub.", group=MODEL, rare=True)
    cache_dir: str | None = option(None, "Where downloads are kept.", group=MODEL, metavar="DIR", rare=True)
    attention: str | None = option(
        None,
        f"{', '.join(PRESETS)}, or choices of slots, as aa-ct+sparsemax (default: {DEFAULT_ATTENTION}).",
        group=ATTENTION,
    )
    score: str | None = option(None, f"{', '.join(SCORES)}.", group=ATTENTION)
    normalizer: str | None = option(None, f"{', '.join(NORMALIZERS)}.", group=ATTENTION)
    value: str | None = option(None, f"{', '.join(VALUES)}.", group=ATTENTION)
    alignment: str | None = option(
        None, f"{NO_ALIGNMENT}, {', '.join(ALIGNMENTS)}: distance of keys and queries.", group=ATTENTION
    )
    normalizer_options: tuple[str, ...] | None = option(
        None, "Such as alpha=1.3 learned=true for entmax.", group=ATTENTION, metavar="NAME=X"
    )
    value_options: tuple[str, ...] | None = option(
        None, "Such as init=paper for qvi.", group=ATTENTION, metavar="NAME=X"
    )
    layers: tuple[int, ...] | None = option(None, "Layers to patch, from 0 (default: all).", group=ATTENTION)
    alignment_options: tuple[str, ...] | None = option(
        None, "Such as epsilon=0.05 for ot.", group=ALIGNMENT, metavar="NAME=X"
    )
    alignment_weight: float | None = option(None, "λ, its weight (default: the preset's, 0.01).", group=ALIGNMENT)
    gradient_scope: str | None = option(
        None, "What it moves: projections (of queries and keys; default) or all.", group=ALIGNMENT
    )
    head_reduction: str | None = option(None, "sum (default) or mean over the heads.", group=ALIGNMENT, rare=True)

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
        values[key] = yaml.safe_load(value)
    return values


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """The task and its rows."""

    task: str | None = option(
        None,
        f"One of {', '.join(TASKS)}, or the YAML file of your own; with --train_file, what its rows are of.",
        group=DATA,
        metavar="TASK",
    )
    data_dir: str | None = option(
        None, "Folder of <task>/<split>.parquet files to read instead of the Hub.", group=DATA, metavar="DIR"
    )
    train_file: str | None = option(
        None, "Your own training rows: CSV, JSON lines, Parquet or CoNLL.", group=DATA, metavar="FILE"
    )
    validation_file: str | None = option(None, "Your own evaluation rows.", group=DATA, metavar="FILE")
    text_columns: tuple[str, ...] | None = option(None, "The one or two text columns of your files.", group=DATA)
    label_column: str = option("label", "The label column of your files.", group=DATA)
    tokens_column: str | None = option(None, "The column of lists of words; --label_column has their tags.", group=DATA)
    skip_bad_rows: bool = option(False, "Leave bad rows out, and list them in results.json.", group=DATA)
    max_length: int | None = option(None, "Most tokens of a sequence (default: the task's, mostly 128).", group=DATA)
    max_train_samples: int | None = option(None, "Use the first N training rows.", group=DATA)
    max_eval_samples: int | None = option(None, "Use the first N rows of each evaluation split.", group=DATA)
    preprocessing_num_workers: int | None = option(
        None, "Processes that tokenize (default: this one).", group=DATA, low=1, rare=True
    )
    doc_stride: int = option(128, "Question answering: tokens that windows of a context share.", group=DATA)
    n_best_size: int = option(20, "Question answering: answers kept for each.", group=DATA, low=1, rare=True)
    max_answer_length: int = option(30, "Question answering: most tokens of an answer.", group=DATA, low=1, rare=True)

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
        # What is wrong with it is to be said before anything is read.
        _ = self.attention, self.model.model_config_fields

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
        kept = self.output_dir / TASK_FILE
        if self.data.task is None:
            return None
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

    def differences(self, text: str) -> list[str]:
        """Return the options in which a run differs whose options are YAML.

        An option that the YAML lacks, as of a version that did not have it, counts at its default.
        """
        former = renamed(type(self))
        theirs = _defaults(type(self)) | {former.get(name, name): value for name, value in yaml.safe_load(text).items()}
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
