"""The checkpoints of a run: the one it resumes from, and the best one, which becomes its model."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SchedulerType
from transformers.utils import CONFIG_NAME
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from alignattn.finetuning.options import RunOptions, TrainingOptions
from alignattn.finetuning.results import AND, EVALUATION, RESULTS_FILE, BestModel
from alignattn.finetuning.run_folder import NEWEST_CHECKPOINT
from alignattn.finetuning.task_trainer import TaskTrainer
from alignattn.finetuning.training_arguments import RunArguments
from alignattn.patching import CHILD_NAME
from alignattn.patching.checkpoint_files import BASE_MODEL_FIELD, adapter_contents
from alignattn.patching.saving import restored_fields
from alignattn.tasks import Task
from alignattn.tasks.metrics import metric_of
from alignattn.tasks.names import TEST
from alignattn.training.callbacks import EarlyStopping, JointBest, LossMeter
from alignattn.training.checkpoints import damaged_file, has_state, last_whole_checkpoint, read_state, step_of
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import parse_json, read_json

OF_A_FILE = frozenset(
    {"architectures", "attn_implementation", "dtype", "problem_type", "transformers_version", "use_cache"}
)
"""Fields of a saved config that describe its training and saving, not the model."""

OF_AN_ADAPTER_FILE = frozenset({"auto_mapping", "inference_mode", "peft_version", "revision", "runtime_config"})
"""Likewise for the config of an adapter."""


def checkpoint_to_resume(options: RunOptions, model: Any, args: TrainingArguments) -> Path | None:
    """Return the checkpoint to resume from, checked; None if training starts from the beginning.

    Args:
        options: the options of the run.
        model: the model of the run, with its adapters.
        args: the arguments of the run's Trainer.
    """
    given = options.values["resume_from_checkpoint"]
    is_newest = given in NEWEST_CHECKPOINT
    checkpoint = last_whole_checkpoint(options.output_dir) if is_newest else Path(str(given))
    if checkpoint is not None:
        check_checkpoint(checkpoint, None if is_newest else model)
        # With another number of processes or GPUs, a step would have another number of rows.
        state: Any = read_state(checkpoint)
        meter = state.stateful_callbacks.get(LossMeter.__name__, {"attributes": vars(LossMeter())})
        before = meter["attributes"]["num_processes"], state.train_batch_size
        # With `--auto_find_batch_size`, the Trainer takes the batch size of the checkpoint.
        now = args.world_size, state.train_batch_size if args.auto_find_batch_size else args.train_batch_size
        if now != before:
            there, here = (f"{processes} process(es) with batches of {rows} rows" for processes, rows in (before, now))
            raise AlignAttnError(f"{checkpoint} was written by {there}, and this call has {here}: start it as before")
        print(f"resuming from {checkpoint}")
    return checkpoint


def check_checkpoint(folder: Path, model: Any = None) -> None:
    """Refuse a checkpoint that is missing, damaged, or of another model.

    Args:
        folder: the folder of the checkpoint.
        model: the model that resumes from it, with its adapters; None = do not compare the model.
    """
    if not folder.is_dir():
        raise AlignAttnError(f"there is no folder {folder}: give a checkpoint to --resume_from_checkpoint")
    is_of_adapter = (folder / ADAPTER_CONFIG_NAME).is_file()
    state, step = read_state(folder), step_of(folder)
    best = state.best_model_checkpoint
    is_of_folder = step is None or step == state.global_step
    if not is_of_folder or (best is not None and step_of(Path(str(best))) != state.best_global_step):
        raise AlignAttnError(
            f"{folder / TRAINER_STATE_NAME} and the folder's name disagree on the step: give another checkpoint"
        )
    saved = restored_fields(read_json(folder / (ADAPTER_CONFIG_NAME if is_of_adapter else CONFIG_NAME)))
    torn = damaged_file(folder)
    if torn is not None:
        raise AlignAttnError(f"{torn} is damaged: give another checkpoint to --resume_from_checkpoint")
    if not has_state(folder):
        raise AlignAttnError(
            f"{folder} has no state of the optimizer (--save_only_model leaves it out), so training cannot resume from "
            "it: give another checkpoint to --resume_from_checkpoint, or start from its weights with --model"
        )
    if model is None:
        return
    if is_of_adapter != hasattr(model, "peft_config"):
        kinds = ("a whole model", "an adapter (--lora_r)")
        reason = f"it has {kinds[is_of_adapter]}, and this run trains {kinds[not is_of_adapter]}"
    else:
        if is_of_adapter:
            what, names = "adapter", _differences_of_adapters(folder, saved, model)
        else:
            mine = parse_json(model.config.to_json_string(use_diff=False))
            shared = saved.keys() & mine.keys() - OF_A_FILE
            what, names = "config", sorted(name for name in shared if saved[name] != mine[name])
        reason = f"its {what} differs in {', '.join(names)}" if names else ""
    if reason:
        raise AlignAttnError(
            f"{folder} is a checkpoint of another model ({reason}): give another to --resume_from_checkpoint"
        )


@contextmanager
def resume_hint(options: RunOptions) -> Iterator[None]:
    """On Ctrl-C, report what the folder of a run contains and what the same command will do next."""
    folder, given = options.output_dir, options.values["resume_from_checkpoint"]
    try:
        yield
    except KeyboardInterrupt as stop:
        if (folder / RESULTS_FILE).is_file():
            raise KeyboardInterrupt(f"{folder} has the finished run") from stop
        newest = last_whole_checkpoint(folder) if given in NEWEST_CHECKPOINT else given
        after = "begins anew" if newest is None else f"resumes from {newest}"
        raise KeyboardInterrupt(f"{folder} has no finished model, and the same command {after}") from stop


def _differences_of_adapters(folder: Path, theirs: dict[str, Any], model: Any) -> list[str]:
    (config,) = model.peft_config.values()
    mine = config.to_dict()
    mine[CHILD_NAME] = getattr(model.config, CHILD_NAME, None)
    _, description = adapter_contents(str(folder), {})
    theirs[CHILD_NAME] = description.get("attention")
    theirs |= {"task_type": description["task_type"]} if description else {}
    return sorted(
        name
        for name in theirs.keys() & mine.keys() - OF_AN_ADAPTER_FILE
        if _comparable(name, theirs[name]) != _comparable(name, mine[name])
    )


def _comparable(name: str, value: Any) -> Any:
    if name == BASE_MODEL_FIELD:  # a model may have moved with its run
        return Path(str(value)).name
    # Module names have no order.
    return sorted(map(str, value)) if isinstance(value, list | set) else value


def prepare_selection(
    args: RunArguments, options: TrainingOptions, task: Task, splits: Sequence[str]
) -> EarlyStopping | None:
    """Complete the arguments with the metric that selects the best checkpoint or stops training early, if one is to.

    Args:
        args: the arguments to complete; without a given metric, transformers has set it to the loss.
        options: the options behind `args`. Without a metric, the task's main metric on the first split selects.
        task: the task of the rows.
        splits: the evaluated splits.

    Returns:
        The callback that ends training, or that knows the best step by several metrics; None if neither is needed.
    """
    if not (options.acts_on_evaluations or args.metric_for_best_model):
        return None
    if not splits:
        raise AlignAttnError("selecting the best checkpoint needs evaluation rows: give --validation_file")
    if TEST in splits and PartialState().is_main_process:
        print(
            "the test rows select the model, so its scores on them are too high: give other rows to evaluate on",
            file=sys.stderr,
        )
    default = task.main_metric if options.acts_on_evaluations else args.metric_for_best_model
    asked = str(options.metric_for_best_model or default)

    # A metric has the name of its split, if there are several.
    names, of_a_split = [], ("loss", *task.measured)
    measured = of_a_split if len(splits) == 1 else [f"{split}_{name}" for split in splits for name in of_a_split]
    for name in (part.removeprefix(EVALUATION) for part in asked.split(AND)):
        names.append(f"{splits[0]}_{name}" if len(splits) > 1 and name in of_a_split else name)
        if names[-1] not in measured:
            raise AlignAttnError(
                f"--metric_for_best_model {names[-1]!r} is not measured: choose one of {', '.join(measured)}"
            )
    args.metric_for_best_model = AND.join(names)
    args.greater_is_better = options.greater_is_better
    if len(names) > 1 and args.greater_is_better is not None:
        raise AlignAttnError(f"--greater_is_better applies to one metric, and {asked!r} names several: leave it out")
    if args.greater_is_better is None:
        args.greater_is_better = not metric_of(names[0]).lower_is_better
    if options.lr_scheduler_type in (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY):
        if len(names) > 1:
            raise AlignAttnError(
                f"--lr_scheduler_type {options.lr_scheduler_type} follows one metric, and {asked!r} names several: "
                "give one of them"
            )
        # Both schedulers minimise by default.
        given: Any = args.lr_scheduler_kwargs or {}
        args.lr_scheduler_kwargs = {"mode": "max" if args.greater_is_better else "min"} | given

    patience = options.early_stopping_patience
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
