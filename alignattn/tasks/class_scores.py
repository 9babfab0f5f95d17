"""Precision, recall and F1 of each class. This module does not import torch, because reports use it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_fscore_support


def class_scores(labels: NDArray[Any], predictions: NDArray[Any], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return `precision`, `recall`, `f1` and `support` of each class; undefined scores are 0.

    Args:
        labels: `[N]` class numbers, or `[N, C]` of 0 and 1.
        predictions: in the same form.
        names: the class names, `[C]`.
    """
    numbers = np.arange(len(names))
    found = precision_recall_fscore_support(labels, predictions, labels=numbers, average=None, zero_division=0)
    return named_scores(names, found)


def named_scores(names: Sequence[str], found: Sequence[Sequence[float]]) -> dict[str, dict[str, float]]:
    """Return the scores of each class by name.

    Args:
        names: the class names, `[C]`.
        found: precision, recall, F1 and support, `[C]` each, as scikit-learn and seqeval return them.
    """
    return {
        name: {"precision": float(precision), "recall": float(recall), "f1": float(f1), "support": int(support)}
        for name, precision, recall, f1, support in zip(names, *found, strict=True)
    }
