"""The numbers below a column of a table, and how they are printed. A table's file is checked without heavy imports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

UnitName = Literal["percent", "seconds", "mebibytes", "millions", "ratio", "error", "score"]
"""Unit of a printed number: `percent` of a fraction, `millions` of a count, `error` of predicted scores."""
State = Literal["done", "missing", "failed", "unfit"]
"""State of a run or cell; unfit: not supported by the command, for example a model that cannot do the task."""


@dataclass(frozen=True)
class Unit:
    """How numbers of a unit are printed.

    Attributes:
        form: number format.
        symbol: symbol after a number; empty if there is none.
        difference_symbol: symbol after a difference.
        factor: factor by which a number is multiplied.
    """

    form: str
    symbol: str = ""
    difference_symbol: str = ""
    factor: float = 1

    def difference(self, value: float) -> str:
        """Return a difference with its sign and without its symbol."""
        return self.form.replace(":", ":+").format(self.factor * value).replace("-", "−")


UNITS: Mapping[UnitName, Unit] = {
    "percent": Unit("{:.2f}", "%", "points", 100),
    "seconds": Unit("{:.3f}", "s", "s"),
    "mebibytes": Unit("{:,.1f}", "MiB", "MiB"),
    "millions": Unit("{:.2f}", "M", "M", 1e-6),
    "ratio": Unit("{:.2f}"),
    "error": Unit("{:.4g}"),
    "score": Unit("{:.4g}"),
}


class Definition(BaseModel):
    """A part of a table's file: unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Measure(Definition):
    """One of the numbers below a column.

    Attributes:
        label: the label as printed.
        path: keys joined by dots that lead to the number in a run's results; `{attention}` is the row's attention.
        unit: the unit in which the number is printed.
        is_better: which values are better; None if neither is.
        primary: whether the comparisons of primary rows in this measure are primary.
    """

    label: str
    path: str = ""
    unit: UnitName = "percent"
    is_better: Literal["higher", "lower"] | None = "higher"
    primary: bool = False

    def keys(self, options: Mapping[str, Any]) -> list[str]:
        """Return the keys of its path, given the options of a row; raises `LookupError` if the row lacks one."""
        return [key.format(**options) for key in self.path.split(".")]

    @property
    def heading(self) -> str:
        """Its label with its unit."""
        symbol = UNITS[self.unit].symbol
        return f"{self.label} ({symbol})" if symbol else self.label
