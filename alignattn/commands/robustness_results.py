"""How a table reads the results of `alignattn robustness`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from alignattn.evaluation.statistics.example_scores import ExampleScores, ratio_scores
from alignattn.finetuning.options import RunOptions
from alignattn.reports.result_reader import ResultReader, RunReport, percent
from alignattn.robustness.records import RECORDS_SUFFIX, AttackRun, read_run
from alignattn.robustness.summary import SHARES_OF_ROWS, TABLE_NAME, AttackSummary
from alignattn.training.methods import prediction_method
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.json_records import read_record


@dataclass(frozen=True)
class _AttackTable:
    """The fields read from a table of attacks."""

    summaries: tuple[AttackSummary]


@dataclass(frozen=True)
class _TablesFile:
    """The content of `robustness.json`; for one run, one table with one summary."""

    tables: tuple[_AttackTable]


class RobustnessReader(ResultReader):
    """Reads attacks of `alignattn robustness` on the run of a `finetune`."""

    def is_finished(self, folder: Path) -> bool:
        """Return whether the table exists, which is written after all attacks."""
        return _attacked(folder) is not None

    def report(self, folder: Path) -> RunReport:
        """Return the results of a finished run."""
        summary = _summary(folder)
        settings, numbers = summary.settings, asdict(summary)
        attacked = summary.failed + summary.succeeded
        facts = {
            "attacked": f"{attacked} rows of {settings.split}, {summary.skipped} skipped",
            "changing": " and ".join(settings.attack_columns),
            **{name.replace("_", " "): resource for name, resource in settings.resources.items()},
        }
        return RunReport(
            numbers=numbers,
            facts=facts,
            scores={name: percent(numbers[name]) for name in SHARES_OF_ROWS if numbers[name] is not None},
            config=yaml.safe_dump({name: value for name, value in numbers["settings"].items() if name != "resources"}),
        )

    def reason_unsupported(self, options: Any, needed: RunOptions | None = None) -> str:
        """Return why a run cannot be attacked: its saved model alone does not predict as the run did."""
        method = None if needed is None else prediction_method(needed.training)
        return (
            "" if method is None else f"--{method.switch} is not part of a saved model, and attacks need a saved model"
        )

    def share_rows(self, numbers: Mapping[str, Any], path: Sequence[str]) -> int | None:
        """Return the number of rows without errors for an accuracy, before or under attack."""
        if tuple(path) not in (("accuracy_before",), ("accuracy_under_attack",)):
            return None
        return sum(int(numbers[outcome]) for outcome in ("failed", "succeeded", "skipped")) - int(numbers["errors"])

    def reason_no_ensemble(self, path: Sequence[str]) -> str:
        """Return the reason: attacks need one model."""
        return "attacks need one saved model, and an ensemble is several"

    def examples(self, folder: Path, path: Sequence[str]) -> ExampleScores | None:
        """Return the attacked rows."""
        return _attack_examples(_read_attacks(folder)) if tuple(path) == ("failed_share",) else None


def _attacked(folder: Path) -> _TablesFile | None:
    return read_record(folder / f"{TABLE_NAME}.json", _TablesFile, "attack")


def _summary(folder: Path) -> AttackSummary:
    attacked = _attacked(folder)
    assert attacked is not None
    return attacked.tables[0].summaries[0]


def _read_attacks(folder: Path) -> AttackRun:
    found = list(folder.glob(f"*/{_summary(folder).settings.recipe}{RECORDS_SUFFIX}"))
    if len(found) != 1:
        raise AlignAttnError(
            f"{folder} holds {len(found)} files of records instead of one: move it away to attack again"
        )
    return read_run(found[0])


def _attack_examples(run: AttackRun) -> ExampleScores:
    """Return the row scores of the share of failed attacks, over all rows; rows without an attack have weight 0."""
    rows = np.array(run.header.usable_rows)
    failed, attacked = np.zeros((2, len(rows)))
    for record in run.records:
        place = np.searchsorted(rows, record.index)
        failed[place] = record.outcome == "failed"
        attacked[place] = record.outcome != "skipped"
    return ratio_scores(rows, failed, attacked)
