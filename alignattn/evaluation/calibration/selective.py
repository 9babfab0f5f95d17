"""Selective prediction: which answers to withhold, and which rows belong to another domain.

Probabilities are `[N, C]`, labels `[N]`, and a row's confidence is its largest probability.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from alignattn.evaluation.calibration.measures import RowScores, as_array
from alignattn.evaluation.estimates import Interval
from alignattn.evaluation.statistics.intervals import BATCH_NUMBERS, CONFIDENCE_LEVEL, MIN_ROWS, RESAMPLES, SEED
from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class RiskCoverage:
    """The risk-coverage curve (El-Yaniv & Wiener 2010; Geifman & El-Yaniv 2017).

    Attributes:
        coverage: `[N]`, k / N: the share of answered rows, the most confident first.
        risk: `[N]`, the share of wrong rows among the answered ones.
    """

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]


def risk_coverage(probabilities: ArrayLike, labels: ArrayLike) -> RiskCoverage:
    """Return the risk-coverage curve; rows of equal confidence get their mean error, so their order does not matter.

    Raises:
        AlignAttnError: as the measures of calibration do.
    """
    scores = RowScores.of(probabilities, labels)
    risk = _risks(scores.confidence, scores.is_right)
    return RiskCoverage(np.arange(1, len(risk) + 1) / len(risk), risk)


def area_under_risk_coverage(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Return the area under the risk-coverage curve (AURC), the mean of its risks, a fraction, lower is better.

    With an uninformative confidence it is the share of errors.
    """
    scores = RowScores.of(probabilities, labels)
    return float(area_of(scores.confidence, scores.is_right))


def area_of(confidence: NDArray[np.float64], is_right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the area of many samples at once: `[..., N]` and `[..., N]` to `[...]`."""
    return np.asarray(_risks(confidence, is_right).mean(axis=-1))


def shift_auroc(in_domain: ArrayLike, out_of_domain: ArrayLike) -> float:
    """Return how well confidence separates rows of a domain from others: the area under its ROC curve.

    It is the probability that a row of the domain has a larger maximal softmax than a row outside it; ties count half
    (Hendrycks & Gimpel 2017, section 3). 0.5 is uninformative.

    Args:
        in_domain: probabilities `[N, C]` of rows of the domain.
        out_of_domain: probabilities `[M, D]` of other rows.

    Raises:
        AlignAttnError: if either side has no rows.
    """
    return float(_auroc(*map(_confidence, (in_domain, out_of_domain))))


def shift_auroc_interval(
    in_domain: ArrayLike, out_of_domain: ArrayLike, resamples: int = RESAMPLES, seed: int = SEED
) -> Interval | None:
    """Return the 95 % bootstrap interval of `shift_auroc`; the rows of each side are resampled separately.

    Args:
        in_domain: as for `shift_auroc`.
        out_of_domain: as for `shift_auroc`.
        resamples: number of resamples.
        seed: random seed.

    Returns:
        The interval; None if a side has a single row.
    """
    sides = [_confidence(side) for side in (in_domain, out_of_domain)]
    if min(map(len, sides)) < MIN_ROWS:
        return None
    rng = np.random.default_rng(seed)
    drawn: list[NDArray[np.float64]] = []
    batch = max(1, BATCH_NUMBERS // sum(map(len, sides)))
    for done in range(0, resamples, batch):
        size = min(batch, resamples - done)
        drawn.append(_auroc(*(side[rng.integers(len(side), size=(size, len(side)))] for side in sides)))
    low, high = np.quantile(np.concatenate(drawn), ((1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2))
    return Interval(float(low), float(high))


def _confidence(probabilities: ArrayLike) -> NDArray[np.float64]:
    rows = as_array(probabilities, "probabilities", np.float64)
    if rows.ndim != 2 or rows.size == 0:
        raise AlignAttnError(f"a shift needs probabilities [N, C] of at least one row per side, not {rows.shape}")
    return np.asarray(rows.max(axis=1))


def _auroc(larger: NDArray[np.float64], smaller: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of pairs of `[..., N]` and `[..., M]` in which the first is larger (ties count half)."""
    count, others = larger.shape[-1], smaller.shape[-1]
    ranks = rankdata(np.concatenate([larger, smaller], axis=-1), axis=-1)[..., :count]
    return np.asarray((ranks.sum(axis=-1) - count * (count + 1) / 2) / (count * others))


def _risks(confidence: NDArray[np.float64], is_right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the risks of the 1, …, N most confident rows, from confidence and correctness; all `[..., N]`."""
    num_rows = confidence.shape[-1]
    order = np.argsort(-confidence, axis=-1, kind="stable")
    ordered = np.take_along_axis(confidence, order, axis=-1)
    wrong = 1 - np.take_along_axis(is_right, order, axis=-1)
    is_new = np.ones(ordered.shape, dtype=bool)
    is_new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    # Each sample starts a new group of equal values, so that groups never extend over two samples.
    groups = np.cumsum(is_new.ravel()) - 1
    means = np.bincount(groups, weights=wrong.ravel()) / np.bincount(groups)
    return np.asarray(means[groups].reshape(wrong.shape).cumsum(axis=-1) / np.arange(1, num_rows + 1))
