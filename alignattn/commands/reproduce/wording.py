"""A filled table in words: what every form of it, from the terminal to the web page, says in the same way."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from alignattn.commands.reproduce.filled import ColumnHeading, Entry, FilledTable, Heading, MeasureHeading, Unit
from alignattn.statistics.comparison import SIGNIFICANCE_LEVEL, Comparison
from alignattn.statistics.seeds import with_deviation

NOTHING = "–"
FAILED = "failed"
WORSE_MARK = "†"
NO_REASON = "no reason is recorded"
SMALLEST_P = 0.001
"""Below it a p-value is printed as smaller than it."""

DIFFERENCE_HEADINGS = ("row", "column", "difference", "95 % interval", "p", "corrected p", "seeds", "test")
DIFFERENCE_WORDS = ("row", "column", "test")
"""Those of them that hold words, which are set to the left."""

Verdict = Literal["better", "worse"]


@dataclass(frozen=True)
class UnitWording:
    """How numbers of a unit are printed.

    Attributes:
        form: their number format; of a difference with its sign.
        symbol: behind a number; empty where there is none.
        difference_symbol: behind a difference.
        factor: what a number is multiplied with.
    """

    form: str
    symbol: str
    difference_symbol: str
    factor: float = 1

    def difference(self, value: float) -> str:
        """Return a difference with its sign and without its symbol."""
        signed = self.form.replace(":", ":+").format(self.factor * value)
        return signed.replace("-", "−")


UNITS: Mapping[Unit, UnitWording] = {
    "percent": UnitWording("{:.2f}", "%", "points", 100),
    "seconds": UnitWording("{:.3f}", "s", "s"),
    "mebibytes": UnitWording("{:,.1f}", "MiB", "MiB"),
    "millions": UnitWording("{:.2f}", "M", "M", 1e-6),
    "ratio": UnitWording("{:.2f}", "", ""),
}


@dataclass(frozen=True)
class Place:
    """An entry with the headings that it stands under."""

    entry: Entry
    row: Heading
    column: ColumnHeading
    measure: MeasureHeading

    @property
    def unit(self) -> UnitWording:
        """How its numbers are printed."""
        return UNITS[self.measure.unit]

    @property
    def heading(self) -> str:
        """Column, measure and unit."""
        return f"{self.column.label} {measure_heading(self.measure)}".strip()

    @property
    def verdict(self) -> Verdict | None:
        """Whether it is better or worse than plain attention; None unless the difference survives correction."""
        comparison, is_better = self.entry.comparison, self.measure.is_better
        if comparison is None or is_better is None or not comparison.survives:
            return None
        return "better" if (comparison.difference > 0) == (is_better == "higher") else "worse"


def places(table: FilledTable) -> list[list[Place]]:
    """Return the rows of a table, each with its entries from left to right."""
    entries = {(entry.row, entry.column, entry.measure): entry for entry in table.entries}
    return [
        [
            Place(entries[row.key, column.key, measure.key], row, column, measure)
            for column in table.columns
            for measure in column.measures
        ]
        for row in table.rows
    ]


def compared_places(table: FilledTable) -> Iterator[tuple[Place, Comparison]]:
    """Yield the entries that were compared with plain attention, and how they differ."""
    for row in places(table):
        for place in row:
            if place.entry.comparison is not None:
                yield place, place.entry.comparison


def measure_heading(measure: MeasureHeading) -> str:
    """Return a measure's label with its unit."""
    symbol = UNITS[measure.unit].symbol
    return f"{measure.label} ({symbol})" if symbol else measure.label


def cell_text(place: Place, failures: Mapping[str, int]) -> str:
    """Return what an entry measured: `mean ± standard deviation`, `failed [1]`, `–`; how many runs if not all finished.

    Args:
        place: the entry.
        failures: the number of each reason, as of `number_failures`.
    """
    entry = place.entry
    reference = f" [{failures[failure_reason(entry)]}]" if entry.state == "failed" else ""
    if entry.spread is None:
        return f"{FAILED}{reference}" if reference else NOTHING
    number = with_deviation(entry.spread, place.unit.form, place.unit.factor)
    finished = "" if entry.state == "done" else f", {len(entry.values)} of {len(entry.runs)}"
    mark = WORSE_MARK if place.verdict == "worse" else ""
    return f"{number}{mark}{finished}{reference}"


