"""Power against simulation, and the numbers of seeds that the studies state beforehand."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.stats import norm

from alignattn.commands.reproduce.table import load_table
from alignattn.evaluation.statistics.comparison import compare, correct
from alignattn.evaluation.statistics.intervals import Interval
from alignattn.evaluation.statistics.paired_tests import sign_flip_p_value, t_interval
from alignattn.evaluation.statistics.power import POWER, detectable_by_sign_flips, detectable_difference, power_of

SIMULATIONS = 20_000


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
    said = " ".join(note for name in ("study", "study-small") for note in load_table(name).notes)
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


@pytest.mark.parametrize(("seeds", "family"), [(8, 1), (10, 3), (10, 9)])
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


@pytest.mark.parametrize(("seeds", "family"), [(2, 25), (30, 3)])
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


def test_a_comparison_tells_it():
    drawn = np.random.default_rng(2).normal(0, 1, (2, 12))
    one = compare(*drawn)
    assert one.detectable == detectable_by_sign_flips(one.interval, 12)
    assert compare([1.0], [2.0]).detectable is None
