"""Estimates, their intervals and their spread over seeds; without NumPy, so that commands read results quickly."""

import statistics
from collections.abc import Mapping, Sequence
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

SeedSpread = dict[str, float | int | None]
"""`mean`, `standard_deviation` and `seeds`, their number."""


def over_seeds(values: Sequence[float]) -> SeedSpread:
    """Return mean, standard deviation and count; the deviation is that of a sample (n - 1), None for a single seed."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "standard_deviation": deviation, "seeds": len(values)}


def with_deviation(spread: SeedSpread, form: str, factor: float = 1) -> str:
    """Return mean ± standard deviation, each times `factor`, in the number format `form`; one seed has only a mean."""
    numbers = (spread["mean"], spread["standard_deviation"])
    return " ± ".join(form.format(factor * number) for number in numbers if number is not None)
