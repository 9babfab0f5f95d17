"""Power against simulation, and the numbers of seeds that the studies state beforehand."""

import itertools
import math

import numpy as np
import pytest
from conftest import ROOT
from scipy import stats
from scipy.stats import norm

from alignattn.commands.reproduce.results import share_rows
from alignattn.commands.reproduce.table import load_table
from alignattn.evaluation.statistics.comparison import compare, correct
from alignattn.evaluation.statistics.example_scores import mean_scores
from alignattn.evaluation.statistics.intervals import Interval
from alignattn.evaluation.statistics.paired_tests import sign_flip_p_value, t_interval
from alignattn.evaluation.statistics.power import POWER, detectable_by_sign_flips, detectable_difference
from alignattn.reports.measures import Measure
from alignattn.reports.table import Cell, compare_cells

SMALL_STUDY = str(ROOT / "docs" / "study" / "study-small.yaml")

SIMULATIONS = 20_000


def power_of(difference, deviation, seeds, level=0.05):
    """The power of a two-sided paired t-test of a true difference, both in the unit of the deviation."""
    limit, distance = stats.t.ppf(1 - level / 2, seeds - 1), abs(difference) * math.sqrt(seeds) / deviation
    # SciPy returns NaN in the far tail, whose probability is 0.
    return stats.nct.sf(limit, seeds - 1, distance) + np.nan_to_num(stats.nct.cdf(-limit, seeds - 1, distance))


@pytest.mark.parametrize(("difference", "deviation", "seeds", "level"), [(1, 1.6, 23, 0.05), (1, 1.1, 8, 0.05 / 3)])
def test_power_is_that_of_simulated_studies(difference, deviation, seeds, level):
    drawn = np.random.default_rng(0).normal(difference, deviation, (SIMULATIONS, seeds))
    found = np.mean(stats.ttest_1samp(drawn, 0, axis=1).pvalue < level)
    error = math.sqrt(found * (1 - found) / SIMULATIONS)
    assert power_of(difference, deviation, seeds, level) == pytest.approx(found, abs=4 * error)


@pytest.mark.parametrize(
    ("deviation", "seeds", "of_thirty"),
    [(1.1, (12, 16, 23), "99"), (1.6, (23, 30, 43), "80"), (1.9, (31, 41, 59), "64")],
)
def test_one_point_needs_as_many_seeds_as_the_studies_say(deviation, seeds, of_thirty):
    for family, count in zip((1, 3, 20), seeds, strict=True):
        enough, too_few = (power_of(1, deviation, number, level=0.05 / family) for number in (count, count - 1))
        assert enough >= POWER > too_few
    assert f"{100 * power_of(1, deviation, 30, level=0.05 / 3):.0f}" == of_thirty
    said = " ".join(note for name in ("study", SMALL_STUDY) for note in load_table(name, kept=True).notes)
    assert all(f" {number}" in said for number in (*seeds, of_thirty))


@pytest.mark.parametrize(
    ("deviation", "of_thirty", "power", "of_ten"),
    [(0.65, 0.44, 1.00, 1.3), (0.97, 0.66, 0.95, 2.0), (1.6, 1.08, 0.47, 3.2)],
)
def test_the_study_why_finds_what_it_says(deviation, of_thirty, power, of_ten):
    assert power_of(of_thirty, deviation, 30, 0.05 / 6) == pytest.approx(POWER, abs=0.015)
    assert power_of(0.8, deviation, 30, 0.05 / 6) == pytest.approx(power, abs=0.005)
    # The smallest p-value of ten seeds times 13 is below 0.05, and the second smallest is not: all ten go one way.
    assert norm.cdf(of_ten / deviation) ** 10 == pytest.approx(POWER, abs=0.03)


@pytest.mark.parametrize("seeds", [2, 5, 30])
def test_the_detectable_difference_is_found_with_the_power(seeds):
    differences = np.random.default_rng(1).normal(0, 1.6, seeds)
    detectable = detectable_difference(t_interval(differences), seeds - 1)
    assert power_of(detectable, differences.std(ddof=1), seeds) == pytest.approx(POWER, abs=1e-6)


def of_deviation(seeds):
    """The interval of paired differences with a standard deviation of 1."""
    half = stats.t.ppf(0.975, seeds - 1) / math.sqrt(seeds)
    return Interval(-half, half)


