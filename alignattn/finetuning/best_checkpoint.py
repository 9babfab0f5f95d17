"""Early stopping and the best checkpoint: their options, their metric, and the checkpoint that becomes the model.

The options are read before torch is imported, so this module does not import it at the top.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignattn.finetuning.results import EVALUATION
from alignattn.finetuning.training_options import LOGGING_STEPS
from alignattn.tasks import Task
from alignattn.tasks.metrics import metric_of
from alignattn.utils.errors import AlignAttnError

if TYPE_CHECKING:
    from alignattn.finetuning.options import RunOptions
    from alignattn.finetuning.results import BestModel
    from alignattn.finetuning.task_trainer import TaskTrainer
    from alignattn.finetuning.training_arguments import RunArguments
    from alignattn.finetuning.training_options import TrainingOptions
    from alignattn.training.early_stopping import EarlyStopping

NEVER, AT_STEPS, AT_THE_BEST = "no", "steps", "best"
"""Values of `--eval_strategy` and `--save_strategy`."""

AND = "+"
"""Separator of metrics that select together."""

PATIENCE, LOADING = "early_stopping_patience", "load_best_model_at_end"


def implied_by_choice(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults for early stopping or loading the best model: evaluate and save together, after each epoch.

    Args:
        values: the given options by name.
    """
    stops = values.get(PATIENCE) is not None
    loads = values.get(LOADING, stops)
    if not (stops or loads):
        return {}
    saved = values.get("save_strategy")
    evaluation = values.get("eval_strategy") or (saved if saved not in (None, NEVER, AT_THE_BEST) else "epoch")
    implied: dict[str, Any] = {LOADING: loads, "eval_strategy": evaluation}
    if loads and evaluation != NEVER:
        implied["save_strategy"] = evaluation
    if loads and evaluation == AT_STEPS:
        steps = values.get("eval_steps") or values.get("save_steps") or values.get("logging_steps", LOGGING_STEPS)
        implied |= {"eval_steps": steps, "save_steps": steps}
    return implied


def is_to_keep_checkpoints(values: Mapping[str, Any]) -> bool:
    """Return whether the options ask to keep checkpoints next to the model of the finished run.

    Args:
        values: the given options by name.
    """
    asks_for_several = (values.get("save_total_limit") or 1) > 1
    asks_for_the_best = values.get("save_strategy") == AT_THE_BEST or values.get("metric_for_best_model") is not None
    loads = values.get(LOADING, values.get(PATIENCE) is not None)
    return asks_for_several or bool(values.get("save_only_model")) or (asks_for_the_best and not loads)


def check_choice(options: "RunOptions") -> None:
    """Refuse early stopping or loading the best model if evaluations or checkpoints to choose from are missing."""
    training = options.training
    if training.early_stopping_patience is None and not training.load_best_model_at_end:
        return
    given = _given(training)
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


def _given(training: "TrainingOptions") -> str:
    if training.early_stopping_patience is None:
        return f"--{LOADING}"
    return f"--{PATIENCE} {training.early_stopping_patience}"


def choose_metric(args: "RunArguments", options: "TrainingOptions", task: Task, splits: Sequence[str]) -> None:
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


def stopping(args: "RunArguments", patience: int | None) -> "EarlyStopping | None":
    """Return the callback for early stopping, or for the best step by several metrics; None if neither is needed.

    Args:
        args: the arguments, completed by `choose_metric`.
        patience: the number of evaluations without improvement after which to stop, or None.
    """
    from alignattn.training.early_stopping import EarlyStopping, JointBest

    names = str(args.metric_for_best_model).split(AND)
    if len(names) > 1:
        metrics = {f"{EVALUATION}{name}": not metric_of(name).lower_is_better for name in names}
        return JointBest(math.inf if patience is None else patience, metrics)
    return None if patience is None else EarlyStopping(patience)


def best_model(trainer: "TaskTrainer") -> "BestModel | None":
    """Return the step and score of the best model that a trainer loaded at the end; None if it loaded none."""
    from alignattn.finetuning.results import BestModel
    from alignattn.training.checkpoints import step_of

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


def stopped_at(trainer: "TaskTrainer") -> int | None:
    """Return the step after which early stopping ended a trainer's training, or None if it did not."""
    from alignattn.training.early_stopping import EarlyStopping

    callbacks = trainer.callback_handler.callbacks
    stopped = any(isinstance(callback, EarlyStopping) and callback.has_stopped for callback in callbacks)
    return trainer.state.global_step if stopped and trainer.state.global_step < trainer.state.max_steps else None
