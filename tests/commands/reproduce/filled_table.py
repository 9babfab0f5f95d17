"""A small filled table made by hand, in which every kind of cell occurs."""

from dataclasses import replace
from typing import Any

from alignattn.commands.reproduce.filled import ColumnHeading, Entry, FilledTable, Heading, MeasureHeading, RunDetails
from alignattn.statistics.comparison import Comparison
from alignattn.statistics.intervals import Interval

NASTY = "50 % <script>alert('x')</script> & a_b | c*d {e} $f$ #1 ~g ^h \\i"
OUT_OF_MEMORY = f"out of memory: {NASTY}"
SURVIVES, NOISE = 0.012, 0.4

SQUARE = """<svg xmlns="http://www.w3.org/2000/svg" width="40" height="30"><defs><clipPath id="clip">
<rect width="20" height="20"/></clipPath></defs><rect width="40" height="30" clip-path="url(#clip)"/></svg>"""

ACCURACY = MeasureHeading("accuracy", "accuracy")
ECE = MeasureHeading("ece", "ECE", is_better="lower")
TIME = MeasureHeading("time", "time a step", unit="seconds", is_better="lower")
MEMORY = MeasureHeading("memory", "memory", unit="mebibytes", is_better=None)


def differs(difference: float, corrected_p: float | None = NOISE) -> Comparison:
    """A comparison over 3 seeds."""
    interval = Interval(difference - 0.01, difference + 0.01)
    return Comparison(difference, interval, None if corrected_p is None else corrected_p / 8, corrected_p, "a test", 3)


def entry(row: str, column: str, measure: str, *values: float, **fields: Any) -> Entry:
    """A finished entry unless `fields` say otherwise, whose runs are those of three seeds."""
    runs = [f"{row}-{column}-{seed}" for seed in (1, 2, 3)]
    return Entry(row, column, measure, **{"state": "done", "values": values, "runs": runs, **fields})


ENTRIES = (
    entry("soft", "mrpc", "accuracy", 0.70, 0.72, 0.74, published="86.5"),
    entry("soft", "mrpc", "ece", 0.10, 0.12, 0.14),
    entry("soft", "cost", "time", 0.25),
    entry("soft", "cost", "memory", 2000.0),
    entry("gan", "mrpc", "accuracy", 0.80, 0.82, 0.84, published="87.5", comparison=differs(0.1, SURVIVES)),
    entry("gan", "mrpc", "ece", 0.20, 0.22, 0.24, comparison=differs(0.1, SURVIVES)),
    entry("gan", "cost", "time", state="missing"),
    entry("gan", "cost", "memory", 3000.0, comparison=differs(1000.0, SURVIVES)),
    entry("ct", "mrpc", "accuracy", 0.75, 0.77, state="failed", reason=OUT_OF_MEMORY, comparison=differs(0.05)),
    entry("ct", "mrpc", "ece", 0.05, 0.07, 0.09, comparison=differs(-0.05, 0.0004)),
    entry("ct", "cost", "time", state="failed", reason=OUT_OF_MEMORY, published="0.36"),
    entry("ct", "cost", "memory", state="failed", reason="another reason"),
)


def run_details(digest: str) -> RunDetails:
    """A finished run, full of what a page must escape."""
    return RunDetails(
        digest=digest,
        title=f"{digest} {NASTY}",
        state="done",
        folder=f"runs/{digest}",
        command=f"alignattn finetune --task mrpc --note '{NASTY}'",
        facts={"seed": digest[-1], "device": NASTY},
        config=f"seed: 1\nnote: {NASTY}\n",
        scores={"accuracy": "72.00 %"},
        pictures={"training curves": SQUARE, "reliability diagram": SQUARE},
    )


def filled_table() -> FilledTable:
    """Three rows by two columns of two measures each."""
    details = {digest: run_details(digest) for one in ENTRIES for digest in one.runs}
    failed = "ct-cost-3"
    details[failed] = replace(details[failed], state="failed", reason=OUT_OF_MEMORY, scores={}, pictures={})
    return FilledTable(
        name="table1",
        title=f"Table 1 {NASTY}",
        published_source="Zhang et al. 2021; ALBERT-base",
        measured_source="MiniLM, 3 seeds",
        notes=[f"A note: {NASTY}", "λ is 0.01 ± 0"],
        rows=[Heading("soft", "soft"), Heading("gan", "aa-gan"), Heading("ct", "aa-ct, λ = 1 & <b>_%")],
        columns=[ColumnHeading("mrpc", "MRPC", (ACCURACY, ECE)), ColumnHeading("cost", "cost", (TIME, MEMORY))],
        entries=ENTRIES,
        runs=details,
    )


def with_entry(table: FilledTable, changed: Entry) -> FilledTable:
    """The table with an entry in the place of the one that it has there."""
    place = (changed.row, changed.column, changed.measure)
    entries = [changed if (one.row, one.column, one.measure) == place else one for one in table.entries]
    return replace(table, entries=entries)
