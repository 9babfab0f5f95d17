"""Resuming a run: from a folder of the same run, and a complete checkpoint of the same model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import CONFIG_NAME
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.run_files import CONFIG_FILE, is_begun
from alignattn.finetuning.run_folder import (
    ANOTHER_FOLDER,
    check_same_data,
    check_same_task,
    compared_by_content,
)
from alignattn.patching import CHILD_NAME
from alignattn.patching.checkpoint_files import BASE_MODEL_FIELD, adapter_contents
from alignattn.patching.saving import restored_fields
from alignattn.training.checkpoints import damaged_file, last_whole_checkpoint, read_state, step_of
from alignattn.training.meter import LossMeter
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import parse_json, read_json, read_yaml

OF_A_FILE = frozenset(
    {"architectures", "attn_implementation", "dtype", "problem_type", "transformers_version", "use_cache"}
)
"""Fields of a saved config that describe its training and saving, not the model."""

OF_AN_ADAPTER_FILE = frozenset({"auto_mapping", "inference_mode", "peft_version", "revision", "runtime_config"})
"""Likewise for the config of an adapter."""

NEWEST_CHECKPOINT = (None, True, "True", "true", "last")
"""Values of `--resume_from_checkpoint` that mean the latest checkpoint."""


def check_output_dir(options: RunOptions) -> None:
    """Refuse a folder that holds another run or other files, and a checkpoint of another run."""
    folder = options.output_dir
    given = options.values["resume_from_checkpoint"]
    if str(given).lower() == "false":
        raise AlignAttnError(
            f"--resume_from_checkpoint {given}: a run resumes in its folder; to begin anew, give another --output_dir"
        )
    if given not in NEWEST_CHECKPOINT:
        problem = f"--resume_from_checkpoint {given} is of another run"
        _check_same_run(options, Path(str(given)).absolute().parent, problem, "give another --resume_from_checkpoint")
    if not folder.exists():
        return
    # A run that failed before its first checkpoint left nothing to lose.
    if folder.is_dir() and not is_begun(folder):
        check_same_task(options, folder)
        return
    if not (folder / CONFIG_FILE).is_file():
        raise AlignAttnError(f"{folder} exists and is not a run of alignattn: give another --output_dir")
    _check_same_run(options, folder, f"{folder} already holds another run", ANOTHER_FOLDER)


def _check_same_run(options: RunOptions, folder: Path, problem: str, advice: str) -> None:
    """Refuse options that define another run than the one in `folder`; files are compared by their content."""
    check_same_task(options, folder, advice)
    config = folder / CONFIG_FILE
    written = read_yaml(config) if config.is_file() else {}
    names = set(options.differences(written)) if written else set()
    if differing := sorted(names - compared_by_content(options, folder)):
        raise AlignAttnError(f"{problem} (different: {', '.join(differing)}): {advice}")
    check_same_data(options, folder, advice)


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
        _check_launch(checkpoint, args)
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
    if model is None:
        return
    if is_of_adapter != hasattr(model, "peft_config"):
        kinds = ("a whole model", "an adapter (--lora_r)")
        reason = f"it has {kinds[is_of_adapter]}, and this run trains {kinds[not is_of_adapter]}"
    else:
        names = _differences_of_adapters(folder, saved, model) if is_of_adapter else _differences(saved, model)
        what = "adapter" if is_of_adapter else "config"
        reason = f"its {what} differs in {', '.join(names)}" if names else ""
    if reason:
        raise AlignAttnError(
            f"{folder} is a checkpoint of another model ({reason}): give another to --resume_from_checkpoint"
        )


@contextmanager
def resume_hint(folder: Path) -> Iterator[None]:
    """On Ctrl-C, report what the folder contains and what the same command will do next."""
    try:
        yield
    except KeyboardInterrupt as stop:
        newest = last_whole_checkpoint(folder)
        after = "begins anew" if newest is None else f"resumes from {newest.name}"
        raise KeyboardInterrupt(f"{folder} has no finished model, and the same command {after}") from stop


def _check_launch(checkpoint: Path, args: TrainingArguments) -> None:
    """Refuse another number of processes or GPUs: with the same options, a step would have another number of rows."""
    state: Any = read_state(checkpoint)
    meter = state.stateful_callbacks.get(LossMeter.__name__, {"attributes": vars(LossMeter())})
    before = meter["attributes"]["num_processes"], state.train_batch_size
    # With `--auto_find_batch_size`, the Trainer takes the batch size of the checkpoint.
    now = args.world_size, state.train_batch_size if args.auto_find_batch_size else args.train_batch_size
    if now != before:
        there, here = (f"{processes} process(es) with batches of {rows} rows" for processes, rows in (before, now))
        raise AlignAttnError(f"{checkpoint} was written by {there}, and this call has {here}: start it as before")


def _differences(theirs: dict[str, Any], model: Any) -> list[str]:
    mine = parse_json(model.config.to_json_string(use_diff=False))
    return sorted(name for name in theirs.keys() & mine.keys() - OF_A_FILE if theirs[name] != mine[name])


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
