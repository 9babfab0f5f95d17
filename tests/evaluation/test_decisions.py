"""Prediction sets against MAPIE, bounds against SciPy, guarantees on simulated rows with known error rates."""

import math
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT
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

PAGE = ROOT / "docs" / "decisions.md"
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


GROUP_CONFIDENCES = np.array([0.9, 0.8, 0.7])


def in_groups(rng: np.random.Generator, rows: int, errors: np.ndarray) -> LabelledRows:
    """Return rows of two classes in three equal groups of confidence, each with its error rate."""
    group = rng.integers(3, size=rows)
    confidence, is_wrong = GROUP_CONFIDENCES[group], rng.random(rows) < errors[group]
    return LabelledRows(np.stack([confidence, 1 - confidence], axis=1), is_wrong.astype(np.int64), rng.random(rows))


@pytest.mark.parametrize("errors", [[0.05, 0.10, 0.15], [0.096, 0.11, 0.13]], ids=str)
def test_the_target_error_holds_and_the_bound_at_the_chosen_threshold_does_not(errors):
    """The bound is of a fixed threshold, so that its 95 % certainty was said of too many calibrations."""
    wanted, repeats, rates, found = 0.1, 1000, np.array(errors), []
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        chosen = Calibration(1.0, in_groups(rng, 1000, rates), in_groups(rng, 1000, rates)).abstention(wanted)
        if chosen is not None:
            found.append((rates[chosen.threshold <= GROUP_CONFIDENCES].mean(), chosen.bound))
    risk, bound = np.array(found).T
    error = 3 * math.sqrt(ABSTENTION_DELTA * (1 - ABSTENTION_DELTA) / repeats)
    assert (risk > wanted).sum() / repeats <= ABSTENTION_DELTA + error
    if errors[0] == 0.05:
        assert (risk > bound).sum() / repeats == pytest.approx(0.07, abs=error)
        assert "fails for 7 % of calibrations" in " ".join(PAGE.read_text(encoding="utf-8").split())
    else:
        # Few calibrations answer, and more of these than of all exceed the target.
        assert len(found) < 0.1 * repeats
        assert (risk > wanted).mean() > 2 * ABSTENTION_DELTA


def test_a_coverage_is_a_mean_over_calibrations():
    """Of nine rows and coverage 0.9, the largest score is the quantile: a Beta(9, 1) share of new rows is covered."""
    scores = np.random.default_rng(0).random((20_000, 9))
    covered = np.array([conformal_quantile(one, 0.9) for one in scores])
    assert covered.mean() == pytest.approx(0.9, abs=0.005)
    assert (covered < 0.8).mean() == pytest.approx(0.8**9, abs=0.01)
    assert f"probability {100 * 0.8**9:.0f} %" in PAGE.read_text(encoding="utf-8")


def test_a_set_can_be_empty_where_the_accuracy_is_below_the_coverage():
    rng = np.random.default_rng(0)
    logits = 1.2 * rng.normal(size=(40_000, 10))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (rng.random((len(shares), 1)) > shares.cumsum(axis=1)).sum(axis=1).clip(0, 9)
    rows = LabelledRows(shares, labels, rng.random(len(shares)))
    assert 1 - rows.is_wrong.mean() == pytest.approx(0.37, abs=0.01)
    sets = SET_SCORES[APS](rows.probabilities, rows.uniform) <= conformal_quantile(rows.label_scores(APS), 0.6)
    assert (~sets.any(axis=1)).mean() == pytest.approx(0.01, abs=0.004)


def test_the_level_of_the_shift_test_is_over_calibrations_too():
    rates = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        confidence = [rng.uniform(0.5, 1, size) for size in (200, *[2000] * 10)]
        calibration, *files = (np.stack([one, 1 - one], axis=1) for one in confidence)
        rates.append(np.mean([shift_p_value(calibration, one) < SHIFT_LEVEL for one in files]))
    assert np.mean(rates) == pytest.approx(SHIFT_LEVEL, abs=0.02)
    # The files of one calibration have their warnings in common.
    assert max(rates) > 0.5
    assert np.mean(np.array(rates) == 0) > 0.9


def two_groups(sure, unsure):
    """Rows of two classes: (rows, wrong) of confidence 0.9 and of 0.6."""
    confidence = np.repeat([0.9, 0.6], [sure[0], unsure[0]])
    is_wrong = np.concatenate([np.arange(rows) < wrong for rows, wrong in (sure, unsure)])
    return LabelledRows(np.stack([confidence, 1 - confidence], axis=1), is_wrong.astype(int), np.zeros(len(confidence)))


@pytest.mark.parametrize(
    ("fitted", "held_out", "reason"),
    [
        # 28 right answers of 28 are as likely as 0.9^28 = 0.052 at an error rate of 0.1.
        (((100, 2), (95, 50)), ((20, 0), (8, 0)), "at least 29 answered rows, all of them right, and there are 28"),
        # Of 100 rows, P(errors <= 4) is 0.024 and P(errors <= 5) 0.058.
        (
            ((100, 2), (95, 50)),
            ((100, 20), (95, 50)),
            "from confidence 0.9, 20 of 100 answered rows are wrong (20 %), and at most 4 may be",
        ),
        (
            ((100, 2), (95, 50)),
            ((20, 0), (175, 100)),
            "at best, from confidence 0.6, 100 of 195 answered rows are wrong (51 %)",
        ),
        # All rows would do, but the other half lets the tests begin at the surer ones.
        (((100, 2), (95, 50)), ((10, 3), (185, 0)), "the tests begin, 10 rows are answered, and it takes at least 29"),
        (
            ((100, 2), (95, 50)),
            ((50, 6), (245, 0)),
            "the tests begin, 6 of 50 answered rows are wrong (12 %), and at most 1 may be",
        ),
    ],
)
def test_the_reason_for_no_threshold_is_the_one_that_applies(fitted, held_out, reason):
    """With 195 rows and a model that errs too often, it said that 29 right answers are needed."""
    calibration = Calibration(1.0, two_groups(*fitted), two_groups(*held_out))
    assert calibration.abstention(0.1) is None
    assert reason in calibration.reason_none(0.1)


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
