"""How a table reads the results of `alignattn domain-shift`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from alignattn.commands.domain_shift import (
    HELD_OUT,
    OUT_OF_DOMAIN,
    DomainShiftOptions,
    check_folder,
    read_domain_shift,
)
from alignattn.evaluation.calibration.measures import calibration_scores
from alignattn.evaluation.calibration.scaling import apply_temperature
from alignattn.evaluation.statistics.example_scores import ExampleScores
from alignattn.finetuning.examples import (
    mean_predictions,
    metric_examples,
    read_logs,
    read_probabilities,
    read_split,
)
from alignattn.finetuning.run_files import CONFIG_FILE, RUN_FOLDER
from alignattn.reports.result_reader import ResultReader, RunReport, listed
from alignattn.tasks.task import PROBABILITIES
from alignattn.utils.files import read_text

AFTER = "after"
"""Key of the measures after temperature scaling."""


class DomainShiftReader(ResultReader):
    """Reads results of `alignattn domain-shift`."""

    def is_finished(self, folder: Path) -> bool:
        """Return whether there is a result; raises the errors of `read_domain_shift`."""
        return read_domain_shift(folder) is not None

    def check_same(self, options: DomainShiftOptions) -> None:
        """Refuse a folder of another run, as `domain-shift` does."""
        check_folder(options)

    def reason_unsupported(self, options: DomainShiftOptions, needed: None = None) -> str:
        """Return why the model or the training does not support the task; empty if they do."""
        return options.reason_unsupported(options.task)

    def report(self, folder: Path) -> RunReport:
        """Return the results of a finished run."""
        result = read_domain_shift(folder)
        assert result is not None
        sides = result.sides.values()
        facts = {
            "seed": str(result.seed),
            "trained on": ", ".join(f"{side.train_rows} rows of {side.task}" for side in sides if side.train_rows),
            "evaluated on": ", ".join(f"{side.held_out_rows} rows of {side.task} {side.split}" for side in sides),
            "temperature": f"{result.temperature:.3f}",
            "hardware": result.device,
            "versions": listed(result.versions),
        }
        scores = {
            f"{name} {figure}": f"{estimate.value:.4f}"
            for name, side in result.sides.items()
            for figure, estimate in side.figures["before"].items()
        }
        return RunReport(
            numbers=asdict(result),
            facts=facts,
            scores=scores,
            config=read_text(folder / CONFIG_FILE),
            log_history=read_logs(folder / RUN_FOLDER),
            probabilities=read_probabilities(folder, f"{OUT_OF_DOMAIN}-{HELD_OUT}"),
        )

    def examples(self, folder: Path, path: Sequence[str]) -> ExampleScores | None:
        """Return the scores of the held-out rows behind the number at `path`, before or after temperature scaling.

        A number of both sides, such as `shift_auroc`, has none.
        """
        match path:
            case ["sides", side, "figures", state, figure, "value"]:
                result = read_domain_shift(folder)
                assert result is not None
                rows = read_split(folder, f"{side}-{HELD_OUT}")
                return _scores(rows, figure, result.temperature if state == AFTER else None)
        return None

    def share_rows(self, numbers: Mapping[str, Any], path: Sequence[str]) -> int | None:
        """Return the number of held-out rows for an accuracy."""
        match path:
            case ["sides", side, "figures", _, "accuracy", "value"]:
                return int(numbers["sides"][side]["held_out_rows"])
        return None

    def reason_no_ensemble(self, path: Sequence[str]) -> str:
        """Return why there is no ensemble of a number after temperature scaling; empty before it."""
        return "an ensemble has no temperature of its own" if AFTER in path else ""

    def ensemble(self, folders: Sequence[Path], path: Sequence[str]) -> ExampleScores | None:
        """Return the scores of the held-out rows for the mean of the runs' predictions, before temperature scaling."""
        match path:
            case ["sides", side, "figures", _, figure, "value"]:
                splits = [read_split(folder, f"{side}-{HELD_OUT}") for folder in folders]
                return _scores(mean_predictions(splits), figure)
        return None


def _scores(rows: Any, figure: str, temperature: float | None = None) -> ExampleScores | None:
    if figure == "accuracy":
        return metric_examples(figure, rows)
    if figure != "expected_calibration_error":
        return None
    probabilities = np.stack(rows[PROBABILITIES].to_numpy())
    scaled = probabilities if temperature is None else apply_temperature(probabilities, temperature)
    return calibration_scores(scaled, rows["label"].to_numpy())