def failure_reason(entry: Entry) -> str:
    """Return why an entry failed, in one line."""
    return entry.reason or NO_REASON


def number_failures(table: FilledTable) -> dict[str, int]:
    """Return the reasons of failed entries, numbered from 1 in the order of the table."""
    reasons = dict.fromkeys(failure_reason(entry) for entry in table.entries if entry.state == "failed")
    return {reason: number for number, reason in enumerate(reasons, start=1)}


def difference_texts(place: Place, comparison: Comparison) -> list[str]:
    """Return a comparison in words, one for each of `DIFFERENCE_HEADINGS`."""
    difference = f"{place.unit.difference(comparison.difference)} {place.unit.difference_symbol}".strip()
    return [
        place.row.label,
        place.heading,
        difference,
        interval_text(place, comparison),
        p_text(comparison.p_value),
        p_text(comparison.corrected_p_value),
        str(comparison.seeds),
        comparison.test,
    ]


def interval_text(place: Place, comparison: Comparison) -> str:
    """Return the interval of a difference, or a dash."""
    interval = comparison.interval
    if interval is None:
        return NOTHING
    return f"[{place.unit.difference(interval.low)}, {place.unit.difference(interval.high)}]"


def p_text(p_value: float | None) -> str:
    """Return a p-value with three decimals, or a dash."""
    if p_value is None:
        return NOTHING
    return f"< {SMALLEST_P}" if p_value < SMALLEST_P else f"{p_value:.3f}"


def summary(place: Place) -> str:
    """Return what a cell is, in lines that need nothing of the table around it."""
    entry = place.entry
    lines = [f"{place.row.label}, {place.heading}"]
    if entry.spread is not None:
        number = with_deviation(entry.spread, place.unit.form, place.unit.factor)
        lines.append(f"{number} {place.unit.symbol}".strip() + f", {counted(len(entry.values), 'seed')}")
    if entry.state != "done":
        lines.append(f"failed: {failure_reason(entry)}" if entry.state == "failed" else "not all of its runs are done")
    if entry.comparison is not None:
        _, _, difference, interval, p_value, corrected, _, test = difference_texts(place, entry.comparison)
        lines.append(f"difference to soft {difference}, 95 % interval {interval}")
        lines.append(f"p {p_value}, corrected {corrected} ({test})")
    if entry.published is not None:
        lines.append(f"published, of another run: {entry.published}")
    return "\n".join(lines)


def legend(table: FilledTable, better: str, published: str) -> list[str]:
    """Return sentences that explain the marks that a table bears.

    Args:
        table: the table.
        better: how a difference for the better is marked, such as "Bold".
        published: how a published number is told from a measured one, such as "In brackets".
    """
    everything = [place for row in places(table) for place in row]
    verdicts = {place.verdict for place in everything}
    counts = sorted({len(place.entry.values) for place in everything if place.entry.values})
    lines = []
    if counts and counts[-1] > 1:
        number = f"{counts[0]} to {counts[-1]}" if counts[0] < counts[-1] else str(counts[0])
        lines.append(f"Mean ± standard deviation (of a sample, n − 1) over {number} seeds.")
    if table.published_source is not None:
        lines.append(f"{published}: published numbers, of the model and data named above, not of those measured here.")
    comparisons = [place.entry.comparison for place in everything if place.entry.comparison is not None]
    survives = f"the paired difference survives correction for all comparisons of this table (p < {SIGNIFICANCE_LEVEL})"
    if "better" in verdicts:
        lines.append(f"{better}: better than soft, and {survives}.")
    elif comparisons:
        lines.append(f"No number is better than that of soft such that {survives}.")
    if "worse" in verdicts:
        lines.append(f"{WORSE_MARK}: worse than soft, and {survives}.")
    if verdicts & {"better", "worse"} and any(" examples" in one.test for one in comparisons):
        lines.append("A test over examples holds for the models of these seeds, and says nothing of other seeds.")
    if any(place.entry.values and place.entry.state != "done" for place in everything):
        lines.append("“2 of 3” and the like: over those runs that are finished.")
    if any(place.entry.state == "missing" and not place.entry.values for place in everything):
        lines.append(f"{NOTHING}: not measured yet.")
    return lines


def counted(number: int, noun: str) -> str:
    """Return how many of something, the noun in its plural unless there is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
