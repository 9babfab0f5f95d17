"""Command-line options as dataclasses, a YAML file under them, and one line for every mistake."""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from transformers import TrainingArguments

from alignattn.attention.choices import ALIGNMENTS, NORMALIZERS, SCORES, SLOTS, VALUES
from alignattn.attention.config import PLAIN_ATTENTION, PRESETS, AttentionConfig
from alignattn.models import MODELS, traits_of
from alignattn.models.packaged import PACKAGED
from alignattn.runs.results import seed_folder
from alignattn.support.errors import AlignAttnError, one_line
from alignattn.support.files import read_text
from alignattn.support.parser import OneLineErrorParser, check_range, did_you_mean
from alignattn.support.publishing import publishable
from alignattn.tasks import TASKS, Task
from alignattn.tasks.task import TaskOptions
from alignattn.training import AlignmentTrainingArguments

CONFIG_FLAG = "--config"
DEFAULT_ATTENTION = "aa-ct"
NO_ALIGNMENT = "none"
SCORING_OPTIONS: Mapping[str, Any] = {
    "eval_do_concat_batches": True,
    "prediction_loss_only": False,
    "label_names": None,
    "remove_unused_columns": True,
}
"""Options of the Trainer without whose defaults a run cannot be scored."""

UNWRITTEN_OPTION = "hub_token"
"""A secret: a run's folder is made to be passed on."""

HUB_OPTIONS = (
    "push_to_hub",
    "hub_model_id",
    "hub_strategy",
    UNWRITTEN_OPTION,
    "hub_private_repo",
    "hub_always_push",
    "hub_revision",
)
"""Options of where a run is pushed to."""

LARGEST_SEED = 2**32 - 1
"""NumPy takes no larger one."""


@dataclass
class ModelArguments:
    """The model and its attention."""

    model: str = field(
        metadata={
            "help": "Model folder or Hub id, such as albert-base-v2; of an installed package: "
            f"{', '.join(PACKAGED)}; or one that is not pretrained: {', '.join(MODELS)}."
        }
    )
    attention: str | None = field(
        default=None,
        metadata={
            "help": f"One of {', '.join(PRESETS)}, a choice of a slot, or several joined by +, such as aa-ct+entmax15 "
            f"(default: {DEFAULT_ATTENTION}, or soft with what fills its slots where one of the next four is given)."
        },
    )
    score: str | None = field(default=None, metadata={"help": f"How a query meets a key: {', '.join(SCORES)}."})
    normalizer: str | None = field(default=None, metadata={"help": f"Scores to weights: {', '.join(NORMALIZERS)}."})
    value: str | None = field(default=None, metadata={"help": f"What is averaged: {', '.join(VALUES)}."})
    alignment: str | None = field(
        default=None, metadata={"help": f"Distance between keys and queries: {NO_ALIGNMENT}, {', '.join(ALIGNMENTS)}."}
    )
    normalizer_options: list[str] | None = field(
        default=None, metadata={"help": "Options of the normalizer, such as alpha=1.3 learned=true for entmax."}
    )
    value_options: list[str] | None = field(
        default=None, metadata={"help": "Options of the value, such as init=paper for qvi."}
    )
    alignment_options: list[str] | None = field(
        default=None, metadata={"help": "Options of the alignment, such as epsilon=0.05 for ot."}
    )
    alignment_weight: float | None = field(
        default=None, metadata={"help": "λ, the weight of the alignment loss (default: the preset's, 0.01)."}
    )
    gradient_scope: str | None = field(
        default=None,
        metadata={"help": "What the alignment loss moves: projections (of queries and keys; default) or all."},
    )
    head_reduction: str | None = field(
        default=None, metadata={"help": "sum (default) or mean of the alignment loss over the heads."}
    )
    layers: list[int] | None = field(
        default=None, metadata={"help": "Indices of the attention layers to patch, from 0 (default: all)."}
    )
    embeddings: str | None = field(
        default=None,
        metadata={"help": "GloVe vectors (text or .npz) for a model that reads words (default: random ones)."},
    )
    model_config: list[str] | None = field(
        default=None, metadata={"help": "Fields of the model's config, such as hidden_dropout_prob=0.1."}
    )
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit on the Hub."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads are kept."})

    def attention_config(self) -> AttentionConfig:
        """Return the attention that the options name.

        Raises:
            AlignAttnError: if a value is unknown or out of range.
        """
        names = {option.name for option in dataclasses.fields(AttentionConfig)}
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

    def model_config_fields(self) -> dict[str, Any]:
        """Return the fields of the model's config to set, values read as YAML.

        Raises:
            AlignAttnError: if an entry is not NAME=VALUE.
        """
        return _named_values("model_config", self.model_config or [])


