"""`alignattn domain-shift`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from alignattn.commands.domain_shift.pair import parse_pair
from alignattn.finetuning.best_checkpoint import LOADING, PATIENCE
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.training_options import PUSH_OPTIONS
from alignattn.models import AT_RANDOM, SAMPLING_OPTION
from alignattn.tasks import LabelledTask
from alignattn.utils.command import Command, TableResults
from alignattn.utils.option import REQUIRED, option

SHIFT = "shift"
"""Group in the help."""

HIDDEN = frozenset(
    {
        *("task", "train_file", "validation_file", "validation_share", "encoding", "features", "evaluation_splits"),
        *("text_columns", "tokens_column", "image_column", "label_column", PATIENCE, LOADING),
    }
)
"""Options of `finetune` that choose the rows, as --pair does here, or that select a checkpoint by evaluation rows."""

LENGTHS: Mapping[str, Any] = {"num_train_epochs": 3.0, "max_length": 256}
PUBLISHED_TRAINING: Mapping[str, Mapping[str, Any]] = {
    "bert-base-uncased": {"learning_rate": 2e-5, "per_device_train_batch_size": 16, "weight_decay": 0.0, **LENGTHS},
    "roberta-base": {"learning_rate": 1e-5, "per_device_train_batch_size": 32, "weight_decay": 0.1, **LENGTHS},
}
"""The training settings of Desai & Durrett 2020, by base model."""

PAIR_HELP = f"Two tasks with the same labels; {' and '.join(PUBLISHED_TRAINING)} train as in Desai & Durrett (2020)."


@dataclass(frozen=True, kw_only=True)
class DomainShiftOptions(RunOptions):
    """The options of `alignattn domain-shift`: those of `finetune`, and the pair."""

    hidden = HIDDEN
    pair: str = option(REQUIRED, PAIR_HELP, group=SHIFT, metavar="TASK-TASK")
    stratify: bool = option(False, "Split the development sets in half within each class.", group=SHIFT)

    @cached_property
    def task(self) -> LabelledTask:
        """The in-domain task."""
        return self.tasks[0]

    @cached_property
    def tasks(self) -> tuple[LabelledTask, LabelledTask]:
        """The in-domain and the out-of-domain task."""
        return parse_pair(self.pair)

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the published training options of the model, by the last part of its path or Hub id."""
        published = PUBLISHED_TRAINING.get(Path(str(values.get("model"))).name.lower(), {})
        order = {SAMPLING_OPTION: AT_RANDOM} if published else {}
        return {**super().implied(values), **order, **published}


COMMAND = Command(
    "domain-shift",
    "fine-tune on one task, and report accuracy and calibration on it and on another",
    DomainShiftOptions,
    run="alignattn.commands.domain_shift.command:domain_shift",
    results=TableResults(
        withheld=("seeds", "resume_from_checkpoint", *PUSH_OPTIONS),
        check_folder="alignattn.commands.domain_shift.command:check_folder",
    ),
    shares_folder=True,
    examples=("alignattn domain-shift --pair snli-mnli --model bert-base-uncased --output_dir runs/snli-mnli",),
)
