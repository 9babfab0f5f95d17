"""`alignattn benchmark` as a filler of tables."""

import csv
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from alignattn.errors import AlignAttnError
from alignattn.experiments.tables.commands.command import OWN_FOLDER, Command, RunReport
from alignattn.experiments.tables.commands.files import option_names
from alignattn.experiments.tables.experiment import Experiment


class Benchmark(Command):
    """`alignattn benchmark`: one run measures all attentions, so nothing is repeated with another seed."""

    name = "benchmark"

    @cached_property
    def options(self) -> frozenset[str]:
        """The options that it may be given."""
        from alignattn.experiments.benchmark import BenchmarkArguments

        return option_names(BenchmarkArguments) - {OWN_FOLDER}

    def experiments(self, options: Mapping[str, Any], seeds: Sequence[int]) -> list[Experiment]:
        """Return the one run."""
        return [Experiment(self.name, self._own(options))]

    def is_finished(self, folder: Path) -> bool:
        """Return whether the last picture is there: the CSV files are written as the run goes on."""
        from alignattn.experiments.benchmark_report import RATIOS_FILE, SUMMARY_FILE

        return (folder / SUMMARY_FILE).is_file() and (folder / RATIOS_FILE).is_file()

    def numbers(self, folder: Path) -> Mapping[str, Any]:
        """Return the columns of `benchmark.csv` by attention and phase."""
        lines = self._lines(folder)
        numbers: dict[str, dict[str, dict[str, Any]]] = {}
        for line in lines:
            numbers.setdefault(line["attention"], {})[line["phase"]] = {
                name: float(line[name]) for name in ("parameters", "median_seconds", "ratio_median", "peak_mib")
            }
        return numbers

    def report(self, folder: Path) -> RunReport:
        """Return what is to be told of a finished run."""
        lines = self._lines(folder)
        names = ("machine", "device", "threads", "load_average", "dtype", "dropout", "repeats", "torch")
        facts = {name.replace("_", " "): lines[0][name] for name in names}
        scores = {
            f"{line['attention']} {line['phase']}, times soft": f"{float(line['ratio_median']):.3f}" for line in lines
        }
        return RunReport(facts, scores)

    def _lines(self, folder: Path) -> list[dict[str, str]]:
        from alignattn.experiments.benchmark_report import SUMMARY_FILE

        path = folder / SUMMARY_FILE
        try:
            with path.open(newline="", encoding="utf-8") as file:
                lines = list(csv.DictReader(file))
            if not lines or "parameters" not in lines[0]:
                raise ValueError("columns are missing")
        except (ValueError, csv.Error) as error:
            raise AlignAttnError(f"{path} is damaged or of another version: move its folder away") from error
        return lines
