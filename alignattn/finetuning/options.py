"""The options of a run, resolved once into one frozen object: its model, its data, its attention, its training."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import yaml

from alignattn.attention.config import PLAIN, AttentionConfig
from alignattn.finetuning.data_options import DataOptions, has_class_pictures, is_folder
from alignattn.finetuning.model_options import NAMES_OF_ATTENTION, ModelOptions
from alignattn.finetuning.results import RESULTS_FILE
from alignattn.finetuning.run_files import CONFIG_FILE, SEED_FOLDER_PREFIX, TASK_FILE
from alignattn.finetuning.training_options import (
    AT_STEPS,
    AT_THE_BEST,
    LOADING,
    LOGGING_STEPS,
    NEVER,
    PATIENCE,
    PRIVATE_OPTION,
    TrainingOptions,
)
from alignattn.models import AT_RANDOM, ENCODER, MODELS, SAMPLING_OPTION, capabilities_of
from alignattn.tasks import ImageClassification, Task, is_definition
from alignattn.tasks.definitions import get_task, read_definition
from alignattn.tasks.names import DRAWN, IMAGE, TEXT, TRAIN
from alignattn.tasks.visual_question_answering import with_features
from alignattn.utils.errors import AlignAttnError, check_installed, listing
from alignattn.utils.options import REQUIRED, Options, options_of, values_of


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
        self.model.check()
        name, data, training = self.model.model, self.data, self.training
        capabilities = capabilities_of(name)
        for known in options_of(type(self)).values():
            needed = known.capability
            if needed and self.values[known.name] != known.default and not getattr(capabilities, needed):
                able = [other for other in MODELS if getattr(capabilities_of(other), needed)]
                encoders = ["pretrained encoders"] if getattr(ENCODER, needed) else []
                raise AlignAttnError(
                    f"--{known.name} is for {listing([*encoders, *able])}, not for {name}: leave it out"
                )
        for option in ("activation_checkpointing", "gradient_checkpointing"):
            if self.values.get(option) and not capabilities.is_pretrained:
                raise AlignAttnError(f"--{option} is for pretrained encoders, not for {name}: leave it out")
        if training.balance is not None:
            # The default score leaves a layer its own, as in a graph attention network.
            score = capabilities.own_score if self.attention.score == PLAIN.score else PLAIN.score
            if reason := replace(PLAIN, score=score).reason_unbalanced or self.attention.reason_unbalanced:
                raise AlignAttnError(
                    f"--balance {training.balance}: {reason}, so balancing would change what the model computes: "
                    "leave one of them out"
                )
        training.check(None, has_crf=self.model.has_crf)
        # Early stopping and loading the best model choose from evaluations and checkpoints, which must exist.
        patience = training.early_stopping_patience
        if patience is None and not training.load_best_model_at_end:
            return
        given = f"--{LOADING}" if patience is None else f"--{PATIENCE} {patience}"
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
        implied = dict(capabilities_of(str(get("model"))).training_defaults)
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
        if folder is None or get("validation_file") or get("validation_share"):
            implied["eval_strategy"] = "epoch"
        if stops or loads:
            # Early stopping and loading the best model evaluate and save together, after each epoch if nothing is said.
            evaluation = get("eval_strategy") or (saved if saved not in (None, NEVER, AT_THE_BEST) else "epoch")
            implied |= {LOADING: loads, "eval_strategy": evaluation}
            if loads and evaluation != NEVER:
                implied["save_strategy"] = evaluation
            if loads and evaluation == AT_STEPS:
                steps = get("eval_steps") or get("save_steps") or get("logging_steps", LOGGING_STEPS)
                implied |= {"eval_steps": steps, "save_steps": steps}
        return implied

    def check_places(self, *, reads: bool = True) -> None:
        """Check the files and folders that the options name; runs that have finished need none of them."""
        if self.makes_several and (self.output_dir / CONFIG_FILE).exists():
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
        self.data.check(task)
        self.training.check(task, has_crf=self.model.has_crf)

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
        folder = str(self.output_dir / f"{SEED_FOLDER_PREFIX}{seed}")
        return replace(self, training=replace(self.training, seeds=None, seed=seed, output_dir=folder))

    def to_dict(self) -> dict[str, Any]:
        """Return the options as plain types, without the secret and without options left at a default of None."""
        known = options_of(type(self))
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.values.items()
            if name != PRIVATE_OPTION and (value is not None or (name in known and known[name].default is not None))
        }

    def to_yaml(self) -> str:
        """Return the options as YAML that `--config` reads back."""
        text: str = yaml.safe_dump(self.to_dict(), sort_keys=True, allow_unicode=True)
        return text

    def differences(self, written: Mapping[str, Any]) -> list[str]:
        """Return the options in which another run differs that was made with the options `written`.

        An option that is missing there counts as its default; attentions are compared by content, not by name.
        """
        known = options_of(type(self)).values()
        defaults = {one.name: one.default for one in known if one.default is not REQUIRED}
        theirs = {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
        theirs |= written
        mine = self.to_dict()
        passed_over = {"disable_tqdm", "report_to", *(one.name for one in known if one.may_differ)}
        chooses = self.training.load_best_model_at_end or self.training.save_strategy == AT_THE_BEST
        if not chooses and self.training.early_stopping_patience is None:
            # Evaluations then only log.
            passed_over |= {"eval_strategy", "eval_steps"}
        differing = {name for name in mine | theirs if mine.get(name) != theirs.get(name)} - passed_over
        if differing & NAMES_OF_ATTENTION:
            with suppress(AlignAttnError):
                names = options_of(ModelOptions).keys() & written.keys()
                if ModelOptions(**{name: written[name] for name in names}).attention_config == self.attention:
                    differing -= NAMES_OF_ATTENTION
        return sorted(differing)


def _named_task(name: str, output_dir: str | None) -> Task:
    """Return a task by name; for a user's file, the copy in the run's folder if there is one."""
    kept = Path(output_dir or "") / TASK_FILE
    return read_definition(kept) if output_dir and is_definition(name) and kept.is_file() else get_task(name)
