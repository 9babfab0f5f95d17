"""Mean and spread of a number over the seeds of a run."""

import statistics
from collections.abc import Sequence

SeedSpread = dict[str, float | int | None]
"""`mean`, `standard_deviation` and `seeds`, how many."""


def over_seeds(values: Sequence[float]) -> SeedSpread:
    """Return mean, standard deviation and count; the deviation is a sample's (n - 1), of a single seed None."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "standard_deviation": deviation, "seeds": len(values)}


def with_deviation(spread: SeedSpread, form: str, factor: float = 1) -> str:
    """Return mean ± standard deviation, each times `factor`, in the number format `form`; one seed has a mean alone."""
    numbers = (spread["mean"], spread["standard_deviation"])
    return " ± ".join(form.format(factor * number) for number in numbers if number is not None)
