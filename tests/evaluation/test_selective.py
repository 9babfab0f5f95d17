"""Risk-coverage and AUROC against loops over rows, scikit-learn and torchmetrics."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, roc_auc_score
from torchmetrics.functional.classification import binary_auroc

from alignattn.evaluation.calibration.measures import classwise_calibration_error, expected_calibration_error
from alignattn.evaluation.calibration.selective import (
    area_of,
    area_under_risk_coverage,
    risk_coverage,
    shift_auroc,
    shift_auroc_interval,
)
from alignattn.utils.errors import AlignAttnError

ROWS, CLASSES = 60, 3


def drawn(seed, rows=ROWS, rounded=False):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet([1] * CLASSES, rows)
    if rounded:
        # Few distinct values: most rows share their confidence with others.
        probabilities = np.array([[0.5, 0.5, 0], [0.25, 0.25, 0.5], [1, 0, 0]])[rng.integers(3, size=rows)]
    return probabilities, rng.integers(CLASSES, size=rows)


def by_loop(probabilities, labels):
    """Return the share of errors among the k most confident rows, for each k, averaged over orders of ties: O(n²)."""
    confidence, wrong = probabilities.max(axis=1), probabilities.argmax(axis=1) != labels
    risks = []
    for count in range(1, len(labels) + 1):
        limit = sorted(confidence, reverse=True)[count - 1]
        surely = [bool(wrong[row]) for row in range(len(labels)) if confidence[row] > limit]
        equals = [bool(wrong[row]) for row in range(len(labels)) if confidence[row] == limit]
        risks.append((sum(surely) + (count - len(surely)) * sum(equals) / len(equals)) / count)
    return risks


@pytest.mark.parametrize("rounded", [False, True])
def test_risk_coverage_is_that_of_a_loop(rounded):
    probabilities, labels = drawn(1, rounded=rounded)
    curve = risk_coverage(probabilities, labels)
    np.testing.assert_allclose(curve.risk, by_loop(probabilities, labels))
    np.testing.assert_allclose(curve.coverage, np.arange(1, ROWS + 1) / ROWS)
    assert area_under_risk_coverage(probabilities, labels) == pytest.approx(np.mean(curve.risk))
    # The order of rows does not matter.
    assert area_under_risk_coverage(probabilities[::-1], labels[::-1]) == pytest.approx(np.mean(curve.risk))


def test_the_area_is_the_mean_of_scikit_learns_errors_of_the_most_confident():
    probabilities, labels = drawn(6)
    surest = np.argsort(-probabilities.max(axis=1))
    rows = (surest[:count] for count in range(1, ROWS + 1))
    risks = [1 - accuracy_score(labels[kept], probabilities[kept].argmax(axis=1)) for kept in rows]
    assert area_under_risk_coverage(probabilities, labels) == pytest.approx(np.mean(risks))


def test_areas_of_many_samples_at_once_are_those_of_each():
    confidence, is_right = np.random.default_rng(2).random((2, 4, ROWS)).round(1)
    together = area_of(confidence, (is_right > 0.5).astype(float))
    alone = [area_of(one, (right > 0.5).astype(float)) for one, right in zip(confidence, is_right, strict=True)]
    np.testing.assert_allclose(together, alone)


@pytest.mark.parametrize("rounded", [False, True])
def test_auroc_is_scikit_learns_and_torchmetrics(rounded):
    (first, _), (second, _) = drawn(3, rounded=rounded), drawn(4, 45, rounded=rounded)
    confidence = np.concatenate([first.max(axis=1), second.max(axis=1)])
    is_first = np.arange(len(confidence)) < len(first)
    found = shift_auroc(first, second)
    assert found == pytest.approx(roc_auc_score(is_first, confidence))
    oracle = binary_auroc(torch.tensor(confidence), torch.tensor(is_first.astype(int)))
    assert found == pytest.approx(float(oracle), abs=1e-6)
    interval = shift_auroc_interval(first, second, resamples=200)
    assert interval.low < found < interval.high
    assert interval == shift_auroc_interval(first, second, resamples=200)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """A pair of exponentials with rates 1 and 1/2 is in order with probability 2/3."""
    rng, held = np.random.default_rng(5), 0
    for _ in range(100):
        first, second = (np.exp(-rng.exponential(scale, (80, 1))) for scale in (1, 2))
        interval = shift_auroc_interval(first, second, resamples=200)
        held += interval.low <= 2 / 3 <= interval.high
    assert 85 <= held <= 100


def test_classwise_error_is_the_mean_of_the_classes_own():
    probabilities, labels = drawn(6, 200)
    own = []
    for number in range(CLASSES):
        error = 0.0
        for low in np.arange(10) / 10:
            rows = (probabilities[:, number] > low) & (probabilities[:, number] <= low + 0.1)
            error += abs(np.sum((labels[rows] == number) - probabilities[rows, number])) / len(labels)
        own.append(error)
    assert classwise_calibration_error(probabilities, labels) == pytest.approx(np.mean(own))
    assert classwise_calibration_error(probabilities, labels) != expected_calibration_error(probabilities, labels)


@pytest.mark.parametrize("sides", [(np.zeros((0, 2)), np.full((1, 2), 0.5)), (np.zeros(3), np.zeros(3))])
def test_no_rows_are_refused(sides):
    with pytest.raises(AlignAttnError, match="at least one row per side"):
        shift_auroc(*sides)


def test_a_single_row_has_no_interval():
    row = np.array([[0.5, 0.5]])
    assert shift_auroc(row, row) == 0.5
    assert shift_auroc_interval(row, row) is None
