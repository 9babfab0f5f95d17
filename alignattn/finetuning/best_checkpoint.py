"""Early stopping and the best checkpoint as options: what they imply, and what of them cannot be. Knows no torch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from alignattn.finetuning.training_options import LOGGING_STEPS
from alignattn.utils.errors import AlignAttnError

if TYPE_CHECKING:
    from alignattn.finetuning.options import RunOptions
    from alignattn.finetuning.training_options import TrainingOptions

NEVER, AT_STEPS, AT_THE_BEST = "no", "steps", "best"
"""Values of `--eval_strategy` and `--save_strategy`."""

OF_THE_TRAINER = "eval_"
"""Prefix of transformers' names of metrics."""
AND = "+"
"""Separator of metrics that select together."""

PATIENCE, LOADING = "early_stopping_patience", "load_best_model_at_end"


def implied_by_choice(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a run that stops early or keeps its best: what it evaluates it saves, each epoch.

    Args:
        values: the options that are given, by name.
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
    """Return whether options ask for checkpoints that a finished run is to have beside its model.

    Args:
        values: the options that are given, by name.
    """
    asks_for_several = (values.get("save_total_limit") or 1) > 1
    asks_for_the_best = values.get("save_strategy") == AT_THE_BEST or values.get("metric_for_best_model") is not None
    loads = values.get(LOADING, values.get(PATIENCE) is not None)
    return asks_for_several or bool(values.get("save_only_model")) or (asks_for_the_best and not loads)


def check_choice(options: "RunOptions") -> None:
    """Refuse to stop early, or to load the best, where nothing is measured or saved to choose by."""
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
