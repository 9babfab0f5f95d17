"""The measure of a column: its label, its unit, and which values are better."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

UnitName = Literal["percent", "seconds", "mebibytes", "millions", "ratio", "error"]
"""Unit of a printed number: `percent` of a fraction, `millions` of a count, `error` of predicted scores."""
Better = Literal["higher", "lower"]
Verdict = Literal["better", "worse"]
State = Literal["done", "missing", "failed", "unfit"]
"""State of a run or cell; unfit: the command does not support the run, as where the model does not support the task."""


@dataclass(frozen=True)
class Unit:
    """How numbers of a unit are printed.

    Attributes:
        form: their number format.
        symbol: behind a number; empty where there is none.
        difference_symbol: behind a difference.
        factor: what a number is multiplied by.
    """

    form: str
    symbol: str
    difference_symbol: str
    factor: float = 1

    def difference(self, value: float) -> str:
        """Return a difference with its sign and without its symbol."""
        return self.form.replace(":", ":+").format(self.factor * value).replace("-", "−")


UNITS: Mapping[UnitName, Unit] = {
    "percent": Unit("{:.2f}", "%", "points", 100),
    "seconds": Unit("{:.3f}", "s", "s"),
    "mebibytes": Unit("{:,.1f}", "MiB", "MiB"),
    "millions": Unit("{:.2f}", "M", "M", 1e-6),
    "ratio": Unit("{:.2f}", "", ""),
    "error": Unit("{:.4g}", "", ""),
}


class Definition(BaseModel):
    """A part of a table's file: unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Measure(Definition):
    """One of the numbers below a column.

    Attributes:
        label: as printed.
        path: keys joined by dots, to the number in what a run measured; `{attention}` stands for the row's.
        unit: what it is printed in.
        is_better: which values are better; None where neither is.
        primary: whether it is what the primary rows were named for.
    """

    label: str
    path: str
    unit: UnitName = "percent"
    is_better: Better | None = "higher"
    primary: bool = False

    @property
    def heading(self) -> str:
        """Its label with its unit."""
        symbol = UNITS[self.unit].symbol
        return f"{self.label} ({symbol})" if symbol else self.label
