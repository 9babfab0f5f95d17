"""Estimates and their confidence intervals; imports nothing heavy, so commands can read results without NumPy."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A confidence interval, ends included."""

    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % confidence interval; None if its rows are too few for one."""

    value: float
    interval: Interval | None


EstimatesByState = Mapping[str, Mapping[str, Estimate]]
"""By state of the probabilities, `before` or `after` temperature scaling, then by figure."""
