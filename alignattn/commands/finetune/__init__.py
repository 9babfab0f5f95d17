"""`alignattn finetune`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from alignattn.commands.finetune.space import DEFAULT_SPACE, Range, parse_space
from alignattn.finetuning.best_checkpoint import AND
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.training_options import PUSH_OPTIONS
from alignattn.utils.command import Command, TableResults
from alignattn.utils.errors import AlignAttnError, check_installed
from alignattn.utils.option import Count, option
from alignattn.utils.options import options_of, resolve

SEARCH = "search"
"""Group in the help."""

SEARCH_OPTIONS = ("hyperparameter_search", "search_space")
MAX_TRIALS = 100_000
LOSS = "loss"
"""Suffix of the names of logged losses, which are not scores."""
SPACE_HELP = f"Ranges to search; other options stay fixed (default: {' '.join(DEFAULT_SPACE)})."


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(RunOptions):
    """The options of `alignattn finetune`: those of a run, and of a hyperparameter search."""

    hyperparameter_search: Count | None = option(
        None,
        "Search with N trials, each a run in DIR/trial-N.",
        group=SEARCH,
        high=MAX_TRIALS,
        excludes={
            "seeds": "each trial has one seed",
            "resume_from_checkpoint": "a search resumes on its own",
            "push_to_hub": "push the best run after the search",
        },
        rare=True,
    )
    search_space: tuple[str, ...] | None = option(
        None,
        SPACE_HELP,
        group=SEARCH,
        metavar="NAME=LOW:HIGH[:log]",
        requires=("hyperparameter_search",),
        rare=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hyperparameter_search is None:
            return
        if not self.data.has_evaluation_rows:
            raise AlignAttnError(
                "--hyperparameter_search needs evaluation rows: give --validation_file, or --validation_share 0.1"
            )
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise AlignAttnError("--hyperparameter_search runs in one process: leave torchrun out")
        if str(self.training.metric_for_best_model).endswith(LOSS):
            raise AlignAttnError(
                f"--metric_for_best_model {self.training.metric_for_best_model}: a search needs a score of the "
                "results, not a loss: give one such as accuracy"
            )
        if AND in str(self.training.metric_for_best_model):
            raise AlignAttnError(
                f"--metric_for_best_model {self.training.metric_for_best_model}: a search ranks its trials by one "
                "score: give one of them"
            )
        check_installed("optuna", "search", "--hyperparameter_search")
        if not self.space:
            raise AlignAttnError(
                "--hyperparameter_search: the search space is empty, because the default options are given or "
                "have no effect here: give --search_space"
            )

        # Report ranges with invalid values before the first trial.
        for end in ("low", "high"):
            self.run(**{name: getattr(values, end) for name, values in self.space.items()})

    @property
    def makes_several(self) -> bool:
        """Whether the call makes several runs: seeds, or trials of a search."""
        return self.hyperparameter_search is not None or super().makes_several

    @cached_property
    def space(self) -> Mapping[str, Range]:
        """The ranges to search, by option; by default those of `DEFAULT_SPACE` whose options have an effect here.

        A default range is left out if its option is given.
        """
        space = parse_space(self.search_space or DEFAULT_SPACE)
        if self.search_space is None:
            return {name: values for name, values in space.items() if not self._is_settled(name)}
        known = options_of(type(self))
        for name in space:
            if name in known and self.values[name] != known[name].default:
                raise AlignAttnError(f"--{name} is given, but --search_space searches it: leave one of them out")
        return space

    def _is_settled(self, name: str) -> bool:
        """Whether an option is given, or has no effect in this run."""
        return name in self.unused() or self.values[name] != options_of(type(self))[name].default

    def run(self, **values: Any) -> RunOptions:
        """Return the options of one run, with some of them replaced."""
        changed = self.values | values
        return resolve(RunOptions, {name: value for name, value in changed.items() if name not in SEARCH_OPTIONS})


COMMAND = Command(
    "finetune",
    "fine-tune a pretrained encoder on a task, with or without alignment attention",
    FinetuneOptions,
    run="alignattn.commands.finetune.command:finetune",
    results=TableResults(
        withheld=("seeds", "resume_from_checkpoint", *PUSH_OPTIONS, *SEARCH_OPTIONS),
        check_folder="alignattn.finetuning.resuming:check_output_dir",
    ),
    shares_folder=True,
    examples=(
        "alignattn finetune --model albert-base-v2 --task mrpc --output_dir runs/mrpc",
        "alignattn finetune --config configs/albert-rte.yaml --seeds 1 2 3 --output_dir runs/rte",
        "alignattn finetune --model DIR --train_file rows.csv --text_columns a b --output_dir runs/own",
    ),
)
