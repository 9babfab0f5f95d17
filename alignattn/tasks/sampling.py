"""Stratified samples of rows, by default the same for every run."""

from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray

from alignattn.tasks.task import Task

SAMPLING_SEED = 42
"""Default seed of samples, the same for all runs, so that they use the same rows."""


def sample_rows(
    task: Task, dataset: datasets.Dataset, count: int, *, leave_each: bool = False, seed: int = SAMPLING_SEED
) -> NDArray[np.int64]:
    """Return the sorted numbers of a sample of rows without replacement, `[count]`.

    Each class has its share of the sample to within one row, and at least one row if there are enough rows for all. Of
    rows with several labels, each combination is a class, and combinations with a share below one row are one class.

    Args:
        task: the task of the rows.
        dataset: the rows, as `alignattn.tasks.rows` loads them.
        count: the size of the sample; all rows if there are fewer.
        leave_each: whether to leave a row of each class outside the sample, even if the sample is then smaller.
        seed: the seed of the sample.
    """
    classes = task.strata(dataset)
    strata = _numbered(np.zeros(len(dataset)) if classes is None else classes)
    if classes is not None and classes.ndim > 1:
        # Rare combinations of labels share a stratum: with one of each, or none, the sample would be of other rows.
        is_rare = np.bincount(strata) * count < len(dataset)
        strata = _numbered(np.where(is_rare[strata], -1, strata))
    count, sizes = min(count, len(dataset)), np.bincount(strata)
    limits = sizes - 1 if leave_each else sizes
    exact = count * sizes / sizes.sum()
    shares = np.minimum(np.floor(exact).astype(np.int64), limits)
    if count >= len(sizes):
        shares = np.minimum(np.maximum(shares, 1), limits)
    # Change the stratum furthest below, or above, its exact share; the first in a tie.
    while shares.sum() < min(count, limits.sum()):
        shares[np.argmax(np.where(shares < limits, exact - shares, -np.inf))] += 1
    while shares.sum() > count:
        shares[np.argmax(np.where(shares > 1, shares - exact, -np.inf))] -= 1
    order = np.random.default_rng(seed).permutation(len(dataset))
    chosen = [order[strata[order] == stratum][:share] for stratum, share in enumerate(shares)]
    return np.sort(np.concatenate(chosen))


def _numbered(classes: NDArray[Any]) -> NDArray[np.int64]:
    """The number of each row's class or combination of classes, from 0."""
    return np.unique(classes, return_inverse=True, axis=0)[1].ravel()
