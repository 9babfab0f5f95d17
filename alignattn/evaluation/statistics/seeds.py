"""Mean and spread of a number over the seeds of a run."""

import statistics
from collections.abc import Sequence

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
