"""`alignattn domain-shift` as a filler of tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from alignattn.commands.domain_shift import COMMAND, OPTIONS_OF_THE_PAIR, DomainShiftOptions
from alignattn.commands.domain_shift.command import (
    HELD_OUT,
    RUN_FOLDER,
    check_folder,
)
from alignattn.commands.domain_shift.report import OUT_OF_DOMAIN, read_domain_shift
from alignattn.commands.reproduce.examples import calibration_examples, metric_examples
from alignattn.commands.reproduce.fillers.files import (
    config,
    listed,
    log_history,
    option_names,
    predictions,
    probabilities,
)
from alignattn.commands.reproduce.fillers.filler import Command, RunReport
from alignattn.commands.reproduce.fillers.finetune import Finetune
from alignattn.statistics.example_scores import ExampleScores


class DomainShift(Command):
    """`alignattn domain-shift`."""

    name = "domain-shift"

    @cached_property
    def options(self) -> frozenset[str]:
        """The options that it may be given."""
        return (Finetune().options | option_names(DomainShiftOptions)) - set(OPTIONS_OF_THE_PAIR)

    def is_finished(self, folder: Path) -> bool:
        """Return whether there is a result; raises as `read_domain_shift` does."""
        return read_domain_shift(folder) is not None

    def check_same(self, argv: Sequence[str]) -> None:
        """Raise as `domain-shift` does of a folder of another run."""
        check_folder(COMMAND.parse(argv))

    def numbers(self, folder: Path) -> Mapping[str, Any]:
        """Return the result's fields."""
        result = read_domain_shift(folder)
        assert result is not None
        return asdict(result)

    def examples(self, folder: Path, path: Sequence[str]) -> ExampleScores | None:
        """Return the held-out rows of the side that `path` leads to, before temperature scaling."""
        _, side, _, state, figure, _ = path
        if state != "before":
            return None
        rows = predictions(folder, f"{side}-{HELD_OUT}")
        return calibration_examples(rows) if figure != "accuracy" else metric_examples(figure, rows)

    def report(self, folder: Path) -> RunReport:
        """Return what is to be told of a finished run."""
        result = read_domain_shift(folder)
        assert result is not None
        facts = {
            "seed": str(result.seed),
            "trained on": ", ".join(
                f"{side.train_rows} rows of {side.task}" for side in result.sides.values() if side.train_rows
            ),
            "evaluated on": ", ".join(
                f"{side.held_out_rows} rows of {side.task} {side.split}" for side in result.sides.values()
            ),
            "temperature": f"{result.temperature:.3f}",
            "hardware": result.device,
            "versions": listed(result.versions),
        }
        scores = {
            f"{name} {figure}": f"{estimate.value:.4f}"
            for name, side in result.sides.items()
            for figure, estimate in side.figures["before"].items()
        }
        shown = f"{OUT_OF_DOMAIN}-{HELD_OUT}"
        return RunReport(facts, scores, config(folder), log_history(folder / RUN_FOLDER), probabilities(folder, shown))
