"""What is attacked: the model of a run, or a model and a task, with the rows that it is evaluated on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from alignattn.checkpoints import from_pretrained, unloadable
from alignattn.errors import AlignAttnError
from alignattn.experiments.arguments import RunOptions
from alignattn.experiments.attack_arguments import PROG, AttackArguments
from alignattn.experiments.run_folders import (
    check_run_folder,
    load_run_evaluation,
    read_run_options,
    short_names,
)
from alignattn.patching import is_patched, patch_of
from alignattn.robustness.loop import AttackRow
from alignattn.robustness.recipes import attacked_columns
from alignattn.robustness.records import AttackSettings
from alignattn.robustness.resources import named_model
from alignattn.tasks import TextClassification, get_task
from alignattn.tasks.rows import Rows, load_rows

PLAIN_ATTENTION = "soft"


@dataclass(frozen=True)
class Target:
    """A model to attack, and its rows.

    Attributes:
        name: of its folder in the results.
        run: what tells it from others.
        model: in evaluation mode.
        tokenizer: its own.
        task: that it was fine-tuned on.
        split: of the rows.
        rows: those of the split.
    """

    name: str
    run: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: TextClassification
    split: str
    rows: Sequence[AttackRow]

    @property
    def attention(self) -> str:
        """The preset's name, or the slots that are filled."""
        return patch_of(self.model).config.name if is_patched(self.model) else PLAIN_ATTENTION

    def settings(self, recipe: str, arguments: AttackArguments, resources: Mapping[str, str]) -> AttackSettings:
        """Return what the records of its attacks by a recipe are said to be of.

        Args:
            recipe: the attack's name.
            arguments: the options of the call.
            resources: what the attacks are made of, in words.

        Raises:
            AlignAttnError: if the recipe is unknown, or an attacked column is not one of the task's.
        """
        return AttackSettings(
            run=self.run,
            task=self.task.name,
            split=self.split,
            attention=self.attention,
            recipe=recipe,
            attack_columns=attacked_columns(recipe, self.task.text_columns, arguments.attack_columns),
            max_length=arguments.max_length,
            seed=arguments.seed,
            num_examples=arguments.num_examples,
            resources=resources,
        )


def target_loaders(arguments: AttackArguments) -> list[Callable[[], Target]]:
    """Return what loads each model that the options name, once it is its turn.

    Raises:
        AlignAttnError: if they name none, or a run folder is none.
    """
    if arguments.run:
        if arguments.model is not None or arguments.task is not None:
            raise AlignAttnError("--run names model and task: leave --model and --task out")
        folders = [Path(run) for run in arguments.run]
        for folder in folders:
            check_run_folder(folder, "--run")
        names = short_names(folders, "--run")
        return [partial(_target_of_run, folder, names[folder], arguments) for folder in folders]
    if arguments.model is None or arguments.task is None:
        raise AlignAttnError("nothing to attack: give --run FOLDER, or --model FOLDER with --task NAME")
    return [partial(_target_of_model, arguments)]


def _target_of_model(arguments: AttackArguments) -> Target:
    assert arguments.model is not None
    assert arguments.task is not None
    rows = load_rows(
        get_task(arguments.task),
        need_train=False,
        data_dir=arguments.data_dir,
        skip_bad_rows=arguments.skip_bad_rows,
    )
    return _target(Path(arguments.model).name, arguments.model, _check_task(rows))


def _target_of_run(folder: Path, name: str, arguments: AttackArguments) -> Target:
    options = read_run_options(folder, PROG)
    if arguments.skip_bad_rows:
        options = RunOptions(options.values | {"skip_bad_rows": True})
    rows = load_run_evaluation(options, arguments.data_dir)
    return _target(name, str(folder), _check_task(rows))


def _check_task(rows: Rows[Any]) -> Rows[TextClassification]:
    if not isinstance(rows.task, TextClassification) or rows.task.is_regression:
        raise AlignAttnError(f"attacks change the class of texts, and task {rows.task.name!r} has no such classes")
    if not rows.evaluation:
        raise AlignAttnError("the run has no evaluation rows to attack: it was made without --validation_file")
    return rows


def _target(name: str, model: str, rows: Rows[TextClassification]) -> Target:
    try:
        loaded = from_pretrained(model, AutoModelForSequenceClassification)
        tokenizer = AutoTokenizer.from_pretrained(model)
    except AlignAttnError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise unloadable(model, error) from error
    task, (split, dataset) = rows.task, next(iter(rows.evaluation.items()))
    if split in rows.bad_rows:
        print(f"{task.name} {split}: {len(rows.bad_rows[split])} row(s) that cannot be used are left out")
    attacked = [
        AttackRow(index, {column: row[column] for column in task.text_columns}, row[task.label_column])
        for index, row in enumerate(dataset)
    ]
    run = named_model(Path(model)) if Path(model).is_dir() else model
    return Target(name, run, loaded.eval(), tokenizer, task, split, attacked)
