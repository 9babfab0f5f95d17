"""Prediction sets against MAPIE, bounds against SciPy, guarantees on simulated rows with known error rates."""

import math
from dataclasses import replace

import numpy as np
import pytest
from mapie.classification import SplitConformalClassifier
from scipy.stats import binomtest

from alignattn.evaluation.calibration.decisions import (
    ABSTENTION_DELTA,
    APS,
    LAC,
    SET_SCORES,
    SHIFT_LEVEL,
    Calibration,
    LabelledRows,
    conformal_quantile,
    error_bound,
    rows_needed,
    shift_p_value,
)
from alignattn.utils.errors import AlignAttnError

CLASSES = 4
COVERAGES = (0.6, 0.8, 0.9, 0.95)


def drawn(seed: int, rows: int, sharpness: float = 2.0) -> LabelledRows:
    """Return labels, and probabilities that are calibrated if `sharpness` is 2."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(rows, CLASSES))
    true, shown = (np.exp(factor * logits) for factor in (2.0, sharpness))
    shares = (true / true.sum(axis=1, keepdims=True)).cumsum(axis=1)
    labels = (rng.random((rows, 1)) > shares).sum(axis=1).clip(0, CLASSES - 1)
    return LabelledRows(shown / shown.sum(axis=1, keepdims=True), labels, rng.random(rows))


class Known(np.random.RandomState):
    """Returns the uniform numbers of calibration rows and then of new rows, for MAPIE."""

    def __init__(self, *rows):
        super().__init__()
        self.left = [one.uniform for one in rows]

    def uniform(self, size=None):
        return self.left.pop(0).reshape(size)


class Classifier:
    """A classifier whose inputs are the probabilities."""

    classes_ = np.arange(CLASSES)

    def fit(self, *_):
        return self

    def predict_proba(self, rows):
        return np.asarray(rows)

    def predict(self, rows):
        return np.asarray(rows).argmax(axis=1)

    def __sklearn_is_fitted__(self):
        return True


@pytest.mark.parametrize("method", [LAC, APS])
def test_sets_are_those_of_mapie(method):
    held_out, new = drawn(0, 101), drawn(1, 200)
    theirs = SplitConformalClassifier(
        Classifier(), confidence_level=list(COVERAGES), conformity_score=method, random_state=Known(held_out, new)
    )
    theirs.conformalize(held_out.probabilities, held_out.labels)
    _, sets = theirs.predict_set(new.probabilities, {"include_last_label": "randomized"})
    scores = SET_SCORES[method](new.probabilities, new.uniform)
    for index, coverage in enumerate(COVERAGES):
        ours = scores <= Calibration(1.0, held_out, held_out).quantile(coverage, method)
        np.testing.assert_array_equal(ours, sets[:, :, index])
        assert ours.any(axis=0).all()


@pytest.mark.parametrize("method", [LAC, APS])
def test_the_mean_coverage_is_what_was_asked_for(method):
    covered = []
    for seed in range(200):
        held_out, new = drawn(2 * seed, 99, sharpness=3), drawn(2 * seed + 1, 100, sharpness=3)
        limit = conformal_quantile(held_out.label_scores(method), 0.9)
        covered.append((new.label_scores(method) <= limit).mean())
    # Of 99 rows without ties it is exactly 0.9 (Vovk et al. 2005).
    assert np.mean(covered) == pytest.approx(0.9, abs=3 * np.std(covered) / math.sqrt(200))


def test_the_quantile_is_a_rank_also_where_floats_err():
    # 100 · 0.55 is 55.00000000000001 in floating point.
    assert conformal_quantile(np.arange(1, 100) / 100, 0.55) == 0.55
    assert conformal_quantile(np.arange(1, 20) / 20, 0.95) == 0.95
    assert [rows_needed(coverage) for coverage in (0.5, 0.9, 0.95, 0.99)] == [1, 9, 19, 99]
    with pytest.raises(AlignAttnError, match="at least 19 held-out"):
        conformal_quantile(np.arange(18) / 20, 0.95)
    with pytest.raises(AlignAttnError, match="above 0 and below 1"):
        conformal_quantile(np.arange(18) / 20, 1.0)


@pytest.mark.parametrize(("errors", "answered"), [(0, 59), (3, 100), (20, 631), (7, 7)])
def test_the_bound_is_that_of_clopper_and_pearson(errors, answered):
    interval = binomtest(errors, answered).proportion_ci(1 - 2 * ABSTENTION_DELTA, method="exact")
    assert error_bound(errors, answered) == pytest.approx(interval.high)


def selective(seed: int, rows: int) -> LabelledRows:
    """Return rows of two classes with confidence c uniform from 0.5 to 1 and error probability 1.1 (1 - c)."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.5, 1, rows)
    is_wrong = rng.random(rows) < 1.1 * (1 - confidence)
    return LabelledRows(np.stack([confidence, 1 - confidence], axis=1), is_wrong.astype(np.int64), rng.random(rows))


def test_the_error_rate_exceeds_its_bound_as_rarely_as_promised():
    wanted, repeats, exceeded, answered = 0.1, 300, 0, 0
    for seed in range(repeats):
        found = Calibration(1.0, selective(2 * seed, 2000), selective(2 * seed + 1, 2000)).abstention(wanted)
        if found is not None:
            answered += 1
            # The mean of 1.1 (1 - c) over the answered rows.
            exceeded += 1.1 * (1 - max(found.threshold, 0.5)) / 2 > wanted
            assert found.errors / found.answered <= found.bound <= wanted
    assert answered > 0.9 * repeats
    assert exceeded / repeats <= ABSTENTION_DELTA + 3 * math.sqrt(ABSTENTION_DELTA / repeats)


def test_a_threshold_is_as_loose_as_the_rows_allow_and_none_where_they_allow_none():
    rows = selective(0, 300)
    right = replace(rows, labels=np.zeros(300, dtype=np.int64))
    everything = Calibration(1.0, rows, right).abstention(0.05)
    assert (everything.threshold, everything.answered, everything.errors) == (0, 300, 0)
    assert Calibration(1.0, rows, right).abstention(0.005) is None
    wrong = replace(rows, labels=np.ones(300, dtype=np.int64))
    assert Calibration(1.0, rows, wrong).abstention(0.5) is None
    assert Calibration(1.0, rows, selective(1, 1)).abstention(0.5) is None


def test_the_shift_test_has_its_false_alarm_rate_and_sees_shifts():
    alarms, found, repeats = 0, 0, 300
    for seed in range(repeats):
        calibration = drawn(3 * seed, 200).probabilities
        alarms += shift_p_value(calibration, drawn(3 * seed + 1, 100).probabilities) < SHIFT_LEVEL
        found += shift_p_value(calibration, drawn(3 * seed + 2, 100, sharpness=4).probabilities) < SHIFT_LEVEL
    assert alarms / repeats <= SHIFT_LEVEL + 3 * math.sqrt(SHIFT_LEVEL / repeats)
    assert found / repeats > 0.9
    # With two classes, one of them is tested.
    two = selective(0, 200).probabilities
    assert shift_p_value(two, two[:, ::-1]) < 1e-10
    assert shift_p_value(two, two) == 1
