"""Comparisons with plain attention: against SciPy, scikit-learn, the normal theory, and examples computed by hand."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from alignattn.evaluation.calibration import expected_calibration_error
from alignattn.evaluation.calibration.measures import calibration_scores
from alignattn.evaluation.statistics.comparison import (
    Comparison,
    can_test_over_seeds,
    compare,
    compare_ensemble,
    correct,
    holm,
)
from alignattn.evaluation.statistics.example_scores import (
    ExampleScores,
    example_scores,
    mean_scores,
    ratio_scores,
)
from alignattn.evaluation.statistics.intervals import BATCH_NUMBERS, Interval
from alignattn.evaluation.statistics.paired_tests import PairedScores, sign_flip_p_value
from alignattn.utils.errors import AlignAttnError

DARWIN = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]) / 8
"""Heights of crossed minus self-fertilised maize in inches (Darwin 1876); Fisher (1935) enumerated their signs."""

ORACLES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy_score,
    "f1": lambda labels, predictions: f1_score(labels, predictions, labels=[1], average="macro", zero_division=0.0),
    "macro_f1": lambda labels, predictions: f1_score(labels, predictions, average="macro", zero_division=0.0),
    "matthews_correlation": matthews_corrcoef,
    "pearson": lambda labels, predictions: stats.pearsonr(labels, predictions).statistic,
    "spearmanr": lambda labels, predictions: stats.spearmanr(labels, predictions).statistic,
}
CORRELATIONS = ("pearson", "spearmanr")


def labelled(metric: str, num_rows: int, rng: np.random.Generator) -> np.ndarray:
    """Return labels: tied real numbers for a correlation, 3 classes for other metrics."""
    return rng.normal(size=num_rows).round(1) + 3 if metric in CORRELATIONS else rng.integers(0, 3, num_rows)


def predicted(metric: str, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return predictions that are mostly right."""
    if metric in CORRELATIONS:
        return (labels + rng.normal(size=labels.shape)).round(1)
    return np.where(rng.random(labels.shape) < 0.7, labels, rng.integers(0, 3, labels.shape))


def compare_scores(pairs: PairedScores, **options: int) -> Comparison:
    """Compare runs by their examples alone."""
    return compare([one.value for one, _ in pairs], [other.value for _, other in pairs], lambda: pairs, **options)


def ends(compared: Comparison) -> tuple[float, float]:
    assert compared.interval is not None
    return compared.interval.low, compared.interval.high


def right_or_wrong(*systems: np.ndarray) -> list[ExampleScores]:
    return [mean_scores(np.arange(len(is_right)), is_right) for is_right in systems]


# --- statistics of examples


@pytest.mark.parametrize("metric", ORACLES)
def test_metric_is_that_of_scikit_learn_and_scipy(metric: str) -> None:
    rng = np.random.default_rng(0)
    for num_rows in (5, 50, 500):
        labels = labelled(metric, num_rows, rng)
        predictions = predicted(metric, labels, rng)
        assert example_scores(metric, labels, predictions).value == pytest.approx(ORACLES[metric](labels, predictions))


def test_all_metrics_of_tasks_are_here_and_agree_where_they_are_undefined() -> None:
    from alignattn.tasks.metrics import METRICS, score

    cases = {"one class": ([1, 1, 1], [0, 0, 0]), "constant side": ([0, 1, 1], [1, 1, 1]), "equal": ([0, 0], [0, 0])}
    for name in (name for name, metric in METRICS.items() if metric.function is not None):
        for case, (labels, predictions) in cases.items():
            expected = score(name, predictions, labels)
            # An undefined metric of a task counts 0 here, so that a resample without one of the classes has a value.
            assert example_scores(name, labels, predictions).value == pytest.approx(np.nan_to_num(expected)), (
                name,
                case,
            )


@pytest.mark.parametrize("metric", ORACLES)
def test_metric_of_resamples_is_that_of_each(metric: str) -> None:
    rng = np.random.default_rng(1)
    labels = labelled(metric, 30, rng)
    predictions = predicted(metric, labels, rng)
    scores = example_scores(metric, labels, predictions)
    rows = rng.integers(30, size=(2, 20, 30))
    together = scores.statistic(*(array[rows] for array in scores.arrays))
    assert together.shape == (2, 20)
    for index in np.ndindex(2, 20):
        assert together[index] == pytest.approx(ORACLES[metric](labels[rows[index]], predictions[rows[index]]))


