"""Rows drawn from a data set: the same for every run, whatever its seed, and of every class its share."""

import datasets
import numpy as np
from numpy.typing import NDArray

from alignattn.tasks.processors import processor_for
from alignattn.tasks.task import Task

SAMPLING_SEED = 42
"""One draw for all runs, whatever their seed: they are compared on the same rows."""


def sample_rows(
    task: Task, dataset: datasets.Dataset, count: int, *, leave_each: bool = False, seed: int = SAMPLING_SEED
) -> NDArray[np.int64]:
    """Return the numbers of rows drawn without replacement, sorted, `[count]`.

    Each class has as much of them as of all rows, to within one row; of as many rows as there are classes or more, each
    has one at least. Where there are no classes, all rows are one.

    Args:
        task: that the rows are of.
        dataset: the rows, as `alignattn.tasks.rows` loads them.
        count: of the rows to draw; all of them where there are fewer.
        leave_each: whether to leave a row of each class, even if fewer rows than `count` can be drawn then.
        seed: of the draw.
    """
    strata = processor_for(task).strata(task, dataset)
    _, strata = np.unique(np.zeros(len(dataset)) if strata is None else strata, return_inverse=True, axis=0)
    sizes = np.bincount(strata.ravel())
    shares = _shares(sizes, min(count, len(dataset)), leave_each)
    order = np.random.default_rng(seed).permutation(len(dataset))
    drawn = [order[strata.ravel()[order] == stratum][:share] for stratum, share in enumerate(shares)]
    return np.sort(np.concatenate(drawn))


def _shares(sizes: NDArray[np.int64], count: int, leave_each: bool) -> NDArray[np.int64]:
    """How many rows of each stratum make `count` rows, `[strata]`."""
    limits = sizes - 1 if leave_each else sizes
    exact = count * sizes / sizes.sum()
    shares = np.minimum(np.floor(exact).astype(np.int64), limits)
    if count >= len(sizes):
        shares = np.minimum(np.maximum(shares, 1), limits)
    # Which stratum lacks most, or has most too much: the first of those that are equal.
    while shares.sum() < min(count, limits.sum()):
        shares[np.argmax(np.where(shares < limits, exact - shares, -np.inf))] += 1
    while shares.sum() > count:
        shares[np.argmax(np.where(shares > 1, shares - exact, -np.inf))] -= 1
    return shares
