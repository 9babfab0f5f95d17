"""Decisions with guarantees: prediction sets, abstention, and a test for a shift from the calibration rows.

The guarantees hold if new rows have the distribution of the calibration rows, and these were used to fit neither the
model nor the temperature. Probabilities are `[N, C]`, labels `[N]`, and a row's confidence is its largest probability.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta, binom, ks_2samp

from alignattn.utils.errors import AlignAttnError

LAC, APS = "lac", "aps"

ABSTENTION_DELTA = 0.05
"""Probability, over the draw of the calibration rows, that the error rate of the answers exceeds its bound."""

SHIFT_LEVEL = 0.01
"""False-alarm rate of `shift_p_value`'s test, over the draws of a file and of the calibration rows."""

MIN_SHIFT_ROWS = 20
"""Minimum number of rows of a tested file: fewer reveal only the largest shifts."""

Array = NDArray[np.float64]


def lac_scores(probabilities: Array, uniform: Array) -> Array:
    """Return 1 - p of every class, `[N, C]`, the scores of LAC (Sadinle, Lei & Wasserman 2019).

    Its sets are the smallest on average if the probabilities are true.

    Args:
        probabilities: `[N, C]`.
        uniform: ignored: LAC is not randomised.
    """
    return 1 - probabilities


def aps_scores(probabilities: Array, uniform: Array) -> Array:
    """Return the APS scores of every class, `[N, C]` (Romano, Sesia & Candès 2020).

    A class's score is the sum of the probabilities of the likelier classes and of its own, minus u times its own. APS
    sets are larger on harder rows, where LAC sets may be empty; they may be empty, too, by their u.

    Args:
        probabilities: `[N, C]`.
        uniform: u of each row, `[N]`, uniform on [0, 1].
    """
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ordered = np.take_along_axis(probabilities, order, axis=1)
    scores = np.empty_like(ordered)
    np.put_along_axis(scores, order, ordered.cumsum(axis=1) - uniform[:, None] * ordered, axis=1)
    return scores


SET_SCORES: Mapping[str, Callable[[Array, Array], Array]] = {LAC: lac_scores, APS: aps_scores}
"""Nonconformity scores of every class of a row, by method; a set contains the classes with scores up to a quantile."""


def rows_needed(coverage: float) -> int:
    """Return how many calibration rows a set with coverage 1 - α needs: the smallest n ≥ 1 / α - 1."""
    share = Fraction(str(coverage))
    return math.ceil(share / (1 - share))


def answers_needed(max_error: float) -> int:
    """Return how many answers, all of them right, show an error rate of at most `max_error` with certainty 1 - δ."""
    return math.ceil(math.log(ABSTENTION_DELTA) / math.log1p(-max_error))


def conformal_quantile(scores: Array, coverage: float) -> float:
    """Return the bound that the score of a new row's label does not exceed with probability at least `coverage`.

    It is the ⌈(n + 1)(1 - α)⌉-th smallest of the scores of n calibration rows. For exchangeable rows without ties of
    scores, the coverage is at most 1 / (n + 1) above 1 - α (Vovk, Gammerman & Shafer 2005; Romano et al. 2020).

    Args:
        scores: `[n]`, scores of the labels of calibration rows.
        coverage: 1 - α, above 0 and below 1.

    Raises:
        AlignAttnError: if the coverage is out of range or needs more rows.
    """
    if not 0 < coverage < 1:
        raise AlignAttnError(f"coverage {coverage} must be above 0 and below 1")
    if len(scores) < (needed := rows_needed(coverage)):
        raise AlignAttnError(
            f"coverage {coverage} needs at least {needed} held-out calibration rows ({2 * needed} in all, half of "
            f"which fit the temperature), and there are {len(scores)}: calibrate on more rows, or ask for less"
        )
    # As a fraction, because 100 times 0.55 is above 55 in floating point.
    rank = math.ceil((len(scores) + 1) * Fraction(str(coverage)))
    return float(np.partition(scores, rank - 1)[rank - 1])