def test_calibration_error_is_that_of_predictions() -> None:
    rng = np.random.default_rng(0)
    probabilities, labels = rng.dirichlet([1, 1, 1], size=200), rng.integers(0, 3, 200)
    error = calibration_scores(probabilities, labels).value
    assert error == pytest.approx(expected_calibration_error(probabilities, labels))


def test_share_of_failed_attacks_is_of_those_attacked() -> None:
    assert ratio_scores(range(4), [1, 0, 0, 1], [1, 1, 0, 1]).value == pytest.approx(2 / 3)


# --- over seeds


def test_all_signs_of_darwins_maize() -> None:
    compared = compare(DARWIN + 1, np.ones(15))
    assert compared.p_value == pytest.approx(1726 / 2**15)
    assert compared.difference == pytest.approx(314 / 15 / 8)
    assert compared.seeds == 15
    assert "permutation test" in compared.test
    assert "15 paired seeds" in compared.test


@pytest.mark.parametrize("num_seeds", [6, 9])
def test_seeds_against_all_signs_and_the_paired_t_test(num_seeds: int) -> None:
    rng = np.random.default_rng(num_seeds)
    values, baseline = rng.normal(0.9, 0.02, num_seeds), rng.normal(0.88, 0.02, num_seeds)
    compared = compare(values, baseline)
    signs = np.array(list(itertools.product([-1, 1], repeat=num_seeds)))
    means = np.abs(signs @ (values - baseline)) / num_seeds
    assert compared.p_value == pytest.approx(np.mean(means >= abs(compared.difference) - 1e-12))
    expected = stats.ttest_rel(values, baseline).confidence_interval(0.95)
    assert ends(compared) == pytest.approx((expected.low, expected.high))


def test_patterns_with_the_same_mean_count_whatever_their_sum_is_rounded_to() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        right, counts = rng.integers(700, 720, 10), rng.integers(-9, 12, 10)
        signs = np.array(list(itertools.product([-1, 1], repeat=10)))
        exact = np.mean(np.abs(signs @ counts) >= abs(counts.sum()))
        compared = compare(100 * (right + counts) / 872, 100 * right / 872)
        assert compared.p_value == pytest.approx(exact)


