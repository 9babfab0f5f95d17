"""`alignattn finetune`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from alignattn.commands.finetune.space import DEFAULT_SPACE, Range, parse_space
from alignattn.finetuning.idle_options import idle_options
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.training_options import PUSH_OPTIONS
from alignattn.utils.command import Command, TableResults
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.option import option
from alignattn.utils.options import options_of

SEARCH = "search"
"""Group in the help."""

SEARCH_OPTIONS = ("hyperparameter_search", "search_space")
MAX_TRIALS = 100_000
LOSS = "loss"
"""How the name ends of what is no score."""
SPACE_HELP = (
    f"Ranges of it, and what it does not name is held (default: {' '.join(DEFAULT_SPACE)}, of those not given)."
)


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(RunOptions):
    """The options of `alignattn finetune`: those of a run, and of a search among runs."""

    hyperparameter_search: int | None = option(
        None, "Trials: runs with other values each, in DIR/trial-N.", group=SEARCH, low=1, high=MAX_TRIALS, rare=True
    )
    search_space: tuple[str, ...] | None = option(
        None, SPACE_HELP, group=SEARCH, metavar="NAME=LOW:HIGH[:log]", rare=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hyperparameter_search is None:
            if self.search_space is not None:
                raise AlignAttnError("--search_space is for --hyperparameter_search N: give that as well")
            return
        for name in ("seeds", "resume_from_checkpoint"):
            if getattr(self.training, name) is not None:
                raise AlignAttnError(f"--{name} beside --hyperparameter_search: leave one of them out")
        if self.training.push_to_hub:
            raise AlignAttnError("--push_to_hub beside --hyperparameter_search: search first, and push the best run")
        if not self.data.has_evaluation_rows:
            raise AlignAttnError(
                "--hyperparameter_search chooses by evaluation rows: give --validation_file, or --validation_share 0.1"
            )
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise AlignAttnError("--hyperparameter_search runs in one process: leave torchrun out")
        if str(self.training.metric_for_best_model).endswith(LOSS):
            raise AlignAttnError(
                f"--metric_for_best_model {self.training.metric_for_best_model}: a search chooses by the scores of the "
                "results, among which is no loss: give one of them, as accuracy"
            )
        if find_spec("optuna") is None:
            raise AlignAttnError("--hyperparameter_search needs optuna: pip install 'alignattn[search]'")
        if not self.space:
            raise AlignAttnError(
                "--hyperparameter_search: the search space is empty, what would be searched is given or does nothing "
                "here: give another as --search_space"
            )

        # What a trial cannot have is to be said before the first of them.
        for end in ("low", "high"):
            self.run(**{name: getattr(values, end) for name, values in self.space.items()})

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a run's options imply, and of a search the default ranges of what was not given."""
        implied = dict(super().implied(values))
        if values.get("hyperparameter_search") is not None:
            free = (entry for entry in DEFAULT_SPACE if values.get(entry.partition("=")[0]) is None)
            implied["search_space"] = tuple(free)
        return implied

    def check_use(self, given: Mapping[str, Any]) -> None:
        """Refuse given options that would do nothing."""
        super().check_use({name: value for name, value in given.items() if name not in SEARCH_OPTIONS})
        named = parse_space(given.get("search_space") or ())
        for name in named:
            if name in given:
                raise AlignAttnError(f"--{name} is given, and --search_space searches it: leave one of them out")
        self.run().check_use({name: values.low for name, values in named.items()})

    @cached_property
    def space(self) -> Mapping[str, Range]:
        """What is searched, by the option's name: nothing that does nothing beside the others."""
        space = parse_space(self.search_space or ())
        idle = {name for name, _ in idle_options(self, {name: values.low for name, values in space.items()})}
        return {name: values for name, values in space.items() if name not in idle}

    def run(self, **values: Any) -> RunOptions:
        """Return the options of one run, with some of them replaced."""
        groups = {name: getattr(self, name) for name in ("model", "data", "training")}
        changed = {
            name: replace(group, **{key: value for key, value in values.items() if key in options_of(type(group))})
            for name, group in groups.items()
        }
        return RunOptions(**changed)


COMMAND = Command(
    "finetune",
    "fine-tune a pretrained encoder on a task, with or without alignment attention",
    FinetuneOptions,
    run="alignattn.commands.finetune.command:finetune",
    results=TableResults(
        "alignattn.commands.finetune.result_reader:FinetuneReader",
        withheld=("seeds", "resume_from_checkpoint", *PUSH_OPTIONS, *SEARCH_OPTIONS),
    ),
    shares_folder=True,
    examples=(
        "alignattn finetune --model albert-base-v2 --task mrpc --output_dir runs/mrpc",
        "alignattn finetune --config configs/albert-rte.yaml --seeds 1 2 3 --output_dir runs/rte",
        "alignattn finetune --model DIR --train_file rows.csv --text_columns a b --output_dir runs/own",
    ),
)