def _named_values(option: str, entries: Sequence[str]) -> dict[str, Any]:
    values = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise AlignAttnError(f"--{option} {entry!r} is not NAME=VALUE: write an equals sign, without blanks")
        values[name] = yaml.safe_load(value)
    return values


@dataclass
class DataArguments:
    """The task and its rows."""

    task: str | None = field(
        default=None, metadata={"help": f"One of {', '.join(TASKS)}; with --train_file, what its rows are of."}
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder of <task>/<split>.parquet files to read instead of the Hub."}
    )
    train_file: str | None = field(
        default=None, metadata={"help": "Your own training rows: CSV, JSON lines, Parquet or CoNLL."}
    )
    validation_file: str | None = field(default=None, metadata={"help": "Your own evaluation rows."})
    text_columns: list[str] | None = field(
        default=None, metadata={"help": "The one or two text columns of your files."}
    )
    label_column: str = field(default="label", metadata={"help": "The label column of your files."})
    tokens_column: str | None = field(
        default=None, metadata={"help": "The column of lists of words of your files; --label_column has their tags."}
    )
    skip_bad_rows: bool = field(default=False, metadata={"help": "Leave bad rows out, and list them in results.json."})
    max_length: int | None = field(
        default=None,
        metadata={
            "help": "Most tokens of a sequence; batches are padded to their longest (default: the task's, mostly 128)."
        },
    )
    doc_stride: int = field(
        default=128, metadata={"help": "Question answering: tokens that neighbouring windows of a context share."}
    )
    n_best_size: int = field(default=20, metadata={"help": "Question answering: answers kept for each question."})
    max_answer_length: int = field(default=30, metadata={"help": "Question answering: most tokens of an answer."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use the first N training rows."})
    max_eval_samples: int | None = field(
        default=None, metadata={"help": "Use the first N rows of each evaluation split."}
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that tokenize (default: this one)."}
    )

    def task_options(self, task: Task) -> TaskOptions:
        """Return how the rows of `task` become tensors.

        Raises:
            AlignAttnError: if a value is out of range.
        """
        for name in ("n_best_size", "max_answer_length", "preprocessing_num_workers"):
            check_range(self, name, 1)
        return TaskOptions(
            max_length=task.max_length if self.max_length is None else self.max_length,
            doc_stride=self.doc_stride,
            n_best_size=self.n_best_size,
            max_answer_length=self.max_answer_length,
            num_proc=self.preprocessing_num_workers,
        )


@dataclass
class RunArguments(AlignmentTrainingArguments):
    """transformers' training options, with the defaults of a fine-tuning run."""

    seeds: list[int] | None = field(
        default=None, metadata={"help": "Several seeds in one call: one run each in <output_dir>/seed-<seed>."}
    )
    learning_rate: float = field(default=2e-5, metadata={"help": "Learning rate of the pretrained model."})
    logging_steps: float = field(default=0.05, metadata={"help": "Steps between logs; below 1 a share of all."})
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Leave losses that are not finite out of the logs; here they end the run."}
    )
    save_strategy: str = field(default="epoch", metadata={"help": "When checkpoints to resume from are saved."})
    save_total_limit: int | None = field(default=1, metadata={"help": "How many of them are kept."})
    log_query_key_distance: bool = field(
        default=False,
        metadata={"help": "Log the distance of queries and keys on the first evaluation rows; for alignattn figure."},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_training_options(self)
        for name, needed in SCORING_OPTIONS.items():
            if getattr(self, name) != needed:
                raise AlignAttnError(f"--{name} {getattr(self, name)}: a run could not be scored: leave it out")
        if not isinstance(self.lr_scheduler_kwargs or {}, dict):
            raise AlignAttnError(f"--lr_scheduler_kwargs {self.lr_scheduler_kwargs!r} must be a JSON object")

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled, as into the `training_args.bin` of a checkpoint: no secret, no local path."""
        return dict(publishable(vars(self) | {UNWRITTEN_OPTION: None}))


def check_training_options(args: TrainingArguments) -> None:
    """Check what transformers does not of its training options, and set what it asks of a CPU.

    Raises:
        AlignAttnError: if a number is out of its range.
    """
    check_range(args, "seed", 0, LARGEST_SEED)
    check_range(args, "learning_rate", 0)
    check_range(args, "per_device_train_batch_size", 1)
    check_range(args, "per_device_eval_batch_size", 1)
    if args.device.type == "cpu":
        # Pinning serves the copy to an accelerator; without one torch warns at every loader.
        args.dataloader_pin_memory = False


@dataclass(frozen=True)
class RunOptions:
    """The options of one run, as they were given and as dataclasses.

    Attributes:
        values: every option by name, before a dataclass derived anything from it: what `config.yaml` keeps.
    """

    values: dict[str, Any]

    def build(self, group: type[Any]) -> Any:
        """Return the dataclass `group` of the options that are its fields.

        Raises:
            AlignAttnError: if it refuses a value.
        """
        names = {option.name for option in dataclasses.fields(group) if option.init}
        try:
            return group(**{name: value for name, value in self.values.items() if name in names})
        except AlignAttnError:
            raise
        except (ValueError, TypeError, ImportError) as error:
            raise AlignAttnError(one_line(error)) from error

    def model(self) -> ModelArguments:
        """Return the model's options."""
        arguments: ModelArguments = self.build(ModelArguments)
        return arguments

    def data(self) -> DataArguments:
        """Return the data's options."""
        arguments: DataArguments = self.build(DataArguments)
        return arguments

    def training(self) -> RunArguments:
        """Return the training options."""
        arguments: RunArguments = self.build(RunArguments)
        return arguments

    @property
    def output_dir(self) -> Path:
        """The folder of the call: of its run, or of the runs of its seeds."""
        return Path(self.values["output_dir"])

    def runs(self) -> list["RunOptions"]:
        """Return the options of each single run of the call: one, or one a seed."""
        if self.values["seeds"] is None:
            return [self]
        return [
            RunOptions(
                self.values | {"seeds": None, "seed": seed, "output_dir": str(seed_folder(self.output_dir, seed))}
            )
            for seed in self.values["seeds"]
        ]

    def to_yaml(self) -> str:
        """Return the options as YAML that `--config` reads back; the secret and those left at None are left out."""
        given = {name: value for name, value in self.values.items() if value is not None and name != UNWRITTEN_OPTION}
        text: str = yaml.safe_dump(given, sort_keys=True, allow_unicode=True)
        return text


def parse_run_options(
    argv: Sequence[str],
    prog: str,
    *,
    more_groups: Sequence[type[Any]] = (),
    defaults_of_model: Callable[[str], Mapping[str, Any]] = lambda model: {},
) -> RunOptions:
    """Parse the options of `finetune`; those of `--config FILE` hold where the command line says nothing.

    Args:
        argv: the words after the command's name.
        prog: the command's name, for its help.
        more_groups: dataclasses of options that the command has beside those of `finetune`.
        defaults_of_model: gives, for the model that was asked for, defaults that differ from those of `finetune`.

    Raises:
        AlignAttnError: if an option is unknown, missing or of the wrong type, or the file cannot be read.
    """
    parser = OneLineErrorParser([*more_groups, ModelArguments, DataArguments, RunArguments], prog=prog)
    parser.add_argument(CONFIG_FLAG, metavar="FILE", help="YAML file of options; the command line overrides it.")
    values = _parse(parser, argv)
    defaults = {**traits_of(values["model"]).training, **defaults_of_model(values["model"])}
    if defaults:
        # The model decides the defaults, and the config file or the command line decides the model: parse again.
        parser.set_defaults(**defaults)
        values = _parse(parser, argv)
    del values["config"]
    seeds = values["seeds"]
    if seeds is not None and len(set(seeds)) != len(seeds):
        raise AlignAttnError(f"--seeds {' '.join(map(str, seeds))} names a seed twice")
    if values["push_to_hub"] and len(seeds or []) > 1:
        raise AlignAttnError(
            f"--push_to_hub: {len(seeds)} seeds are as many models, and a repository holds one: leave it out, and push "
            "the one you choose with --seed N --output_dir <output_dir>/seed-N --push_to_hub --hub_model_id NAME"
        )
    if values["output_dir"] is None:
        raise AlignAttnError("no folder for the run: give --output_dir DIR")
    options = RunOptions(values)
    options.model().attention_config()
    return options


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    _set_config_defaults(parser, argv)
    return vars(parser.parse_args(list(argv)))


def _set_config_defaults(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    finder = OneLineErrorParser([], add_help=False)
    finder.add_argument(CONFIG_FLAG)
    path = finder.parse_known_args(list(argv))[0].config
    if path is None:
        return
    values = _read_yaml(Path(path))
    actions = {action.dest: action for action in parser._actions}
    for name, value in values.items():
        if name not in actions:
            raise AlignAttnError(f"{path} sets an unknown option {name!r}{did_you_mean(name, actions)}")
        actions[name].required = False
        # argparse converts defaults that are text; so 2e-5, text in YAML 1.1, becomes a number.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        parser.set_defaults(**{name: str(value) if is_number else value})


def _read_yaml(path: Path) -> dict[str, Any]:
    text = read_text(path, "give a YAML file to --config")
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise AlignAttnError(f"{path} is not YAML: {one_line(error)}") from error
    if not isinstance(values, dict):
        raise AlignAttnError(f"{path} must hold lines of NAME: VALUE")
    return values