@pytest.mark.parametrize(("num_seeds", "rows"), [(1, 60), (12, 60), (17, 277), (18, 1725)])
@pytest.mark.parametrize("unit", [1, 100], ids=["fractions", "points"])
def test_counts_of_rows_have_the_p_value_of_all_signs_beyond_16_seeds_too(num_seeds, rows, unit) -> None:
    """The p-value of more than 16 seeds was drawn at random: that of 30 accuracies was 1.5e-5 at least."""
    rng = np.random.default_rng(num_seeds)
    patterns = (np.arange(2**num_seeds)[:, None] >> np.arange(num_seeds)) & 1
    for shift, spread in itertools.product((0, 1, 5), (0, 2, 20)):
        right = rng.integers(rows // 2, rows - 20, num_seeds)
        counts = (shift + rng.normal(0, spread, num_seeds)).round().astype(int).clip(-20, 20)
        sums = (2 * patterns - 1) @ counts
        exact = np.mean(np.abs(sums) >= abs(counts.sum()))
        found = sign_flip_p_value(unit * (right + counts) / rows - unit * right / rows, 0)
        assert found == pytest.approx(exact, rel=1e-9)


def test_thirty_numbers_on_no_grid_have_a_drawn_p_value_near_that_of_the_normal_theory() -> None:
    differences = np.random.default_rng(3).normal(0.3, 1, 30)
    first, second = (sign_flip_p_value(differences, seed) for seed in (0, 1))
    assert first != second
    z = differences.sum() / np.sqrt((differences**2).sum())
    assert first == pytest.approx(2 * stats.norm.sf(abs(z)), abs=0.01)


def test_six_seeds_are_tested_and_their_examples_are_not_read() -> None:
    def refuse() -> PairedScores:
        raise AssertionError("read")

    compared = compare([2.0, 3, 4, 5, 6, 7], [1.0] * 6, refuse)
    assert compared.p_value == pytest.approx(2 / 2**6)
    with pytest.raises(AssertionError, match="read"):
        compare([2.0, 3, 4, 5, 6], [1.0] * 5, refuse)
    with pytest.raises(AssertionError, match="read"):
        compare([2.0, 3, 4, 5, 6, 7], [1.0] * 6, refuse, family_size=2)


def test_seeds_suffice_where_their_smallest_p_value_survives_correction() -> None:
    fewest = {size: next(n for n in range(1, 20) if can_test_over_seeds(n, size)) for size in (1, 2, 20)}
    assert fewest == {1: 6, 2: 7, 20: 10}


def test_one_number_against_one_number() -> None:
    compared = compare([0.8], [0.7])
    assert compared == Comparison(pytest.approx(0.1), None, None, None, "no test; one seed", 1)


def test_seeds_that_are_all_alike() -> None:
    compared = compare([0.8] * 6, [0.8] * 6)
    assert (compared.difference, compared.interval, compared.p_value) == (0, Interval(0, 0), 1)


# --- over examples


def test_bootstrap_is_that_of_the_normal_theory_of_rows_paired_over_systems_and_seeds() -> None:
    rng = np.random.default_rng(0)
    difficulty = rng.normal(size=1000)
    pairs, differences = [], np.zeros(1000)
    for _ in range(3):
        # The runs err on the same rows: if resampled separately, the interval would be about 5 times as wide.
        measured, baseline = (difficulty + rng.normal(shift, 0.3, 1000) for shift in (0.005, 0))
        pairs.append((mean_scores(range(1000), measured), mean_scores(range(1000), baseline)))
        differences += (measured - baseline) / 3
    compared = compare_scores(pairs)
    low, high = stats.norm.interval(0.95, differences.mean(), stats.sem(differences))
    assert ends(compared) == pytest.approx((low, high), abs=0.05 * (high - low))
    z = differences.mean() / stats.sem(differences)
    assert compared.p_value == pytest.approx(2 * stats.norm.sf(z), rel=0.15)
    assert compared.test == "bootstrap over 1000 examples, for these 3 seeds"


@pytest.mark.parametrize("metric", ["f1", "spearmanr"])
def test_bootstrap_is_scipys(metric: str) -> None:
    rng = np.random.default_rng(2)
    labels = labelled(metric, 150, rng)
    first, second = predicted(metric, labels, rng), predicted(metric, labels, rng)

    def difference(labels: np.ndarray, first: np.ndarray, second: np.ndarray) -> float:
        return ORACLES[metric](labels, first) - ORACLES[metric](labels, second)

    compared = compare_scores([(example_scores(metric, labels, first), example_scores(metric, labels, second))])
    oracle = stats.bootstrap(
        (labels, first, second),
        difference,
        n_resamples=600,
        vectorized=False,
        paired=True,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    low, high = oracle.confidence_interval
    assert ends(compared) == pytest.approx((low, high), abs=0.12 * (high - low))
    assert compared.difference == pytest.approx(difference(labels, first, second))
    assert compared.test == "bootstrap over 150 examples, for this seed"


def test_bootstrap_has_its_nominal_coverage_and_false_alarm_rate() -> None:
    covered = false_alarms = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        is_hard = rng.random(150) < 0.3
        draw = [np.where(is_hard, rng.random(150) < chance, rng.random(150) < 0.95) for chance in (0.7, 0.7, 0.3, 0.3)]
        better, like_better, plain, like_plain = right_or_wrong(*draw)
        apart = compare_scores([(better, plain), (like_better, like_plain)], resamples=400)
        alike = compare_scores([(better, like_better), (plain, like_plain)], resamples=400)
        low, high = ends(apart)
        covered += low <= 0.3 * (0.7 - 0.3) <= high
        false_alarms += alike.p_value < 0.05
    assert 180 <= covered <= 199
    assert 1 <= false_alarms <= 20


def test_calibration_errors_have_the_mirrored_interval() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 300)
    pair = tuple(calibration_scores(rng.dirichlet([1, 1], size=300), labels) for _ in range(2))
    mirrored = compare_scores([pair])
    plain = compare_scores([tuple(replace(scores, interval_method="percentile") for scores in pair)])
    low, high = ends(plain)
    assert ends(mirrored) == pytest.approx((2 * plain.difference - high, 2 * plain.difference - low))


def test_mcnemar_of_one_seed() -> None:
    measured, plain = right_or_wrong(np.repeat([1, 1, 0, 0], [20, 7, 1, 5]), np.repeat([1, 0, 1, 0], [20, 7, 1, 5]))
    compared = compare_scores([(measured, plain)])
    # 8 rows are discordant, 1 of them against: 2 (1 + 8) / 2^8.
    assert compared.p_value == pytest.approx(18 / 256)
    assert compared.difference == pytest.approx(6 / 33)
    assert compared.test == "McNemar's exact test and bootstrap interval over 33 examples, for this seed"
    assert compare_scores([(plain, measured)]).p_value == pytest.approx(compared.p_value)
    assert "bootstrap over" in compare_scores([(measured, plain)] * 2).test


def test_mcnemar_is_used_for_accuracy_and_not_for_fractional_scores() -> None:
    labels, right, wrong = np.ones(20, int), np.ones(20, int), np.repeat([0, 1], 10)
    pair = (example_scores("accuracy", labels, right), example_scores("accuracy", labels, wrong))
    assert compare_scores([pair]).p_value == pytest.approx(2 / 2**10)
    assert (
        "McNemar" not in compare_scores([(mean_scores(range(3), [0, 0.5, 1]), mean_scores(range(3), [0, 1, 1]))]).test
    )


@pytest.mark.parametrize("metric", ORACLES)
@pytest.mark.parametrize("num_seeds", [1, 3])
def test_identical_predictions(metric: str, num_seeds: int) -> None:
    rng = np.random.default_rng(0)
    labels = labelled(metric, 40, rng)
    scores = example_scores(metric, labels, predicted(metric, labels, rng))
    compared = compare_scores([(scores, scores)] * num_seeds, resamples=100)
    assert (compared.difference, compared.interval, compared.p_value) == (0, Interval(0, 0), 1)


def test_the_seed_decides() -> None:
    rng = np.random.default_rng(0)
    pair = tuple(mean_scores(range(30), rng.random(30)) for _ in range(2))
    first, again, other = (compare_scores([pair], seed=seed, resamples=50) for seed in (1, 1, 2))
    assert first == again != other


def test_resamples_are_computed_in_batches_that_fit_a_cache() -> None:
    calls = []

    def watched_mean(scores: np.ndarray) -> np.ndarray:
        calls.append(scores.size)
        return scores.mean(axis=-1)

    rng = np.random.default_rng(0)
    pairs = [
        tuple(ExampleScores(np.arange(1000), watched_mean, (rng.random(1000),)) for _ in range(2)) for _ in range(3)
    ]
    compare_scores(pairs, resamples=1000)
    assert max(calls) <= BATCH_NUMBERS
    assert len(calls) < 20  # 174 samples of both systems and 3 seeds per call, and each run alone


# --- correction


def test_holm_by_hand() -> None:
    # In order .005 .01 .03 .04, times 4 3 2 1: .02 .03 .06 .04; the last is raised to the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([]) == []


def test_correction_is_over_the_comparisons_that_were_tested() -> None:
    tested = [Comparison(0.1, None, p_value, None, "", 3) for p_value in (0.04, 0.01, 0.03)]
    untested = Comparison(0.1, None, None, None, "", 1)
    corrected = correct([None, tested[0], untested, tested[1], tested[2]])
    assert corrected[0] is None
    assert corrected[2] == untested
    assert [corrected[index].corrected_p_value for index in (1, 3, 4)] == pytest.approx([0.06, 0.03, 0.06])
    assert [one is not None and one.survives for one in corrected] == [False, False, False, True, False]
    assert correct([None, untested]) == [None, untested]


def test_unknown_p_values_count_as_the_largest():
    p_values = [0.004, 0.03, 0.011]
    assert holm(p_values, 5) == holm([*p_values, 1.0, 1.0])[:3]
    assert holm(p_values, 3) == holm(p_values, 1) == holm(p_values)


def test_an_ensemble_is_compared_with_its_members_over_their_examples() -> None:
    rng = np.random.default_rng(0)
    whole, *members = right_or_wrong(*(rng.random((4, 300)) < [[0.9], [0.7], [0.7], [0.8]]))
    compared = compare_ensemble(whole.value, [one.value for one in members], whole, members)
    by_row = whole.arrays[0] - np.mean([one.arrays[0] for one in members], axis=0)
    assert compared.difference == pytest.approx(by_row.mean())
    low, high = stats.norm.interval(0.95, by_row.mean(), stats.sem(by_row))
    assert ends(compared) == pytest.approx((low, high), abs=0.1 * (high - low))
    assert compared.seeds == 0
    assert compare_ensemble(0.5, [0.4], None, []).test == "no test; an ensemble is one model of all seeds"


# --- mistakes


def zeros_and_ones(num_rows: int, label: int = 0) -> ExampleScores:
    return example_scores("accuracy", np.full(num_rows, label), np.full(num_rows, label))


@pytest.mark.parametrize(
    ("values", "baseline", "message"),
    [
        ([0.1, 0.2], [0.1], "2 values cannot be paired with 1"),
        ([], [], "0 values"),
        ([float("nan")], [0.1], "NaN or infinity"),
        ([0.1], [float("inf")], "NaN or infinity"),
    ],
)
def test_values_that_cannot_be_compared(values: list[float], baseline: list[float], message: str) -> None:
    with pytest.raises(AlignAttnError, match=message):
        compare(values, baseline)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(zeros_and_ones(4), zeros_and_ones(5))], "runs on 4 and on 5 examples"),
        ([(zeros_and_ones(4), zeros_and_ones(4, label=1))], "example 0 is 0 in one and 1 in another"),
        ([(zeros_and_ones(4), example_scores("f1", [0] * 4, [0] * 4))], "different measures"),
        ([(zeros_and_ones(4), zeros_and_ones(4))] * 2, "have 2 seeds and the values 1"),
        (
            [(zeros_and_ones(4), example_scores("accuracy", [0] * 4, [0, 0, 0, 1]))],
            "give 0.7500 and its results 1.0000",
        ),
    ],
)
def test_examples_that_cannot_be_paired(pairs: PairedScores, message: str) -> None:
    with pytest.raises(AlignAttnError, match=message) as caught:
        compare([1.0], [1.0], lambda: pairs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: example_scores("rouge", [0], [0]), "metric 'rouge'.*accuracy, f1, macro_f1"),
        (lambda: example_scores("accuracy", [0, 1], [0]), "one length"),
        (lambda: example_scores("accuracy", [], []), "at least 1"),
        (lambda: example_scores("spearmanr", [0.0, 1.0], [0.0, np.nan]), "NaN"),
        (lambda: example_scores("accuracy", ["a", "b"], [0, 1]), "than numbers"),
        (lambda: example_scores("accuracy", [0, 1], [0, None]), "than numbers"),
        (lambda: mean_scores([0, 1], [0.0, np.inf]), "infinity"),
        (lambda: ratio_scores([0, 1], [0, 0], [0, 0]), "denominators are all 0"),
        (lambda: calibration_scores([[0.5, 0.4]], [0]), "sum"),
        (lambda: compare_scores([(zeros_and_ones(4), zeros_and_ones(4))], resamples=0), "resamples 0"),
    ],
)
def test_invalid_scores_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(AlignAttnError, match=message):
        build()


