"""How often comparisons of a recipe with itself are called significant: `python null_comparisons.py [ARCHIVE]`.

The runs are those of `soft` on MRPC that the archive keeps. Two sets of them without a common seed differ by chance
alone, so that a test at 0.05 calls about 5 % of such comparisons significant. This is so for any pool
of numbers: it checks the code, not whether the test holds for real runs. The comparisons share runs: independent ones
are simulated beside them, of numbers with the mean and the deviation of the runs.
"""

import io
import json
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from alignattn.evaluation.estimates import over_seeds
from alignattn.evaluation.statistics.comparison import SIGNIFICANCE_LEVEL, compare, correct
from alignattn.evaluation.statistics.example_scores import ExampleScores, example_scores

COMPARISONS, SIMULATED = 200, 1000
MAX_RATE = 0.085
"""More of 200 comparisons are significant with a probability of 1.2 % if each is with 5 %."""

SEEDS = 10
"""Of each side."""
FAMILY, FAMILY_SEEDS = 3, 7
"""Rows that a family compares with one baseline, and the seeds of each: so many that the best of three can survive."""

Runs = dict[int, ExampleScores]
"""The scores of each run's test rows, by seed."""
Draws = NDArray[np.float64]


def kept_runs(archive: Path) -> Runs:
    """Return the runs of `soft` on MRPC: those of an archive that keep their predictions, by seed."""
    found = {}
    with tarfile.open(archive) as files:
        content = {one.name: file.read() for one in files if (file := files.extractfile(one)) is not None}
    for name in content:
        if not name.endswith("/predictions.parquet"):
            continue
        options = json.loads(content[name.replace("run/predictions.parquet", "experiment.json")])["options"]
        if options["task"] == "mrpc":
            rows = pq.read_table(io.BytesIO(content[name]))
            columns = (rows[column].to_numpy() for column in ("label", "prediction"))
            found[options["seed"]] = example_scores("accuracy", *columns)
    return dict(sorted(found.items()))


def kept_draws(runs: Runs, sides: int, seeds: int) -> Iterator[Draws]:
    """Yield the accuracies of sets of kept runs without a common seed, `[sides, seeds]`."""
    generator, values = np.random.default_rng(0), [run.value for run in runs.values()]
    for _ in range(COMPARISONS):
        yield generator.permutation(values)[: sides * seeds].reshape(sides, seeds)


def simulated_draws(runs: Runs, sides: int, seeds: int) -> Iterator[Draws]:
    """Yield sets of independent accuracies with the mean and the deviation of the kept ones, `[sides, seeds]`."""
    generator, rows = np.random.default_rng(0), len(next(iter(runs.values())).examples)
    spread = over_seeds([run.value for run in runs.values()])
    for _ in range(SIMULATED):
        drawn = generator.normal(spread["mean"], spread["standard_deviation"], (sides, seeds))
        yield np.round(drawn * rows) / rows


def alone(draws: Iterable[Draws]) -> float:
    """Return the share of comparisons of two sets that are significant."""
    p_values = [compare(*sides).p_value for sides in draws]
    return float(np.mean([p_value is not None and p_value < SIGNIFICANCE_LEVEL for p_value in p_values]))


def families(draws: Iterable[Draws]) -> float:
    """Return the share of families, sets compared with a common one, of which any survives correction."""
    corrected = [correct([compare(side, baseline, family_size=FAMILY) for side in sides]) for baseline, *sides in draws]
    return float(np.mean([any(one is not None and one.survives for one in family) for family in corrected]))


def single_runs(runs: Runs) -> float:
    """Return the share of pairs of single runs whose difference is significant over their test rows."""
    generator = np.random.default_rng(0)
    pairs = [generator.choice(list(runs), 2, replace=False) for _ in range(COMPARISONS)]
    p_values = [
        compare([first.value], [second.value], lambda pair=(first, second): [pair], resamples=1).p_value
        for first, second in ((runs[one], runs[other]) for one, other in pairs)
    ]
    return float(np.mean([p_value is not None and p_value < SIGNIFICANCE_LEVEL for p_value in p_values]))


MEASURED: Mapping[str, Callable[[Runs], float]] = {
    "kept runs": lambda runs: alone(kept_draws(runs, 2, SEEDS)),
    "simulated": lambda runs: alone(simulated_draws(runs, 2, SEEDS)),
    "simulated, the first 200": lambda runs: alone(islice(simulated_draws(runs, 2, SEEDS), COMPARISONS)),
    "families of kept runs": lambda runs: families(kept_draws(runs, 1 + FAMILY, FAMILY_SEEDS)),
    "single runs, over test rows": single_runs,
}
"""The share of null comparisons that are called significant, by what is compared."""


if __name__ == "__main__":
    kept = kept_runs(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("runs.tar.gz"))
    for what, rate_of in MEASURED.items():
        print(f"{what}: {100 * rate_of(kept):.1f} %")