@pytest.mark.parametrize(("seeds", "family"), [(6, 1), (10, 13), (10, 25), (12, 80)])
def test_a_sign_flip_test_that_needs_all_seeds_to_go_one_way_has_a_power_in_closed_form(seeds, family):
    """The chance that all differences of a standard deviation of 1 are positive is Φ(difference) to the power of n."""
    found = detectable_by_sign_flips(of_deviation(seeds), seeds, 0.05 / family)
    assert norm.cdf(found) ** seeds == pytest.approx(POWER, abs=0.01)


@pytest.mark.parametrize(("seeds", "family"), [(8, 1), (10, 3)])
def test_the_sign_flip_test_finds_the_detectable_difference_in_simulated_studies(seeds, family):
    found = detectable_by_sign_flips(of_deviation(seeds), seeds, 0.05 / family)
    drawn = np.random.default_rng(3).normal(found, 1, (500, seeds))
    power = np.mean([family * sign_flip_p_value(differences, 0) < 0.05 for differences in drawn])
    error = math.sqrt(POWER * (1 - POWER) / len(drawn))
    assert power == pytest.approx(POWER, abs=3.5 * error)


def test_beyond_sixteen_seeds_the_sign_flip_test_detects_what_student_does():
    of_sixteen, of_seventeen = (detectable_by_sign_flips(of_deviation(seeds), seeds, 0.05 / 9) for seeds in (16, 17))
    assert of_seventeen == detectable_difference(of_deviation(17), 16, 0.05 / 9)
    assert of_seventeen < of_sixteen < 1.1 * of_seventeen


def test_nothing_is_detectable_where_no_p_value_can_be_small_enough():
    one = compare(*np.random.default_rng(4).normal(0, 1.6, (2, 6)))
    assert one.detectable is not None
    assert math.isinf(detectable_by_sign_flips(one.interval, 6, 0.05 / 2))
    assert correct([one], 2)[0].detectable is None
    # Without a test, nothing can be.
    untested = compare(*np.random.default_rng(4).normal(0, 1.6, (2, 5)))
    assert untested.interval is not None
    assert untested.p_value is None
    assert untested.detectable is None


@pytest.mark.parametrize(("seeds", "family"), [(20, 25), (30, 3)])
def test_what_is_detectable_after_correction_is_found_at_the_level_of_the_smallest_p_value(seeds, family):
    drawn = np.random.default_rng(4).normal(0, 1.6, (2, seeds))
    alone = compare(*drawn)
    (corrected,) = correct([alone], family)
    assert power_of(corrected.detectable, np.subtract(*drawn).std(ddof=1), seeds, 0.05 / family) == pytest.approx(POWER)
    assert corrected.detectable > alone.detectable
    assert correct([alone])[0].detectable == pytest.approx(alone.detectable)


def test_of_a_bootstrap_it_is_that_of_a_normal_mean():
    # (1.96 + 0.84) standard errors, the textbook value.
    assert detectable_difference(Interval(-1.96, 1.96)) == pytest.approx(2.80, abs=0.005)
    # After correction for five, 2.576 and 0.84.
    assert detectable_difference(Interval(-1.96, 1.96), level=0.01) == pytest.approx(3.42, abs=0.005)