@pytest.mark.parametrize(("constant", "num_rows"), [(2.6, 7), (0.3, 10), (4.4, 100)])
def test_correlation_with_a_constant_is_0_whatever_its_sums_are_rounded_to(constant: float, num_rows: int) -> None:
    assert example_scores("pearson", np.full(num_rows, constant), np.arange(num_rows) ** 2.0).value == 0


@pytest.mark.parametrize("scores", [None, lambda: None])
def test_few_seeds_without_examples_have_an_interval_and_no_test(scores: Callable[[], None] | None) -> None:
    compared = compare([0.80, 0.84, 0.83], [0.80, 0.82, 0.80], scores)
    expected = stats.ttest_rel([0.80, 0.84, 0.83], [0.80, 0.82, 0.80]).confidence_interval(0.95)
    assert compared.p_value is None
    assert ends(compared) == pytest.approx((expected.low, expected.high))
    assert compared.test == "no test; t-interval over 3 paired seeds"


def test_p_value_and_interval_agree_on_what_is_significant() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        pair = tuple(mean_scores(range(40), rng.normal(shift, 1, 40)) for shift in (0.4, 0))
        compared = compare_scores([pair], resamples=2000)
        low, high = ends(compared)
        if not 0.045 < compared.p_value < 0.055:
            assert (compared.p_value < 0.05) == (low > 0 or high < 0)


def test_smallest_p_value_counts_the_measured_difference_in() -> None:
    worse, better = right_or_wrong(np.zeros(50), np.ones(50))
    assert compare_scores([(better, worse)] * 2, resamples=999).p_value == pytest.approx(2 / 1000)


def test_seeds_in_another_order_are_no_difference() -> None:
    rng = np.random.default_rng(0)
    first, second, third = (mean_scores(range(60), rng.random(60)) for _ in range(3))
    compared = compare_scores([(first, second), (second, third), (third, first)], resamples=200)
    assert (compared.interval, compared.p_value) == (Interval(0, 0), 1)


def test_one_example_cannot_be_resampled() -> None:
    pair = (mean_scores([0], [1]), mean_scores([0], [0]))
    assert compare_scores([pair]).test == "no test; one seed"
