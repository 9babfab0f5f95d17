"""A small measured table made by hand, with every kind of cell."""

from dataclasses import replace
from typing import Any

from alignattn.evaluation.statistics.comparison import Comparison
from alignattn.evaluation.statistics.intervals import Interval
from alignattn.reports.charts import line_chart
from alignattn.reports.measures import Measure
from alignattn.reports.table import Cell, ResultTable, Run

NASTY = "50 % <script>alert('x')</script> & a_b | c*d {e} $f$ #1 ~g ^h \\i"
OUT_OF_MEMORY = f"out of memory: {NASTY}"
SURVIVES, NOISE = 0.012, 0.4

CHART = line_chart({NASTY: [(1, 2), (2, 1)]}, title=NASTY, x_label=NASTY, y_label="loss")

LABELS = {"soft": "soft", "gan": "aa-gan", "ct": "aa-ct, λ = 1 & <b>_%"}
ACCURACY = Measure(label="accuracy", path="accuracy")
ECE = Measure(label="ECE", path="ece", is_better="lower")
TIME = Measure(label="time a step", path="time", unit="seconds", is_better="lower")
MEMORY = Measure(label="memory", path="memory", unit="mebibytes", is_better=None)
MRPC, COST = "MRPC", "cost"


def differs(difference: float, corrected_p: float | None = NOISE) -> Comparison:
    """Return a comparison over 3 seeds."""
    interval = Interval(difference - 0.01, difference + 0.01)
    p_value = None if corrected_p is None else corrected_p / 8
    return Comparison(difference, interval, p_value, corrected_p, "a test", 3, detectable=0.014)


def run(row: str, column: str, seed: int) -> Run:
    """Return a finished run of a cell, with texts that a page must escape."""
    digest = f"{row}-{column}-{seed}"
    return Run(
        digest=digest,
        title=f"{digest} {NASTY}",
        folder=f"runs/{digest}",
        command=f"alignattn finetune --task mrpc --note '{NASTY}'",
        facts={"seed": str(seed), "device": NASTY},
        config=f"seed: 1\nnote: {NASTY}\n",
        charts={"training curves": CHART, NASTY: CHART},
    )


def cell(row: str, column: str, measure: Measure, *values: float, **fields: Any) -> Cell:
    """Return a cell with the runs of three seeds, finished unless `fields` change it."""
    runs = fields.pop("runs", {seed: run(row, column, seed) for seed in (1, 2, 3)})
    return Cell(
        row=LABELS[row],
        column=column,
        measure=measure,
        runs=runs,
        digests=[one.digest for one in runs.values()],
        **{"state": "done", "baseline": "soft", "values": dict(enumerate(values, start=1)), **fields},
    )


CELLS = (
    cell("soft", MRPC, ACCURACY, 0.70, 0.72, 0.74, published="86.5"),
    cell("soft", MRPC, ECE, 0.10, 0.12, 0.14),
    cell("soft", COST, TIME, 0.25),
    cell("soft", COST, MEMORY, 2000.0),
    cell("gan", MRPC, ACCURACY, 0.80, 0.82, 0.84, published="87.5", comparison=differs(0.1, SURVIVES)),
    cell("gan", MRPC, ECE, 0.20, 0.22, 0.24, comparison=differs(0.1, SURVIVES)),
    cell("gan", COST, TIME, state="missing"),
    cell("gan", COST, MEMORY, 3000.0, comparison=differs(1000.0, SURVIVES)),
    cell("ct", MRPC, ACCURACY, 0.75, 0.77, state="failed", reason=OUT_OF_MEMORY, comparison=differs(0.05)),
    cell("ct", MRPC, ECE, 0.05, 0.07, 0.09, comparison=differs(-0.05, 0.0004)),
    cell("ct", COST, TIME, state="failed", reason=OUT_OF_MEMORY, published="0.36"),
    cell("ct", COST, MEMORY, state="failed", reason="another reason"),
)


def measured_table() -> ResultTable:
    """Return a table of three rows by two columns of two measures each."""
    runs = {digest: run for one in CELLS for digest, run in zip(one.digests, one.runs.values(), strict=True)}
    failed = CELLS[-1].digests[-1]
    runs[failed] = replace(
        runs[failed],
        state="failed",
        reason=OUT_OF_MEMORY,
        charts={},
    )
    return ResultTable(
        name="table1",
        title=f"Table 1 {NASTY}",
        published_source="Zhang et al. 2021; ALBERT-base",
        measured_source="MiniLM, 3 seeds",
        notes=[f"A note: {NASTY}", "λ is 0.01 ± 0"],
        cells=CELLS,
        runs=runs,
    )


def with_cell(table: ResultTable, changed: Cell) -> ResultTable:
    """Return the table with one cell replaced."""
    place = (changed.row, changed.column, changed.measure)
    cells = [changed if (one.row, one.column, one.measure) == place else one for one in table.cells]
    return replace(table, cells=cells)
