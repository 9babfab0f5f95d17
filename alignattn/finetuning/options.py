"""The options of a run, resolved once into one frozen object: its model, its data, its attention, its training."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import yaml

from alignattn.attention.config import PLAIN, AttentionConfig
from alignattn.finetuning.data_options import LIMITS_OF_ROWS, DataOptions, has_class_pictures, is_folder
from alignattn.finetuning.model_options import NAMES_OF_ATTENTION, ModelOptions, check_capabilities, check_fits
from alignattn.finetuning.run_files import CONFIG_FILE, SEED_FOLDER_PREFIX, TASK_FILE
from alignattn.finetuning.training_options import (
    AT_STEPS,
    AT_THE_BEST,
    LOADING,
    NEVER,
    PATIENCE,
    PRIVATE_OPTION,
    TrainingOptions,
    implied_by_choice,
    is_to_keep_checkpoints,
)
from alignattn.models import AT_RANDOM, SAMPLING_OPTION, capabilities_of
from alignattn.tasks import ImageClassification, Task, get_task, is_definition
from alignattn.tasks.definitions import read_definition
from alignattn.tasks.task import DRAWN, TEXT, TRAIN
from alignattn.tasks.task_types import IMAGE, with_features
from alignattn.utils.errors import AlignAttnError, check_installed
from alignattn.utils.options import Options, options_of, resolve, values_of


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """The options of one call of `alignattn finetune`, for one run or for one run per seed.

    Attributes:
        model: the model and its attention.
        data: the task and its rows.
        training: the training of the model on the rows.
    """

    model: ModelOptions
    data: DataOptions
    training: TrainingOptions

    def __post_init__(self) -> None:
        super().__post_init__()
        # Report mistakes before anything is read. No task is passed: tables list runs that do not support theirs.
        _ = self.task
        check_fits(self.model, None)
        check_capabilities(self.model.model, self.training)
        check_choice(self)
        if self.training.balance is not None:
            # The default score leaves a layer its own, as in a graph attention network.
            score = capabilities_of(self.model.model).own_score if self.attention.score == PLAIN.score else PLAIN.score
            if reason := replace(PLAIN, score=score).reason_unbalanced or self.attention.reason_unbalanced:
                raise AlignAttnError(
                    f"--balance {self.training.balance}: {reason}, so balancing would change what the model computes: "
                    "leave one of them out"
                )
        if reason := self.training.reason_unsupported(None, has_crf=self.model.has_crf):
            raise AlignAttnError(f"{reason}: leave it out")
        for name in ("activation_checkpointing", "gradient_checkpointing"):
            if self.values.get(name) and not capabilities_of(self.model.model).is_pretrained:
                raise AlignAttnError(f"--{name} is for pretrained encoders, not for {self.model.model}: leave it out")

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the implied options: the model's defaults, sampling, clipping, a folder's column, and evaluation."""
        implied = dict(capabilities_of(str(values.get("model"))).training_defaults)
        if any(values.get(name) is not None for name in LIMITS_OF_ROWS):
            implied["take"] = DRAWN
        task, folder = values.get("task"), values.get("train_file")
        if is_folder(folder) and not any(map(values.get, ("task", "tokens_column", "text_columns", "image_column"))):
            implied |= {"image_column": IMAGE} if has_class_pictures(Path(str(folder))) else {"text_columns": (TEXT,)}
        is_of_images = task is not None and isinstance(_named_task(task, values.get("output_dir")), ImageClassification)
        if SAMPLING_OPTION in implied and (is_of_images or "image_column" in {**implied, **values}):
            # Images have no length.
            implied[SAMPLING_OPTION] = AT_RANDOM
        if values.get("class_weights") is not None:
            # A rare row's gradient is large on purpose: clipping would undo its weight (docs/fine-tuning.md).
            implied.setdefault("max_grad_norm", 0.0)
        if is_to_keep_checkpoints(values):
            implied["keep_checkpoints"] = True
        if folder is None or values.get("validation_file") or values.get("validation_share"):
            implied["eval_strategy"] = "epoch"
        return implied | implied_by_choice(values)

    def check_places(self, *, reads: bool = True) -> None:
        """Check the files and folders that the options name; a run that has finished needs none of them."""
        if self.makes_several and (self.output_dir / CONFIG_FILE).exists():
            raise AlignAttnError(
                f"{self.output_dir} holds a single run, and this call makes several: give another --output_dir"
            )
        is_there = any((run.output_dir / CONFIG_FILE).is_file() for run in self.runs())
        super().check_places(reads=reads and not is_there)
        if self.model.has_crf:
            check_installed("torchcrf", "crf", "a CRF")

    def reason_unsupported(self, task: Task) -> str:
        """Return why a task does not support the options, in one line; empty if it does."""
        parts = (self.model, self.data, self.training)
        return next(filter(None, (part.reason_unsupported(task) for part in parts)), "")

    def check(self, task: Task) -> None:
        """Refuse options that do not fit a task, as far as it is known before and after its rows are read."""
        if reason := self.model.reason_unsupported(task):
            raise AlignAttnError(reason)
        if reason := self.reason_unsupported(task):
            raise AlignAttnError(f"{reason}: leave it out")

    @property
    def attention(self) -> AttentionConfig:
        """The model's attention."""
        return self.model.attention_config

    @cached_property
    def task(self) -> Task | None:
        """The task, or None; if a user's file defines the task, the copy in the run's folder, once there is one."""
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

    @property
    def makes_several(self) -> bool:
        """Whether the call makes several runs, each in its own folder."""
        return self.training.seeds is not None

    def runs(self) -> list[Self]:
        """Return the options of each single run of the call: one, or one per seed."""
        if self.training.seeds is None:
            return [self]
        return list(map(self.of_seed, self.training.seeds))

    def of_seed(self, seed: int) -> Self:
        """Return the options of the run of one seed of the call."""
        return self.changed(seeds=None, seed=seed, output_dir=str(self.output_dir / f"{SEED_FOLDER_PREFIX}{seed}"))

    def changed(self, **training: Any) -> Self:
        """Return a copy with some training options replaced."""
        return replace(self, training=replace(self.training, **training))

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain types, without the secret and without options left at a default of None."""
        defaults = _defaults(type(self))
        return {
            name: _plain(value)
            for name, value in self.values.items()
            if name != PRIVATE_OPTION and (value is not None or defaults.get(name) is not None)
        }

    def to_yaml(self) -> str:
        """Return the options as YAML that `--config` reads back."""
        text: str = yaml.safe_dump(self.to_dict(), sort_keys=True, allow_unicode=True)
        return text

    def differences(self, written: Mapping[str, Any]) -> list[str]:
        """Return the names of the options that differ from `written`, the options of another run.

        An option that is missing there counts as its default; attentions are compared by content, not by name.
        """
        theirs = _defaults(type(self)) | dict(written)
        mine = self.to_dict()
        alike = NAMES_OF_ATTENTION if _attention_of(theirs) == self.attention else ()
        passed_over = {PRIVATE_OPTION, *alike}
        if not self.training.load_best_model_at_end and self.training.save_strategy != AT_THE_BEST:
            # Evaluations then only log.
            passed_over |= {"eval_strategy", "eval_steps"} if self.training.early_stopping_patience is None else set()
        return sorted(name for name in mine | theirs if mine.get(name) != theirs.get(name) and name not in passed_over)


def check_choice(options: RunOptions) -> None:
    """Refuse early stopping or loading the best model if evaluations or checkpoints to choose from are missing."""
    training = options.training
    if training.early_stopping_patience is None and not training.load_best_model_at_end:
        return
    patience = training.early_stopping_patience
    given = f"--{LOADING}" if patience is None else f"--{PATIENCE} {patience}"
    if not options.data.has_evaluation_rows:
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


def _named_task(name: str, output_dir: str | None) -> Task:
    """Return a task by name; for a user's file, the copy in the run's folder if there is one."""
    kept = Path(output_dir or "") / TASK_FILE
    return read_definition(kept) if output_dir and is_definition(name) and kept.is_file() else get_task(name)


def _defaults(options: type[Options]) -> dict[str, Any]:
    known = options_of(options).values()
    return {option.name: _plain(option.default) for option in known if not option.is_required}


def _attention_of(written: Mapping[str, Any]) -> AttentionConfig | None:
    """Return the attention of written options; None if this version cannot read them."""
    known = options_of(ModelOptions)
    try:
        options = resolve(ModelOptions, {name: value for name, value in written.items() if name in known})
        return options.attention_config
    except AlignAttnError:
        return None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
