"""How a table reads the results of `alignattn benchmark`."""

import csv
from pathlib import Path
from typing import Any

from alignattn.commands.benchmark import BENCHMARK_FILES, RATIOS_FILE, SUMMARY_FILE
from alignattn.reports.result_reader import ResultReader, RunReport
from alignattn.utils.errors import AlignAttnError

NUMBERS = ("parameters", "median_seconds", "ratio_median", "peak_mib")
FACTS = ("machine", "device", "threads", "load_average", "dtype", "dropout", "repeats", "torch")
COLUMNS = frozenset({"attention", "phase", "batch", "length", *NUMBERS, *FACTS})


class BenchmarkReader(ResultReader):
    """Reads results of `alignattn benchmark`, one run of which measures all attentions."""

    def clear_unfinished(self, folder: Path) -> None:
        """Remove the files of a benchmark that was ended early: it would not write over them, nor go on from them."""
        for name in BENCHMARK_FILES:
            (folder / name).unlink(missing_ok=True)

    def is_finished(self, folder: Path) -> bool:
        """Return whether the picture of ratios is there: the CSV files are written as the run goes on."""
        return (folder / SUMMARY_FILE).is_file() and (folder / RATIOS_FILE).is_file()

    def report(self, folder: Path) -> RunReport:
        """Return what a finished run tells: the columns of `benchmark.csv` by attention and phase."""
        lines = _read_summary(folder / SUMMARY_FILE)
        if len({(line["batch"], line["length"]) for line in lines}) > 1:
            raise AlignAttnError(
                "the benchmark measured several shapes, and a table has room for one: give one --shapes"
            )
        numbers: dict[str, dict[str, dict[str, Any]]] = {}
        for line in lines:
            numbers.setdefault(line["attention"], {})[line["phase"]] = {name: float(line[name]) for name in NUMBERS}
        ratios = {f"{line['attention']} {line['phase']}": float(line["ratio_median"]) for line in lines}
        return RunReport(
            numbers=numbers,
            facts={name.replace("_", " "): lines[0][name] for name in FACTS},
            scores={f"{name}, times soft": f"{ratio:.3f}" for name, ratio in ratios.items()},
        )


def _read_summary(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        if not lines or not lines[0].keys() >= COLUMNS:
            raise ValueError("columns are missing")
    except (OSError, ValueError, csv.Error) as error:
        raise AlignAttnError(f"{path} is damaged or of another version: move its folder away") from error
    return lines
