"""Early stopping and the best checkpoint: their metric, and the checkpoint that becomes the model."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from alignattn.finetuning.results import EVALUATION, BestModel
from alignattn.finetuning.task_trainer import TaskTrainer
from alignattn.finetuning.training_arguments import RunArguments
from alignattn.finetuning.training_options import AT_THE_BEST, TrainingOptions
from alignattn.tasks import Task
from alignattn.tasks.metrics import metric_of
from alignattn.training.checkpoints import step_of
from alignattn.training.early_stopping import EarlyStopping, JointBest
from alignattn.utils.errors import AlignAttnError

AND = "+"
"""Separator of metrics that select together."""


def choose_metric(args: RunArguments, options: TrainingOptions, task: Task, splits: Sequence[str]) -> None:
    """Complete the metric that selects the best checkpoint or stops training early, if one of them is asked for.

    Args:
        args: the arguments to complete; without a given metric, transformers has set it to the loss.
        options: the options behind `args`. Without a metric, the task's main metric on the first split selects.
        task: the task of the rows.
        splits: the evaluated splits.
    """
    chooses = args.save_strategy == AT_THE_BEST or args.load_best_model_at_end or options.early_stopping_patience
    if not (chooses or args.metric_for_best_model):
        return
    if not splits:
        raise AlignAttnError("selecting the best checkpoint needs evaluation rows: give --validation_file")
    default = task.main_metric if chooses else args.metric_for_best_model
    asked = str(options.metric_for_best_model or default)
    names = [_measured(name, task, splits) for name in asked.split(AND)]
    args.metric_for_best_model = AND.join(names)
    args.greater_is_better = options.greater_is_better
    if len(names) > 1 and args.greater_is_better is not None:
        raise AlignAttnError(f"--greater_is_better applies to one metric, and {asked!r} names several: leave it out")
    if args.greater_is_better is None:
        args.greater_is_better = not metric_of(names[0]).lower_is_better


def _measured(name: str, task: Task, splits: Sequence[str]) -> str:
    """Return a metric's full name, with its split if there are several; refuse a metric that is not measured."""
    name, choices = name.removeprefix(EVALUATION), ("loss", *task.measured)
    if len(splits) > 1 and name in choices:
        name = f"{splits[0]}_{name}"
    known = choices if len(splits) == 1 else [f"{split}_{metric}" for split in splits for metric in choices]
    if name not in known:
        raise AlignAttnError(f"--metric_for_best_model {name!r} is not measured: choose one of {', '.join(known)}")
    return name


def stopping(args: RunArguments, patience: int | None) -> EarlyStopping | None:
    """Return the callback for early stopping, or for the best step by several metrics; None if neither is needed.

    Args:
        args: the arguments, completed by `choose_metric`.
        patience: the number of evaluations without improvement after which to stop, or None.
    """
    names = str(args.metric_for_best_model).split(AND)
    if len(names) > 1:
        metrics = {f"{EVALUATION}{name}": not metric_of(name).lower_is_better for name in names}
        return JointBest(math.inf if patience is None else patience, metrics)
    return None if patience is None else EarlyStopping(patience)


def best_model(trainer: TaskTrainer) -> BestModel | None:
    """Return the step and score of the best model that a trainer loaded at the end; None if it loaded none."""
    state, args = trainer.state, trainer.args
    if not args.load_best_model_at_end:
        return None
    metric = str(args.metric_for_best_model)
    step = None if state.best_model_checkpoint is None else step_of(Path(state.best_model_checkpoint))
    if step is None or state.best_metric is None:
        if trainer.is_world_process_zero():
            print(f"no checkpoint was selected by {metric}: the model is that of the last step", file=sys.stderr)
        return None
    return BestModel(step, metric, state.best_metric)


def stopped_at(trainer: TaskTrainer) -> int | None:
    """Return the step after which early stopping ended a trainer's training, or None if it did not."""
    callbacks = trainer.callback_handler.callbacks
    stopped = any(isinstance(callback, EarlyStopping) and callback.has_stopped for callback in callbacks)
    return trainer.state.global_step if stopped and trainer.state.global_step < trainer.state.max_steps else None
