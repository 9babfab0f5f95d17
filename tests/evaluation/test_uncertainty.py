"""Bootstrap intervals: against the normal theory, their coverage, and the size of their batches."""

from functools import partial

import numpy as np
import pytest
from scipy import stats

from alignattn.evaluation.calibration import FIGURES, summarise
from alignattn.evaluation.calibration.measures import RowScores, equal_mass_error, equal_width_error, largest_error
from alignattn.evaluation.statistics.intervals import BATCH_NUMBERS, Interval, bootstrap_interval, wilson_interval
from alignattn.utils.errors import AlignAttnError


def mean(scores: np.ndarray) -> np.ndarray:
    return scores.mean(axis=-1)


def calibrated(num_rows: int, seed: int, over_confidence: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities of two classes, and labels that follow them except for the excess confidence."""
    rng = np.random.default_rng(seed)
    confidence = 0.5 + 0.5 * rng.beta(3, 1, num_rows)
    labels = (rng.random(num_rows) > confidence - over_confidence).astype(int)
    return np.stack([confidence, 1 - confidence], axis=1), labels


@pytest.mark.parametrize("method", ["percentile", "basic"])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_interval_of_a_mean_is_that_of_the_normal_theory(method: str, confidence: float) -> None:
    scores = np.random.default_rng(0).normal(size=1000)
    interval = bootstrap_interval(mean, scores, confidence=confidence, resamples=4000, method=method)
    low, high = stats.norm.interval(confidence, scores.mean(), stats.sem(scores))
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=0.1 * (high - low))


def test_arrays_are_resampled_together() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(size=50)

    def difference(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return (one - other).mean(axis=-1)

    interval = bootstrap_interval(difference, first, first - 3)
    assert (interval.low, interval.high) == pytest.approx((3, 3))


def test_the_seed_decides() -> None:
    scores = np.random.default_rng(0).normal(size=30)
    first, again, other = (bootstrap_interval(mean, scores, seed=seed, resamples=50) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("statistic", [equal_width_error, equal_mass_error, largest_error])
def test_errors_of_many_samples_at_once_are_those_of_each(statistic) -> None:
    rng = np.random.default_rng(0)
    confidence, is_right = rng.random((2, 3, 40)).round(1), rng.integers(0, 2, (2, 3, 40)).astype(float)
    together = statistic(confidence, is_right, 7)
    assert together.shape == (2, 3)
    for index in np.ndindex(2, 3):
        assert together[index] == pytest.approx(float(statistic(confidence[index], is_right[index], 7)))


@pytest.mark.parametrize("statistic", [equal_width_error, equal_mass_error])
def test_basic_intervals_hold_a_small_calibration_error_where_percentiles_miss_it(statistic) -> None:
    truth = 0.03
    held = {"percentile": 0, "basic": 0}
    for seed in range(100):
        scores = RowScores.of(*calibrated(200, seed, over_confidence=truth))
        for method in held:
            interval = bootstrap_interval(
                partial(statistic, num_bins=10), scores.confidence, scores.is_right, resamples=200, method=method
            )
            held[method] += interval.low <= truth <= interval.high
    assert held["basic"] >= 75
    assert held["percentile"] < held["basic"]


def test_figures_lie_in_their_range_and_means_in_their_intervals() -> None:
    probabilities, labels = calibrated(100, seed=0)
    estimates = summarise(probabilities, labels, resamples=200)
    assert list(estimates) == list(FIGURES)
    for name, estimate in estimates.items():
        assert isinstance(estimate.interval, Interval)
        assert 0 <= estimate.interval.low < estimate.interval.high
        if FIGURES[name].is_binned:
            assert estimate.interval.high <= 1
        else:
            assert estimate.interval.low < estimate.value < estimate.interval.high


def test_the_accuracy_of_one_row_has_an_interval_and_the_other_figures_have_none() -> None:
    estimates = summarise([[0.5, 0.5]], [0])
    assert {name for name, estimate in estimates.items() if estimate.interval is not None} == {"accuracy"}
    assert estimates["accuracy"].value == 1.0


def test_rows_that_are_all_right_have_wilsons_interval_and_errors_of_one_point() -> None:
    estimates = summarise([[1.0, 0.0]] * 5, [0] * 5, resamples=20)
    assert estimates["accuracy"].interval == wilson_interval(5, 5)
    assert estimates["brier_score"].interval == Interval(0.0, 0.0)
    assert estimates["expected_calibration_error"].interval == Interval(0.0, 0.0)


def test_samples_are_computed_in_batches_that_fit_a_cache() -> None:
    calls = []

    def watched_mean(scores: np.ndarray) -> np.ndarray:
        calls.append(scores.size)
        return mean(scores)

    bootstrap_interval(watched_mean, np.arange(10_000.0), resamples=1000)
    assert max(calls) <= BATCH_NUMBERS
    assert len(calls) < 15  # 104 samples per call, and the sample itself


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        (([1.0],), {}, "at least 2 rows, not 1"),
        (([1.0, 2.0], [1.0]), {}, "arrays \\[N\\] of one length"),
        ((), {}, "arrays \\[N\\] of one length"),
        (([1.0, 2.0],), {"resamples": 0}, "resamples 0"),
        (([1.0, 2.0],), {"confidence": 1.0}, "confidence 1.0"),
    ],
)
def test_mistakes(arrays: tuple[list[float], ...], options: dict[str, float], message: str) -> None:
    with pytest.raises(AlignAttnError, match=message):
        bootstrap_interval(mean, *arrays, **options)