def error_bound(errors: ArrayLike, answered: ArrayLike) -> Array:
    """Return upper Clopper-Pearson bounds of error rates; a true rate exceeds its bound with probability at most δ.

    Args:
        errors: numbers of wrong answers.
        answered: numbers of answers; without answers the bound is 1.
    """
    wrong, rows = np.asarray(errors), np.asarray(answered)
    return np.where(wrong < rows, beta.ppf(1 - ABSTENTION_DELTA, wrong + 1, np.maximum(rows - wrong, 1)), 1.0)


@dataclass(frozen=True)
class Abstention:
    """A confidence threshold at or above which rows are answered, and its results on the calibration rows.

    Attributes:
        threshold: minimum confidence of an answered row.
        rows: number of calibration rows.
        answered: number of rows at or above the threshold.
        errors: number of rows answered wrongly.
        bound: upper bound of the error rate among the answered rows, for a threshold that was fixed beforehand. The
            true rate at a threshold chosen by `Calibration.abstention` exceeds it more often than δ.
    """

    threshold: float
    rows: int
    answered: int
    errors: int
    bound: float


@dataclass(frozen=True)
class LabelledRows:
    """Calibrated probabilities `[N, C]`, labels `[N]`, and the uniform numbers `[N]` that randomise APS."""

    probabilities: Array
    labels: NDArray[np.int64]
    uniform: Array

    @property
    def confidence(self) -> Array:
        """The largest probability of each row, `[N]`."""
        return np.asarray(self.probabilities.max(axis=1))

    @property
    def is_wrong(self) -> NDArray[np.bool_]:
        """Whether each row's likeliest class is not its label, `[N]`."""
        return np.asarray(self.probabilities.argmax(axis=1) != self.labels)

    def answers_from(self, thresholds: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many rows reach each confidence threshold, `[K]`, and how many of them are wrong, `[K]`."""
        order = np.argsort(self.confidence)
        first = np.searchsorted(self.confidence[order], thresholds)
        wrong_before = np.concatenate([[0], self.is_wrong[order].cumsum()])
        return len(order) - first, wrong_before[-1] - wrong_before[first]

    def label_scores(self, method: str) -> Array:
        """Return the score of each row's label, `[N]`, by a method of `SET_SCORES`."""
        scores = SET_SCORES[method](self.probabilities, self.uniform)
        return np.asarray(scores[np.arange(len(self.labels)), self.labels])


@dataclass(frozen=True)
class Calibration:
    """The calibration that `alignattn calibrate --run` saves; it serves any coverage and any error rate.

    Attributes:
        temperature: the divisor of the logits.
        fitted: the half of the calibration rows that fitted the temperature.
        held_out: the other half, on which the guarantees are based.
    """

    temperature: float
    fitted: LabelledRows
    held_out: LabelledRows

    def quantile(self, coverage: float, method: str) -> float:
        """Return the largest score of a class in a set; arguments and errors as for `conformal_quantile`."""
        return conformal_quantile(self.held_out.label_scores(method), coverage)

    def candidates(self) -> list[Abstention]:
        """Return the thresholds that `abstention` may choose, from strict to loose, with results on the held-out rows.

        They do not depend on these rows, so the number of errors among the answered rows is binomial at each.
        """
        thresholds, rows = self._thresholds(), len(self.held_out.labels)
        answered, errors = self.held_out.answers_from(thresholds)
        columns = (thresholds, answered, errors, error_bound(errors, answered))
        return [
            Abstention(threshold, rows, *numbers)
            for threshold, *numbers in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def abstention(self, max_error: float) -> Abstention | None:
        """Return the loosest threshold whose error rate among the answered rows is at most `max_error`, or None.

        With probability at least 1 - δ over the held-out rows, the error rate among the answered rows is at most
        `max_error`, or no row is answered. This is the fixed-sequence testing of Angelopoulos et al. 2021, "Learn then
        Test", with a sequence chosen on other rows. Given the number of answered rows at a fixed threshold, their
        errors are binomial, so the exact binomial test is valid for the error rate among the *answered* rows. Bounds of
        a mean over all rows are not valid, because the denominator of this rate is random. The tests start at the
        threshold that is most likely to pass, judged by the rows that fitted the temperature; they continue with looser
        thresholds and end at the first that fails. So each test has the full level δ, which the union bound of Geifman
        & El-Yaniv 2017 divides by the number of thresholds.

        Args:
            max_error: maximum error rate, above 0 and below 1.
        """
        chosen = None
        for candidate in self.tested(max_error):
            if candidate.bound > max_error:
                break
            chosen = candidate
        return chosen

    def tested(self, max_error: float) -> list[Abstention]:
        """Return the candidates that `abstention` tests, in the order of the tests."""
        answered, errors = self.fitted.answers_from(self._thresholds())
        # A test passes with fewer errors than the δ-quantile. The rate is smoothed: few rows may have no error by luck.
        allowed = binom.ppf(ABSTENTION_DELTA, answered, max_error) - 1
        power = binom.cdf(allowed, answered, (errors + 1) / (answered + 2))
        return self.candidates()[int(np.argmax(power)) :]

    def reason_none(self, max_error: float) -> str:
        """Return why `abstention` finds no threshold, with the numbers of the held-out rows, in one line."""
        rows = len(self.held_out.labels)
        fewest = answers_needed(max_error)
        if rows < fewest:
            return f"it takes at least {fewest} answered rows, all of them right, and there are {rows}"
        candidate = min(
            (candidate for candidate in self.candidates() if candidate.answered >= fewest),
            key=lambda candidate: candidate.bound,
        )
        where = f"at best, from confidence {candidate.threshold:.4g}"
        if candidate.bound <= max_error:
            # It would pass, but the tests end before they reach it.
            candidate = self.tested(max_error)[0]
            where = (
                f"from confidence {candidate.threshold:.4g}, at which the other half of the rows lets the tests begin"
            )
        if candidate.answered < fewest:
            return f"{where}, {candidate.answered} rows are answered, and it takes at least {fewest}, all of them right"
        allowed = int(np.count_nonzero(error_bound(np.arange(candidate.answered), candidate.answered) <= max_error)) - 1
        return (
            f"{where}, {candidate.errors} of {candidate.answered} answered rows are wrong "
            f"({100 * candidate.errors / candidate.answered:.2g} %), and at most {allowed} may be"
        )

    def shift(self, probabilities: Array) -> float:
        """Return the p-value of the hypothesis that calibrated new rows `[N, C]` are drawn like the calibration rows.

        The test is `shift_p_value`. Both halves are used: a single fitted number, the temperature, hardly distinguishes
        them from new rows.
        """
        return shift_p_value(np.concatenate([self.fitted.probabilities, self.held_out.probabilities]), probabilities)

    def _thresholds(self) -> Array:
        # Quantiles of the confidences of the rows that fit the temperature, from strict to loose; 0 is added.
        shares = np.linspace(1, 0, 100, endpoint=False)
        looser = np.unique(np.quantile(self.fitted.confidence, shares, method="higher"))[::-1]
        return np.append(looser, 0)


def shift_p_value(calibration: Array, new: Array) -> float:
    """Return the p-value of the hypothesis that probabilities `[N, C]` and `[M, C]` have the same distribution.

    The test is BBSDs of Rabanser, Günnemann & Lipton 2019, "Failing Loudly": a Kolmogorov-Smirnov test for each class;
    the smallest p-value is multiplied by the number of tests (Bonferroni). With two classes there is one test.
    """
    classes = range(calibration.shape[1] if calibration.shape[1] > 2 else 1)
    distances = [ks_2samp(calibration[:, one], new[:, one], method="asymp").statistic for one in classes]
    farthest = int(np.argmax(distances))
    return min(1.0, len(classes) * float(ks_2samp(calibration[:, farthest], new[:, farthest]).pvalue))
