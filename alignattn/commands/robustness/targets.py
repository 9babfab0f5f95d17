"""The targets of attacks: the model of a run, or a model and a task, with its evaluation rows."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.commands.robustness.options import AttackOptions
from alignattn.finetuning.model import keep_classes, named_classes
from alignattn.finetuning.rows import load_run_evaluation
from alignattn.finetuning.run_files import is_seed_folder
from alignattn.finetuning.run_folder import read_run_options, short_names, warn_plain
from alignattn.models import MODEL_TYPE_PREFIX, capabilities_of
from alignattn.models.lengths import most_tokens, row_length
from alignattn.patching import is_patched, patch_of
from alignattn.patching.adapter_files import merge_adapters
from alignattn.patching.checkpoints import load_pretrained
from alignattn.robustness.encoders import CHECKPOINT
from alignattn.robustness.loop import AttackRow
from alignattn.robustness.recipe_names import LONGEST
from alignattn.robustness.recipes import attacked_columns
from alignattn.robustness.records import AttackSettings
from alignattn.robustness.resources import label_model
from alignattn.robustness.wrapper import TaskModelWrapper, wrap_model
from alignattn.tasks import TextClassification, get_task
from alignattn.tasks.rows import Rows, load_rows
from alignattn.tasks.task_types import processor_for
from alignattn.utils.digests import model_digest
from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class Target:
    """A model to attack, and its rows.

    Attributes:
        name: the name of its folder in the results.
        run: its folder and digest, or its Hub id, in words.
        digest: the model's identity.
        model: the model in evaluation mode.
        tokenizer: the model's tokenizer.
        task: the task that it was fine-tuned on.
        split: the split of the rows.
        rows: the usable rows.
        left_out: the numbers of the unusable rows, from 0.
        usual_length: the default maximum of tokens per row.
    """

    name: str
    run: str
    digest: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: TextClassification
    split: str
    rows: Sequence[AttackRow]
    left_out: tuple[int, ...]
    usual_length: int = LONGEST

    @property
    def attention(self) -> str:
        """The preset's name or the slots, or the name of a model without attention."""
        if is_patched(self.model):
            return patch_of(self.model).config.name
        model = self.model.config.model_type.removeprefix(MODEL_TYPE_PREFIX)
        return PLAIN_ATTENTION if capabilities_of(model).has_attention else model

    def max_length(self, arguments: AttackOptions) -> int:
        """Return the maximum of tokens per row: of the options, or of the run within the model's limit."""
        return row_length(arguments.max_length, self.usual_length, most_tokens(self.model, self.tokenizer))

    def wrapper(self, arguments: AttackOptions) -> TaskModelWrapper:
        """Return the wrapper that attacks query."""
        return wrap_model(
            self.model,
            self.tokenizer,
            max_length=self.max_length(arguments),
            batch_size=arguments.batch_size,
            half_precision=arguments.half_precision,
        )

    def settings(self, recipe: str, arguments: AttackOptions, resources: Mapping[str, str]) -> AttackSettings:
        """Return the settings of the records of a recipe's attacks; `resources` are those of its parts, in words."""
        return AttackSettings(
            run=self.run,
            model=self.digest,
            task=self.task.name,
            split=self.split,
            attention=self.attention,
            recipe=recipe,
            attack_columns=attacked_columns(recipe, self.task.text_columns, arguments.attack_columns),
            max_length=self.max_length(arguments),
            seed=arguments.seed,
            num_examples=arguments.num_examples,
            precision="float16" if arguments.half_precision else "float32",
            resources=resources,
        )


def target_loaders(arguments: AttackOptions) -> list[Callable[[], Target]]:
    """Return a function per model of the options, which loads the model."""
    if arguments.half_precision and not torch.cuda.is_available():
        raise AlignAttnError("--half_precision needs a CUDA GPU: leave it out")
    if arguments.run:
        folders = [Path(run) for run in arguments.run]
        _check_distinct(folders)
        names = _record_folders(folders)
        return [partial(_target_of_run, folder, names[folder], arguments) for folder in folders]
    return [partial(_target_of_model, arguments)]