@pytest.mark.parametrize(("seeds", "family"), [(6, 1), (8, 1), (10, 3), (12, 2)])
def test_no_less_than_the_smallest_significant_mean_of_accuracies_counts_as_detectable(seeds, family):
    """Of twelve seeds on 60 rows, ten alike, 0.58 points counted as detectable; 0.83 is the least that can be."""
    rows = 60
    baseline = np.full(seeds, 40)
    gains = [np.arange(seeds) < changed for changed in range(1, seeds + 1)]
    compared = [correct([compare((baseline + gain) / rows, baseline / rows, rows=rows)], family)[0] for gain in gains]
    significant = [one.difference for one in compared if one.survives]
    assert min(significant) == pytest.approx(min(one.detectable for one in compared))
    # All signs by SciPy: the mean one row below is not significant.
    largest = [gain for gain, one in zip(gains, compared, strict=True) if not one.survives][-1]
    tested = stats.permutation_test((largest / 1.0,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert family * tested.pvalue >= 0.05
    assert min(significant) == pytest.approx((largest.sum() + 1) / (seeds * rows))
    # Another measure of the same values stays as it is.
    gain = gains[1] / rows
    assert compare(baseline / rows + gain, baseline / rows).detectable < compared[1].detectable


@pytest.mark.parametrize(
    ("path", "rows"),
    [
        ("metrics.test.accuracy", 60),
        ("metrics.test.matthews_correlation", None),
        ("cost.seconds", None),
        ("sides.far.figures.after.accuracy.value", 80),
        ("sides.far.figures.after.expected_calibration_error.value", None),
        ("accuracy_under_attack", 58),
        ("failed_share", None),
    ],
)
def test_tables_tell_the_rows_of_accuracies_and_of_nothing_else(path, rows):
    results = {
        "evaluation_rows": {"validation": 40, "test": 60},
        "sides": {"far": {"held_out_rows": 80}},
        **{"failed": 30, "succeeded": 20, "skipped": 10, "errors": 2},
    }
    assert share_rows(results, path.split(".")) == rows


@pytest.mark.parametrize(("rows", "of"), [(60, 60), (58, 58), (None, 60), (60, 59.5)])
def test_what_shares_of_rows_cannot_show_is_not_detectable(rows, of):
    cells = [
        Cell(
            row=name,
            column="",
            measure=Measure(label=""),
            values={seed: (40 + (seed < more)) / of for seed in range(12)},
            share_rows=rows,
            baseline=baseline,
        )
        for name, more, baseline in (("plain", 0, None), ("changed", 2, "plain"))
    ]
    (_, compared), _ = compare_cells(cells)
    assert (compared.comparison.detectable == pytest.approx(6 / (12 * of))) == (rows == of)


def test_the_power_for_a_gain_on_sixty_rows_is_what_the_page_says():
    """Each right answer of one row alone is one more of 60; its number is Poisson's."""
    rng, power = np.random.default_rng(0), {}
    for points, lost in itertools.product((0.83, 1.5), (0, 0.2)):
        counts = rng.poisson(points * 60 / 100 + lost, (1000, 12)) - rng.poisson(lost, (1000, 12))
        power[points, lost] = np.mean([sign_flip_p_value(one / 60, 0) < 0.05 for one in counts])
        if not lost:
            # Six of twelve seeds must gain, and any six that gain are significant.
            exact = stats.binom.sf(5, 12, -math.expm1(-points * 60 / 100))
            assert power[points, lost] == pytest.approx(exact, abs=0.05)
    page = " ".join((ROOT / "docs" / "referee.md").read_text(encoding="utf-8").split())
    assert "0.83 points is found in 22 to 31 % of studies, and one of 1.5 points in 61 to 83 %" in page
    said = {(0.83, 0.2): 0.22, (0.83, 0): 0.31, (1.5, 0.2): 0.61, (1.5, 0): 0.83}
    assert power == pytest.approx(said, abs=0.05)


@pytest.mark.parametrize("family", [1, 4])
def test_no_less_than_mcnemars_test_can_find_on_one_seed_counts_as_detectable(family):
    """Of one seed on 60 rows of which one differs, 3.57 points counted as detectable; 10 are the least that can be."""
    rows, level = 60, 0.05 / family
    fewest = next(lost for lost in range(1, rows) if stats.binomtest(0, lost, 0.5).pvalue < level)
    of_baseline, examples = np.ones(rows), np.arange(rows)
    for lost in (0, 1, fewest):
        of_baseline[:lost] = 0
        pair = mean_scores(examples, np.ones(rows)), mean_scores(examples, of_baseline.copy())
        compared = compare([1.0], [of_baseline.mean()], lambda pair=pair: [pair])
        assert (compared.p_value < level) == (lost == fewest)
        assert correct([compared], family)[0].detectable >= fewest / rows - 1e-12


def test_an_interval_without_width_says_nothing_about_what_is_detectable():
    assert compare([0.5] * 3, [0.4] * 3).detectable is None
    assert correct([compare([0.5] * 12, [0.4] * 12)])[0].detectable is None
    assert correct([compare([0.5] * 12, [0.4] * 12, rows=60)])[0].detectable == pytest.approx(6 / 12 / 60)


def test_a_comparison_tells_it():
    drawn = np.random.default_rng(2).normal(0, 1, (2, 12))
    one = compare(*drawn)
    assert one.detectable == detectable_by_sign_flips(one.interval, 12)
    assert compare([1.0], [2.0]).detectable is None
