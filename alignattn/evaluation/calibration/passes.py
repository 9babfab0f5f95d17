"""Certainty of a classifier over several stochastic passes, and its agreement with accuracy (PAvPU).

The passes are those of Monte Carlo dropout (Gal & Ghahramani 2016): logits `[T, N, C]` of T passes over the same rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax, logsumexp
from scipy.stats import ttest_rel

from alignattn.evaluation.calibration.measures import ECE_BINS, as_array, checked_rows
from alignattn.evaluation.calibration.summary import summarise
from alignattn.evaluation.estimates import Estimate
from alignattn.evaluation.statistics.intervals import RESAMPLES, SEED, wilson_interval
from alignattn.utils.errors import AlignAttnError

PASS_FIGURES: Mapping[str, str] = {"pavpu": "PAvPU %", "certain": "certain %"}
"""Measures of passes in addition to `FIGURES`, with their column headings."""

MIN_PASSES = 2
"""Minimum number of passes: the test needs a variance."""

LEVEL = 0.05
"""p-value below which a row is certain, as in Fan et al. 2020."""


@dataclass(frozen=True)
class PassScores:
    """The scores of each row over the passes.

    Attributes:
        probabilities: `[N, C]`, the mean over the passes (Gal & Ghahramani 2016, eq. 6).
        p_value: `[N]`, p-value of the test whether the two likeliest classes differ.
    """

    probabilities: NDArray[np.float64]
    p_value: NDArray[np.float64]

    @classmethod
    def of(cls, passes: ArrayLike) -> "PassScores":
        """Return the scores of logits `[T, N, C]`; log-probabilities serve as logits, too.

        The two classes of a row are those with the largest mean probabilities. Student's paired t-test checks whether
        the mean difference of their logits is 0; it is paired by pass, because the two logits of one pass depend on
        each other. The code of Fan et al. 2020, "Bayesian Attention Modules", also tests logits; their difference
        equals that of the log-probabilities. p is 1 if no pass separates the two classes, and 0 if all passes separate
        them by the same amount.

        Raises:
            AlignAttnError: if the logits have another shape, fewer than two passes or classes, or are not finite.
        """
        logits = as_array(passes, "logits", np.float64)
        if logits.ndim != 3 or len(logits) < MIN_PASSES or logits.shape[2] < 2 or not logits.shape[1]:
            raise AlignAttnError(
                f"passes must be logits [T, N, C] with at least {MIN_PASSES} passes, 1 row and 2 classes, not "
                f"{list(logits.shape)}"
            )
        if not np.isfinite(logits).all():
            raise AlignAttnError("the logits of the passes hold NaN or infinity")
        mean = logsumexp(log_softmax(logits, axis=2), axis=0) - np.log(len(logits))
        first, second = np.argsort(-mean, axis=1, kind="stable")[:, :2].T
        rows = np.arange(logits.shape[1])
        gaps = logits[:, rows, first] - logits[:, rows, second]
        p_value = np.where((gaps == 0).all(axis=0), 1.0, 0.0)
        varies = (gaps != gaps[0]).any(axis=0)
        if varies.any():
            p_value[varies] = ttest_rel(logits[:, rows, first], logits[:, rows, second], axis=0).pvalue[varies]
        return cls(np.exp(mean), p_value)

    def is_certain(self, level: float = LEVEL) -> NDArray[np.bool_]:
        """Return `[N]`, whether p < level."""
        return np.asarray(self.p_value < level)

    def is_right(self, labels: ArrayLike) -> NDArray[np.bool_]:
        """Return `[N]`, whether the likeliest class is the label; raises `AlignAttnError` for a label that is none."""
        _, classes = checked_rows(self.probabilities, labels)
        return np.asarray(self.probabilities.argmax(axis=1) == classes)

    def suits(self, labels: ArrayLike, level: float = LEVEL) -> NDArray[np.bool_]:
        """Return `[N]`, whether a row is right and certain, or wrong and uncertain; PAvPU is the mean."""
        return np.asarray(self.is_right(labels) == self.is_certain(level))

    def counts(self, labels: ArrayLike, level: float = LEVEL) -> dict[str, int]:
        """Return how many rows are accurate or not, and certain or not."""
        is_right, is_certain = self.is_right(labels), self.is_certain(level)
        return {
            f"{right}_{certain}": int((is_right == (right == "accurate"))[is_certain == (certain == "certain")].sum())
            for right in ("accurate", "inaccurate")
            for certain in ("certain", "uncertain")
        }


def pavpu(passes: ArrayLike, labels: ArrayLike, level: float = LEVEL) -> float:
    """Return the accuracy versus uncertainty (Mukhoti & Gal 2018, eq. 6), a fraction, higher is better.

        PAvPU = (n_ac + n_iu) / (n_ac + n_au + n_ic + n_iu)

    n_ac, n_au, n_ic and n_iu count the rows that are accurate and certain, accurate and uncertain, inaccurate and
    certain, and inaccurate and uncertain. In the paper they count patches of an image; here, as in Fan et al. 2020,
    they count rows.

    Args:
        passes: logits `[T, N, C]`, as for `PassScores.of`.
        labels: `[N]`, class numbers.
        level: p-value below which a row is certain.

    Raises:
        AlignAttnError: as `PassScores.of` does, and if a label is not one of the classes.
    """
    return float(PassScores.of(passes).suits(labels, level).mean())


def summarise_passes(
    passes: ArrayLike,
    labels: ArrayLike,
    *,
    level: float = LEVEL,
    num_bins: int = ECE_BINS,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> dict[str, Estimate]:
    """Return the figures of `summarise` for the mean of passes, and `PASS_FIGURES`, with Wilson's intervals.

    Args:
        passes: logits `[T, N, C]`, as for `PassScores.of`.
        labels: `[N]`, class numbers.
        level: p-value below which a row is certain.
        num_bins: number of bins of the calibration errors.
        resamples: number of resamples of the bootstrap.
        seed: seed of the bootstrap.
    """
    scores = PassScores.of(passes)
    estimates = summarise(scores.probabilities, labels, num_bins=num_bins, resamples=resamples, seed=seed)
    shares = {"pavpu": scores.suits(labels, level), "certain": scores.is_certain(level)}
    for name, share in shares.items():
        estimates[name] = Estimate(float(share.mean()), wilson_interval(int(share.sum()), len(share)))
    return estimates