def _check_distinct(runs: Sequence[Path]) -> None:
    """Refuse copies of one run."""
    known: dict[str, Path] = {}
    for run in runs:
        other = known.setdefault(model_digest(run), run)
        if other is not run:
            raise AlignAttnError(f"--run {other} and --run {run} are the same model: leave one of them out")


def _record_folders(runs: Sequence[Path]) -> Mapping[Path, str]:
    """Return the name of the folder of each run's records, which does not depend on the other runs of the call.

    So attacks continue, and shards of a run end up in one folder, even if the next call names other runs. Only runs
    that would share a name get longer ones.
    """
    names = {run: _record_folder(run) for run in runs}
    return names if len(set(names.values())) == len(runs) else short_names(runs, "--run")


def _record_folder(model: Path) -> str:
    # The root would lead out of the folder of the results.
    parts = model.resolve().parts[1:]
    return "-".join(parts[-2 if is_seed_folder(model) else -1 :])


def _target_of_model(arguments: AttackOptions) -> Target:
    assert arguments.model is not None
    assert arguments.task is not None
    rows = load_rows(
        get_task(arguments.task, file_option=None),
        need_train=False,
        data_dir=arguments.data_dir,
        skip_bad_rows=arguments.skip_bad_rows,
    )
    path = Path(arguments.model)
    # A Hub id is not a path.
    name = _record_folder(path) if path.is_dir() else path.name
    return _target(name, arguments.model, _check_task(rows))


def _target_of_run(folder: Path, name: str, arguments: AttackOptions) -> Target:
    options = read_run_options(folder)
    warn_plain(folder, options)
    if options.data.has_windows:
        raise AlignAttnError(
            f"--run {folder} reads long texts in windows (--long_texts), and attacks query one sequence per row: give "
            "a run that truncates"
        )
    if arguments.data_dir is not None and options.data.train_file is not None:
        raise AlignAttnError(f"--data_dir does not go with {folder}, a run on custom files: leave it out")
    if arguments.skip_bad_rows:
        options = replace(options, data=replace(options.data, skip_bad_rows=True))
    rows = load_run_evaluation(options, arguments.data_dir)
    target = _target(name, str(folder), _check_task(rows))
    return replace(target, usual_length=options.data.max_length or rows.task.max_length)


def _check_task(rows: Rows[Any]) -> Rows[TextClassification]:
    if not isinstance(rows.task, TextClassification) or rows.task.is_regression:
        raise AlignAttnError(f"attacks need one class per text, and task {rows.task.name!r} has none")
    if not rows.evaluation:
        raise AlignAttnError("the run has no evaluation rows to attack: it was made without --validation_file")
    return rows


def _target(name: str, model: str, rows: Rows[TextClassification]) -> Target:
    task, split = rows.task, next(iter(rows.evaluation))
    lacking = "classifier: fine-tune it first with `alignattn finetune`"
    loaded, tokenizer = load_pretrained(
        model, AutoModelForSequenceClassification, lacking=lacking, choices=CHECKPOINT, use_safetensors=True
    )
    # The wrapper reads the inputs from the signature, and a peft model accepts any.
    loaded = merge_adapters(loaded)
    if loaded.config.num_labels != task.num_labels:
        raise AlignAttnError(
            f"{model} has {loaded.config.num_labels} output(s), and task {task.name!r} has {task.num_labels} "
            "classes: give the task of its fine-tuning"
        )
    saved = named_classes(loaded.config)
    processor_for(task).configure(loaded.config)
    if said := keep_classes(loaded, model, saved):
        print(said, file=sys.stderr)
    attacked = [
        AttackRow(number, {column: row[column] for column in task.text_columns}, row[task.label_column])
        for number, row in rows.numbered(split)
    ]
    folder = Path(model)
    digest = model_digest(folder) if folder.is_dir() else model
    run = label_model(folder, digest) if folder.is_dir() else model
    left_out = tuple(sorted(rows.left_out.get(split, ())))
    return Target(name, run, digest, loaded.eval(), tokenizer, task, split, attacked, left_out)
