"""How a table reads the results of `alignattn benchmark`."""

from pathlib import Path
from typing import Any

import pandas as pd

from alignattn.commands.benchmark import SUMMARY_FILE
from alignattn.reports.result_reader import ResultReader, RunReport
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import UNFINISHED_FILE

NUMBERS = ["parameters", "median_seconds", "ratio_median", "peak_mib"]
FACTS = ["machine", "device", "threads", "load_average", "dtype", "dropout", "repeats", "torch"]


class BenchmarkReader(ResultReader):
    """Reader of the results of `alignattn benchmark`; each run measures all attentions."""

    def is_finished(self, folder: Path) -> bool:
        """Return whether all shapes are measured: the CSV files are already written during the run."""
        return (folder / SUMMARY_FILE).is_file() and not (folder / UNFINISHED_FILE).exists()

    def report(self, folder: Path) -> RunReport:
        """Return the results of a finished run: the columns of `benchmark.csv` by attention and phase."""
        path = folder / SUMMARY_FILE
        try:
            frame = pd.read_csv(path, dtype=dict.fromkeys(FACTS, str)).astype(dict.fromkeys(NUMBERS, float))
            columns = frame[["attention", "phase", "batch", "length", *NUMBERS, *FACTS]]
            if columns[NUMBERS].isna().any(axis=None):
                raise ValueError("numbers are missing")
            facts = {name.replace("_", " "): str(columns[name].iloc[0]) for name in FACTS}
        except (OSError, ValueError, LookupError) as error:
            raise AlignAttnError(f"{path} is damaged or of another version: move its folder away") from error
        if len(columns[["batch", "length"]].drop_duplicates()) > 1:
            raise AlignAttnError("the benchmark measured several shapes, and a table shows one: give one --shapes")
        numbers: dict[str, dict[str, dict[str, Any]]] = {}
        for line in columns.to_dict("records"):
            numbers.setdefault(line["attention"], {})[line["phase"]] = {name: line[name] for name in NUMBERS}
        scores = {
            f"{attention} {phase}, times soft": f"{values['ratio_median']:.3f}"
            for attention, phases in numbers.items()
            for phase, values in phases.items()
        }
        return RunReport(numbers=numbers, facts=facts, scores=scores)
