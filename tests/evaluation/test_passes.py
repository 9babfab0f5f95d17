"""PAvPU: against passes made by hand, SciPy's test row by row, and a share counted in a loop."""

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from scipy.stats import ttest_rel

from alignattn.evaluation.calibration import expected_calibration_error
from alignattn.evaluation.calibration.passes import PassScores, pavpu, summarise_passes
from alignattn.evaluation.statistics.intervals import wilson_interval
from alignattn.utils.errors import AlignAttnError

SURE = [[3.0, 0.0, 0.0], [3.1, 0.0, 0.0], [2.9, 0.1, 0.0], [3.0, 0.0, 0.2]]
"""Four passes that all predict class 0."""
TORN = [[1.0, 0.0, -3.0], [0.0, 1.1, -3.0], [1.2, 0.0, -3.0], [0.0, 0.9, -3.0]]
"""Four passes that alternate between class 0 and class 1, slightly in favour of class 0."""


def by_hand():
    """Return right rows, certain and uncertain, wrong rows, certain and uncertain, and a right and certain one."""
    return np.stack([SURE, TORN, SURE, TORN, SURE], axis=1), np.array([0, 0, 1, 2, 0])


def test_hand_made_passes():
    passes, labels = by_hand()
    scores = PassScores.of(passes)
    assert scores.is_certain().tolist() == [True, False, True, False, True]
    assert scores.suits(labels).tolist() == [True, False, False, True, True]
    assert scores.counts(labels) == {
        "accurate_certain": 2,
        "accurate_uncertain": 1,
        "inaccurate_certain": 1,
        "inaccurate_uncertain": 1,
    }
    assert pavpu(passes, labels) == 3 / 5
    # At that level, no row is certain.
    assert pavpu(passes, labels, level=1e-12) == 2 / 5


def test_the_test_and_the_share_against_loops():
    draw = np.random.default_rng(0)
    passes = draw.normal(size=(20, 40, 5)) + 0.6 * draw.normal(size=(40, 5))
    labels = draw.integers(0, 5, 40)
    suiting = 0
    scores = PassScores.of(passes)
    for row, label in enumerate(labels):
        mean = softmax(passes[:, row], axis=1).mean(axis=0)
        second, first = np.argsort(mean)[-2:]
        expected = ttest_rel(passes[:, row, first], passes[:, row, second]).pvalue
        assert scores.p_value[row] == pytest.approx(expected, rel=1e-9)
        assert scores.probabilities[row] == pytest.approx(mean)
        suiting += (first == label) == (expected < 0.05)
    assert 0 < suiting < len(labels)
    assert pavpu(passes, labels) == suiting / len(labels)
    # Log-probabilities are logits up to a constant per pass and row.
    assert PassScores.of(log_softmax(passes, axis=2)).p_value == pytest.approx(scores.p_value)


def test_passes_that_do_not_vary():
    same = np.repeat(np.array([[[2.0, 1.0], [1.0, 1.0]]]), 3, axis=0)
    assert PassScores.of(same).p_value.tolist() == [0, 1]


def test_the_figures_of_the_mean():
    passes, labels = by_hand()
    estimates = summarise_passes(passes, labels, resamples=50)
    assert estimates["pavpu"].value == 3 / 5
    assert estimates["certain"].value == 3 / 5
    assert estimates["pavpu"].interval.low <= 3 / 5 <= estimates["pavpu"].interval.high
    mean = softmax(passes, axis=2).mean(axis=0)
    assert estimates["expected_calibration_error"].value == pytest.approx(expected_calibration_error(mean, labels))
    assert estimates["pavpu"].interval == wilson_interval(3, 5)


@pytest.mark.parametrize(
    ("passes", "reason"),
    [
        (np.zeros((1, 4, 3)), "at least 2 passes"),
        (np.zeros((5, 4, 1)), "2 classes"),
        (np.zeros((5, 0, 3)), "1 row"),
        (np.zeros((5, 4)), r"not \[5, 4\]"),
        (np.full((5, 4, 3), np.nan), "NaN"),
    ],
    ids=["one", "class", "rows", "flat", "nan"],
)
def test_invalid_passes_are_refused(passes, reason):
    with pytest.raises(AlignAttnError, match=reason):
        PassScores.of(passes)
