"""Paired comparison of a method with a baseline, and its significance."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from alignattn.evaluation.estimates import Interval
from alignattn.evaluation.statistics.example_scores import ExampleScores
from alignattn.evaluation.statistics.intervals import CONFIDENCE_LEVEL, MIN_ROWS, SEED
from alignattn.evaluation.statistics.paired_tests import (
    PairedScores,
    bootstrap_difference,
    mcnemar,
    sign_flip_p_value,
    t_interval,
)
from alignattn.evaluation.statistics.power import detectable_by_sign_flips, detectable_difference
from alignattn.utils.errors import AlignAttnError, plural

SIGNIFICANCE_LEVEL = 0.05

TEST_RESAMPLES = 10_000
"""Bootstrap resamples for a corrected p-value; with few, even the smallest corrected p-value could exceed 0.05."""

VALUE_TOLERANCE = 1e-3
"""Tolerance between a measure and its value recomputed from the stored, rounded predictions."""


@dataclass(frozen=True)
class Comparison:
    """A paired difference to a baseline, measured minus baseline, in the unit of the measure.

    Attributes:
        difference: the difference of the means over seeds.
        interval: the 95 % interval of the difference; None if one number is compared with one number.
        p_value: the two-sided p-value; None if nothing can be tested.
        corrected_p_value: the p-value corrected for all comparisons of the table; None before correction, or without a
            p-value.
        test: the test, or why there is none, and what it is over, for readers.
        seeds: number of paired seeds.
        detectable: the difference that the study detects at 0.05 with a power of 80 %, from the interval: by the
            sign-flip test over seeds, or by the test of `detectable_difference`; after correction, at the corrected
            level. None without an interval or a test, for an interval without width, or if no difference can be
            significant.
        degrees: degrees of freedom of the interval; None for a bootstrap interval.
        step: smallest difference of two values that is not 0: 1 / m for accuracies on m rows; 0 = unknown, or of no
            meaning for the test.
    """

    difference: float
    interval: Interval | None
    p_value: float | None
    corrected_p_value: float | None
    test: str
    seeds: int
    detectable: float | None = None
    degrees: int | None = None
    step: float = 0

    @property
    def survives(self) -> bool:
        """Whether the corrected p-value is below the significance level."""
        return self.corrected_p_value is not None and self.corrected_p_value < SIGNIFICANCE_LEVEL


def compare(
    values: Sequence[float],
    baseline_values: Sequence[float],
    scores: Callable[[], PairedScores | None] | None = None,
    *,
    family_size: int = 1,
    rows: int | None = None,
    resamples: int = TEST_RESAMPLES,
    seed: int = SEED,
) -> Comparison:
    """Compare the runs of a method with those of a baseline, paired by seed.

    The test is over seeds if there are enough for a significant result; the result then holds for other seeds, on these
    examples. Otherwise the test is over examples if their scores are known; the result then holds for other examples,
    with the models of these seeds. Otherwise there is no test; from 2 seeds there is an interval over seeds.

    Args:
        values: one per seed.
        baseline_values: the values of the baseline, for the same seeds in the same order.
        scores: reads the examples' scores of both runs of each seed; called only for a test over examples. None if the
            measure is not a statistic of single examples.
        family_size: number of comparisons that are corrected together; the more, the more seeds a test needs.
        rows: the number of rows that each value is a share of, as an accuracy is; None for another measure. Nothing
            below what such shares can show counts as detectable.
        resamples: number of bootstrap resamples of the examples.
        seed: random seed; equal seeds return equal results.

    Raises:
        AlignAttnError: if values are not paired or not finite, or if the examples of both runs differ or do not match
            the values.
    """
    measured, baseline = (np.asarray(side, dtype=np.float64) for side in (values, baseline_values))
    if measured.ndim != 1 or measured.shape != baseline.shape or not measured.size:
        raise AlignAttnError(
            f"{plural(measured.size, 'value')} cannot be paired with {baseline.size} of the baseline: compare the "
            "common seeds"
        )
    if not (np.isfinite(measured).all() and np.isfinite(baseline).all()):
        raise AlignAttnError("values to compare hold NaN or infinity: repeat the runs of those seeds")
    differences, num_seeds = measured - baseline, len(measured)
    difference, degrees = float(differences.mean()), num_seeds - 1
    if can_test_over_seeds(num_seeds, family_size):
        return _with_detectable(
            Comparison(
                difference,
                t_interval(differences),
                sign_flip_p_value(differences, seed),
                None,
                f"sign-flip permutation test and t-interval over {num_seeds} paired seeds",
                num_seeds,
                degrees=degrees,
                step=1 / rows if rows else 0,
            )
        )
    pairs = scores() if scores is not None else None
    if pairs is not None:
        if len(pairs) != num_seeds:
            raise AlignAttnError(f"scores of examples have {plural(len(pairs), 'seed')} and the values {num_seeds}")
        for pair, both in zip(pairs, zip(values, baseline_values, strict=True), strict=True):
            _check_scores(pairs[0][0], pair, both)
        num_examples = len(pairs[0][0].examples)
        if num_examples >= MIN_ROWS:
            own, plain = zip(*pairs, strict=True)
            interval, p_value = bootstrap_difference(own, plain, resamples, seed)
            test, step = f"bootstrap over {num_examples} examples", 0.0
            if num_seeds == 1 and all(scores.is_share_of_examples for scores in pairs[0]):
                p_value, step = mcnemar(*pairs[0]), 1 / num_examples
                test = f"McNemar's exact test and bootstrap interval over {num_examples} examples"
            test += f", for {'this seed' if num_seeds == 1 else f'these {num_seeds} seeds'}"
            return _with_detectable(Comparison(difference, interval, p_value, None, test, num_seeds, step=step))
    if num_seeds < MIN_ROWS:
        return Comparison(difference, None, None, None, "no test; one seed", num_seeds)
    test = f"no test; t-interval over {num_seeds} paired seeds"
    return Comparison(difference, t_interval(differences), None, None, test, num_seeds, degrees=degrees)


def compare_ensemble(
    value: float, member_values: Sequence[float], ensemble: ExampleScores | None, members: Sequence[ExampleScores]
) -> Comparison:
    """Compare an ensemble, one model of all seeds, with its members over the examples of both.

    The result holds for other examples, with the models of these seeds. `Comparison.seeds` is 0.

    Args:
        value: the value of the ensemble.
        member_values: the values of its members, one per seed.
        ensemble: the examples' scores of the ensemble; None if the measure is not a statistic of examples.
        members: the examples' scores of each member, in the order of the values.

    Raises:
        AlignAttnError: as `compare` does.
    """
    difference, reason = float(value - np.mean(member_values)), "an ensemble is one model of all seeds"
    if ensemble is None or len(ensemble.examples) < MIN_ROWS:
        return Comparison(difference, None, None, None, f"no test; {reason}", 0)
    _check_scores(ensemble, [ensemble, *members], [value, *member_values])
    interval, p_value = bootstrap_difference([ensemble], members, TEST_RESAMPLES, SEED)
    test = f"bootstrap over {len(ensemble.examples)} examples, for these 1 and {len(members)} runs; {reason}"
    return _with_detectable(Comparison(difference, interval, p_value, None, test, 0))


def _check_scores(first: ExampleScores, scores: Sequence[ExampleScores], values: Sequence[float]) -> None:
    """Refuse scores of other examples than the first, or scores that do not match their values."""
    for own, value in zip(scores, values, strict=True):
        if own.statistic is not first.statistic:
            raise AlignAttnError("runs cannot be paired: their scores are of different measures")
        sizes = len(first.examples), len(own.examples)
        if sizes[0] != sizes[1]:
            raise AlignAttnError(
                f"runs on {sizes[0]} and on {sizes[1]} examples cannot be paired: run them with the same limits"
            )
        differing = np.flatnonzero(first.examples != own.examples)
        if differing.size:
            index = differing[0]
            raise AlignAttnError(
                f"runs on different examples cannot be paired: example {index} is {first.examples[index]} in one and "
                f"{own.examples[index]} in another; run them on the same data"
            )
        if abs(own.value - value) > VALUE_TOLERANCE:
            raise AlignAttnError(
                f"a run's examples give {own.value:.4f} and its results {value:.4f}: move the run away and run it again"
            )


def correct(comparisons: Sequence[Comparison | None], family_size: int | None = None) -> list[Comparison | None]:
    """Return the comparisons of a table with p-values and detectable differences corrected for their number.

    The correction is `holm`: the probability that any comparison without a true difference survives is at most 5 %. The
    detectable difference is that of a test at 0.05 / m, the level of the smallest p-value of m comparisons.

    Args:
        comparisons: the comparisons of the table; None for a missing one.
        family_size: the planned number of comparisons, if some have no p-value yet; None = the number of p-values.
    """
    p_values = [one.p_value for one in comparisons if one is not None and one.p_value is not None]
    level = SIGNIFICANCE_LEVEL / max(family_size or 0, len(p_values), 1)
    adjusted = iter(holm(p_values, family_size))
    corrected: list[Comparison | None] = []
    for one in comparisons:
        p_value = None if one is None or one.p_value is None else next(adjusted)
        corrected.append(one and replace(_with_detectable(one, level), corrected_p_value=p_value))
    return corrected


def _with_detectable(comparison: Comparison, level: float = 1 - CONFIDENCE_LEVEL) -> Comparison:
    """Return a comparison with the difference that its test detects at a level; None if there is none."""
    interval, degrees = comparison.interval, comparison.degrees
    if interval is None or comparison.p_value is None:
        return comparison
    if degrees is None:
        detectable = detectable_difference(interval, degrees, level, comparison.step)
    else:
        detectable = detectable_by_sign_flips(interval, degrees + 1, level, comparison.step)
    return replace(comparison, detectable=detectable if math.isfinite(detectable) else None)


def holm(p_values: Sequence[float], family_size: int | None = None) -> list[float]:
    """Return p-values adjusted by the step-down method of Holm (1979), in the order given.

    With p_(1) <= ... <= p_(m), the adjusted p_(i) is the largest of min(1, (m - j + 1) p_(j)) over j <= i.

    Args:
        p_values: the known p-values.
        family_size: m, if some p-values are not known yet; each of these counts as larger than the known ones.
    """
    ordered = np.argsort(p_values, kind="stable")
    size = max(family_size or 0, len(p_values))
    factors = np.arange(size, size - len(p_values), -1)
    adjusted = np.empty(len(p_values))
    adjusted[ordered] = np.minimum(1, np.maximum.accumulate(np.asarray(p_values)[ordered] * factors))
    return [float(p_value) for p_value in adjusted]


def can_test_over_seeds(num_seeds: int, family_size: int = 1) -> bool:
    """Return whether a sign-flip test over the seeds can be significant as the best of `family_size` comparisons.

    The smallest two-sided p-value of n differences is 2 / 2^n: 6 seeds are enough for one comparison, 10 for 20.
    """
    return 2 / 2**num_seeds * family_size < SIGNIFICANCE_LEVEL
