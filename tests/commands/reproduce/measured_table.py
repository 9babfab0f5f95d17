"""A small measured table made by hand, in which every kind of cell occurs."""

from dataclasses import replace
from typing import Any

from alignattn.commands.reproduce.cell import Cell, Column, Measure, Row
from alignattn.commands.reproduce.experiment import Experiment
from alignattn.commands.reproduce.result import TableResult, TableRun
from alignattn.evaluation.statistics.comparison import Comparison
from alignattn.evaluation.statistics.intervals import Interval

NASTY = "50 % <script>alert('x')</script> & a_b | c*d {e} $f$ #1 ~g ^h \\i"
OUT_OF_MEMORY = f"out of memory: {NASTY}"
SURVIVES, NOISE = 0.012, 0.4

SQUARE = """<svg xmlns="http://www.w3.org/2000/svg" width="40" height="30"><defs><clipPath id="clip">
<rect width="20" height="20"/></clipPath></defs><rect width="40" height="30" clip-path="url(#clip)"/></svg>"""

LABELS = {"soft": "soft", "gan": "aa-gan", "ct": "aa-ct, λ = 1 & <b>_%"}
ACCURACY = Measure(label="accuracy", path="accuracy")
ECE = Measure(label="ECE", path="ece", is_better="lower")
TIME = Measure(label="time a step", path="time", unit="seconds", is_better="lower")
MEMORY = Measure(label="memory", path="memory", unit="mebibytes", is_better=None)
MRPC = Column(label="MRPC", options={"task": "mrpc"}, measures=[ACCURACY, ECE])
COST = Column(label="cost", measures=[TIME, MEMORY])
ROWS = {name: Row(options={}, label=label) for name, label in LABELS.items()}


def differs(difference: float, corrected_p: float | None = NOISE) -> Comparison:
    """A comparison over 3 seeds."""
    interval = Interval(difference - 0.01, difference + 0.01)
    p_value = None if corrected_p is None else corrected_p / 8
    return Comparison(difference, interval, p_value, corrected_p, "a test", 3, detectable=0.014)


def run(row: str, column: Column, seed: int) -> Experiment:
    """A run of a cell."""
    return Experiment("finetune", {"attention": row, "task": column.name, "seed": seed})


def cell(row: str, column: Column, measure: Measure, *values: float, **fields: Any) -> Cell:
    """A finished cell unless `fields` say otherwise, whose runs are those of three seeds."""
    runs = [run(row, column, seed) for seed in (1, 2, 3)]
    return Cell(ROWS[row], column, measure, runs, **{"state": "done", "values": values, **fields})


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


def table_run(experiment: Experiment) -> TableRun:
    """A finished run, full of what a page must escape."""
    return TableRun(
        digest=experiment.digest,
        title=f"{experiment.digest} {NASTY}",
        state="done",
        folder=f"runs/{experiment.digest}",
        command=f"alignattn finetune --task mrpc --note '{NASTY}'",
        facts={"seed": str(experiment.options["seed"]), "device": NASTY},
        scores={"accuracy": "72.00 %"},
        config=f"seed: 1\nnote: {NASTY}\n",
        pictures={"training curves": SQUARE, "reliability diagram": SQUARE},
    )


def measured_table() -> TableResult:
    """Three rows by two columns of two measures each."""
    runs = {experiment.digest: table_run(experiment) for one in CELLS for experiment in one.experiments}
    failed = run("ct", COST, 3).digest
    runs[failed] = replace(runs[failed], state="failed", reason=OUT_OF_MEMORY, scores={}, pictures={})
    return TableResult(
        name="table1",
        title=f"Table 1 {NASTY}",
        published_source="Zhang et al. 2021; ALBERT-base",
        measured_source="MiniLM, 3 seeds",
        notes=[f"A note: {NASTY}", "λ is 0.01 ± 0"],
        cells=CELLS,
        runs=runs,
    )


def with_cell(table: TableResult, changed: Cell) -> TableResult:
    """The table with a cell in the place of the one that it has there."""
    place = (changed.row, changed.column, changed.measure)
    cells = [changed if (one.row, one.column, one.measure) == place else one for one in table.cells]
    return replace(table, cells=cells)
