"""`alignattn robustness` as a filler of tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from alignattn.commands.reproduce.examples import attack_examples
from alignattn.commands.reproduce.experiment import Experiment
from alignattn.commands.reproduce.fillers.files import option_names, percent
from alignattn.commands.reproduce.fillers.filler import OWN_FOLDER, Command, RunReport
from alignattn.commands.reproduce.fillers.finetune import Finetune
from alignattn.commands.robustness.command import RobustnessArguments
from alignattn.robustness.record_files import RECORDS_SUFFIX, read_run
from alignattn.robustness.records import AttackRun
from alignattn.robustness.summary import TABLE_NAME
from alignattn.statistics.example_scores import ExampleScores
from alignattn.support.errors import AlignAttnError
from alignattn.support.json_records import read_record


@dataclass(frozen=True)
class Attacked:
    """What a table of attacks holds that a filler reads."""

    summaries: list[dict[str, Any]]


@dataclass(frozen=True)
class AttackedTables:
    """What `robustness.json` holds; of one experiment it is one table of one summary."""

    tables: list[Attacked]


class Robustness(Command):
    """`alignattn robustness`, on the run of a `finetune`."""

    name = "robustness"
    needs = Finetune()

    @cached_property
    def options(self) -> frozenset[str]:
        """The options that it may be given."""
        return option_names(RobustnessArguments) - {OWN_FOLDER, "run", "model", "task", "seed", "shard", "merge"}

    def argv(self, experiment: Experiment, folder: Path, needed: Path | None) -> list[str]:
        """Return the words after the command's name."""
        return ["--run", str(needed), *super().argv(experiment, folder, needed)]

    def is_finished(self, folder: Path) -> bool:
        """Return whether the table is there, which is written after all attacks."""
        return (folder / f"{TABLE_NAME}.json").is_file()

    def numbers(self, folder: Path) -> Mapping[str, Any]:
        """Return the fields of the one summary."""
        return self._summary(folder)

    def examples(self, folder: Path, path: Sequence[str]) -> ExampleScores | None:
        """Return the attacked rows."""
        return attack_examples(self._run(folder)) if tuple(path) == ("failed_share",) else None

    def report(self, folder: Path) -> RunReport:
        """Return what is to be told of a finished run."""
        summary = self._summary(folder)
        settings = summary["settings"]
        attacked = summary["failed"] + summary["succeeded"]
        facts = {
            "attacked": f"{attacked} rows of {settings['split']}, {summary['skipped']} skipped",
            "changing": " and ".join(settings["attack_columns"]),
            **{name.replace("_", " "): resource for name, resource in settings["resources"].items()},
        }
        options = yaml.safe_dump({name: value for name, value in settings.items() if name != "resources"})
        names = ("failed_share", "failed_share_of_all", "accuracy_before", "accuracy_under_attack")
        scores = {name: percent(summary[name]) for name in names if summary[name] is not None}
        return RunReport(facts, scores, options)

    def _summary(self, folder: Path) -> dict[str, Any]:
        attacked = read_record(folder / f"{TABLE_NAME}.json", AttackedTables, "attack")
        assert attacked is not None
        return attacked.tables[0].summaries[0]

    def _run(self, folder: Path) -> AttackRun:
        found = list(folder.glob(f"*/{self._summary(folder)['settings']['recipe']}{RECORDS_SUFFIX}"))
        if len(found) != 1:
            raise AlignAttnError(f"{folder} holds {len(found)} files of records, not one: move it away to attack again")
        return read_run(found[0])
