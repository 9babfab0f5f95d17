"""Numbers and comparisons as they are printed: units, differences with their signs, p-values, verdicts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from alignattn.evaluation.statistics.comparison import Comparison

NOTHING = "–"
WORSE_MARK = "†"
ONE_ANSWER_MARK = "°"
MIN_P = 0.001
"""Below it a p-value is printed as smaller than it."""

DIFFERENCE_HEADINGS = (
    "row",
    "column",
    "difference",
    "95 % interval",
    "detectable",
    "p",
    "corrected p",
    "seeds",
    "test",
)
"""`detectable`: the difference that such a study finds at 0.05, after correction, with a power of 80 %."""

DETECTABLE = "Detectable: what a study as noisy as this one finds at 0.05, after correction, with a power of 80 %."
DIFFERENCE_WORDS = ("row", "column", "test")
"""Those of them that hold words, which are set to the left."""

UnitName = Literal["percent", "seconds", "mebibytes", "millions", "ratio", "error"]
"""What a number is printed in; `percent` of a fraction, `millions` of a count, `error` of predicted scores."""

Better = Literal["higher", "lower"]
"""Which values of a measure are better."""

Verdict = Literal["better", "worse"]


@dataclass(frozen=True)
class Unit:
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


UNITS: Mapping[UnitName, Unit] = {
    "percent": Unit("{:.2f}", "%", "points", 100),
    "seconds": Unit("{:.3f}", "s", "s"),
    "mebibytes": Unit("{:,.1f}", "MiB", "MiB"),
    "millions": Unit("{:.2f}", "M", "M", 1e-6),
    "ratio": Unit("{:.2f}", "", ""),
    "error": Unit("{:.4g}", "", ""),
}


def difference_texts(row: str, column: str, comparison: "Comparison", unit: Unit) -> list[str]:
    """Return a comparison in words, one for each of `DIFFERENCE_HEADINGS`.

    Args:
        row: what is compared.
        column: by which measure.
        comparison: of the two.
        unit: of the measure.
    """
    interval = comparison.interval
    return [
        row,
        column,
        f"{unit.difference(comparison.difference)} {unit.difference_symbol}".strip(),
        f"[{unit.difference(interval.low)}, {unit.difference(interval.high)}]" if interval else NOTHING,
        NOTHING if comparison.detectable is None else unit.form.format(unit.factor * comparison.detectable),
        _p_text(comparison.p_value),
        _p_text(comparison.corrected_p_value),
        str(comparison.seeds),
        comparison.test,
    ]


def verdict_of(comparison: "Comparison | None", is_better: Better | None) -> Verdict | None:
    """Return whether a difference is for the better or the worse; None unless it survives correction."""
    if comparison is None or is_better is None or not comparison.survives:
        return None
    return "better" if (comparison.difference > 0) == (is_better == "higher") else "worse"


def counted(number: int, noun: str) -> str:
    """Return how many of something, the noun in its plural unless there is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _p_text(p_value: float | None) -> str:
    if p_value is None:
        return NOTHING
    return f"< {MIN_P}" if p_value < MIN_P else f"{p_value:.3f}"
