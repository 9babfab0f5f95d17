"""`alignattn finetune` as a filler of tables."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from alignattn.commands.finetune import COMMAND
from alignattn.commands.reproduce.examples import metric_examples
from alignattn.commands.reproduce.fillers.files import (
    config,
    listed,
    log_history,
    option_names,
    percent,
    predictions,
    probabilities,
)
from alignattn.commands.reproduce.fillers.filler import OWN_FOLDER, Command, RunReport
from alignattn.runs.options import RunOptions
from alignattn.runs.results import read_result
from alignattn.runs.run import check_output_dir
from alignattn.runs.training_options import HUB_OPTIONS
from alignattn.statistics.example_scores import ExampleScores


class Finetune(Command):
    """`alignattn finetune`."""

    name = "finetune"

    @cached_property
    def options(self) -> frozenset[str]:
        """The options that it may be given."""
        ours = {OWN_FOLDER, "seeds", "resume_from_checkpoint", *HUB_OPTIONS}
        return option_names(RunOptions) - ours

    def is_finished(self, folder: Path) -> bool:
        """Return whether there is a result; raises as `read_result` does."""
        return read_result(folder) is not None

    def check_same(self, argv: Sequence[str]) -> None:
        """Raise as `finetune` does of a folder of another run."""
        check_output_dir(COMMAND.parse(argv))

    def numbers(self, folder: Path) -> Mapping[str, Any]:
        """Return the result's fields."""
        result = read_result(folder)
        assert result is not None
        return result.to_dict()

    def examples(self, folder: Path, path: Sequence[str]) -> ExampleScores | None:
        """Return the rows of the split `path` leads to."""
        _, split, metric = path
        return metric_examples(metric, predictions(folder, split))

    def report(self, folder: Path) -> RunReport:
        """Return what is to be told of a finished run."""
        result = read_result(folder)
        assert result is not None
        facts = {
            "seed": str(result.seed),
            "trained on": f"{result.train_rows} rows",
            "evaluated on": ", ".join(f"{rows} rows of {split}" for split, rows in result.evaluation_rows.items()),
            "training took": f"{result.train_runtime:.0f} s, {result.train_samples_per_second:.1f} rows a second",
            "parameters": f"{result.parameters['total']:,}",
            "hardware": result.device,
            "versions": listed(result.versions),
        }
        scores = {
            f"{split} {name}": percent(value) for split, by in result.metrics.items() for name, value in by.items()
        }
        split = next(iter(result.metrics), None)
        return RunReport(facts, scores, config(folder), log_history(folder), probabilities(folder, split))
