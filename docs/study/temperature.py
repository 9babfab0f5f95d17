"""Compare alignments without a temperature with `soft` and its temperature: `python temperature.py shift.csv`.

A fitted temperature costs no training, so an alignment that helps calibration must also have a lower error than `soft`
with the temperature. The nine comparisons are paired by seed and corrected together.
"""

import sys
from pathlib import Path

import pandas as pd

from alignattn.evaluation.statistics.comparison import Comparison, compare, correct

BASELINE = "soft"
BEFORE, AFTER = "ECE out", "ECE out, after"


def against_temperature(path: Path) -> dict[tuple[str, str], Comparison]:
    """Return the comparison of each alignment with `soft` and its temperature, by pair and row."""
    table = pd.read_csv(path).set_index(["column", "row", "measure"])["values"]
    pairs = [(column, row) for column, row, measure in table.index if measure == BEFORE and row != BASELINE]

    def values(column: str, row: str, measure: str) -> list[float]:
        return [float(value) for value in table[column, row, measure].split()]

    compared = [
        compare(values(column, row, BEFORE), values(column, BASELINE, AFTER), family_size=len(pairs))
        for column, row in pairs
    ]
    return {pair: one for pair, one in zip(pairs, correct(compared), strict=True) if one is not None}


if __name__ == "__main__":
    for (column, row), one in against_temperature(Path(sys.argv[1])).items():
        assert one.interval is not None
        p_value = "no test" if one.corrected_p_value is None else f"p {one.corrected_p_value:.3f}"
        print(f"{column}, {row}: {one.difference:+.2f} [{one.interval.low:+.2f}, {one.interval.high:+.2f}], {p_value}")
