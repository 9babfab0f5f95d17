"""The calibration measures against torchmetrics and scikit-learn, and temperature scaling."""

import itertools
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from alignattn.attention.distance import sliced_wasserstein
from alignattn.evaluation.calibration import (
    PROBABILITY_FLOOR,
    adaptive_calibration_error,
    apply_temperature,
    brier_score,
    expected_calibration_error,
    fit_temperature,
    log_probabilities,
    maximum_calibration_error,
    negative_log_likelihood,
    pavpu,
    reliability,
    risk_coverage,
    shift_auroc,
    summarise,
)
from alignattn.evaluation.calibration.metric import CalibrationError
from alignattn.utils.errors import AlignAttnError

BINNED = (expected_calibration_error, adaptive_calibration_error, maximum_calibration_error)
ALL = (*BINNED, brier_score, negative_log_likelihood)
BELOW_ONE = 1e-6
MAX_LOSS = -math.log(PROBABILITY_FLOOR)


def random_predictions(num_classes: int, num_rows: int = 500, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, num_classes])
    return rng.dirichlet(np.ones(num_classes) * 0.4, size=num_rows), rng.integers(0, num_classes, num_rows)


def by_torchmetrics(probabilities: np.ndarray, labels: np.ndarray, num_bins: int, norm: str) -> float:
    # torchmetrics puts a single-precision confidence of 1 into its own bin; values just below 1 are in the last bin.
    below_one = np.minimum(probabilities, 1 - BELOW_ONE)
    return float(
        multiclass_calibration_error(
            torch.tensor(below_one), torch.tensor(labels), probabilities.shape[1], n_bins=num_bins, norm=norm
        )
    )


@pytest.mark.parametrize(("error", "norm"), [(expected_calibration_error, "l1"), (maximum_calibration_error, "max")])
def test_agrees_with_torchmetrics(error, norm):
    for num_classes, num_bins in itertools.product((2, 3, 7), (1, 5, 10, 15)):
        probabilities, labels = random_predictions(num_classes)
        expected = by_torchmetrics(probabilities, labels, num_bins, norm)
        assert error(probabilities, labels, num_bins) == pytest.approx(expected, abs=2 * BELOW_ONE)


@pytest.mark.parametrize(("error", "norm"), [(expected_calibration_error, "l1"), (maximum_calibration_error, "max")])
def test_agrees_with_torchmetrics_on_probabilities_of_0_1_and_a_half(error, norm):
    rng = np.random.default_rng(3)
    probabilities, labels = random_predictions(2, num_rows=90)
    probabilities[:30], probabilities[30:60] = np.eye(2)[rng.integers(0, 2, 30)], 0.5
    # With 5 bins, one half is no edge: torchmetrics closes its bins on the other side.
    expected = by_torchmetrics(probabilities, labels, 5, norm)
    assert error(probabilities, labels, 5) == pytest.approx(expected, abs=2 * BELOW_ONE)


@pytest.mark.parametrize(("num_classes", "num_bins"), [(2, 1), (3, 5), (7, 10)])
def test_adaptive_error_agrees_with_the_quantile_curve_of_sklearn(num_classes, num_bins):
    probabilities, labels = random_predictions(num_classes)
    is_right, confidence = probabilities.argmax(axis=1) == labels, probabilities.max(axis=1)
    accuracies, confidences = calibration_curve(is_right, confidence, n_bins=num_bins, strategy="quantile")
    # The rows divide evenly, so every bin has the same weight.
    expected = np.abs(accuracies - confidences).mean()
    assert adaptive_calibration_error(probabilities, labels, num_bins) == pytest.approx(expected, abs=1e-12)


def test_adaptive_bins_do_not_depend_on_the_order_of_equal_rows():
    probabilities = np.array([[0.75, 0.25]] * 30 + [[0.25, 0.75]] * 30)
    labels = np.array([0] * 40 + [1] * 20)
    order = np.random.default_rng(0).permutation(60)
    ordered = adaptive_calibration_error(probabilities, labels)
    assert ordered == pytest.approx(abs(50 / 60 - 0.75))
    assert adaptive_calibration_error(probabilities[order], labels[order]) == pytest.approx(ordered)


@pytest.mark.parametrize("num_classes", [2, 3, 7])
def test_scores_agree_with_sklearn(num_classes):
    probabilities, labels = random_predictions(num_classes)
    assert negative_log_likelihood(probabilities, labels) == pytest.approx(
        log_loss(labels, probabilities, labels=range(num_classes)), rel=1e-9
    )
    one_hot = np.eye(num_classes)[labels]
    # The sum over one class against the rest: the score of scikit-learn for a single probability counts one side.
    by_class = [brier_score_loss(one_hot[:, c], probabilities[:, c], pos_label=1) for c in range(num_classes)]
    assert brier_score(probabilities, labels) == pytest.approx(sum(by_class), rel=1e-12)


def test_by_hand():
    probabilities = [[0.9, 0.1], [0.85, 0.15], [0.4, 0.6], [1.0, 0.0]]
    labels = [0, 1, 1, 0]
    # 0.9, right, and 0.85, wrong, share the bin up to 0.9; 0.6 and 1.0, both right, are alone in theirs.
    in_bin_of_0_9 = abs((1 - 0.9) + (0 - 0.85))
    expected = (in_bin_of_0_9 + (1 - 0.6) + (1 - 1.0)) / 4
    assert expected_calibration_error(probabilities, labels) == pytest.approx(expected)
    assert maximum_calibration_error(probabilities, labels) == pytest.approx(1 - 0.6)
    # Two bins of two rows: 0.6 and 0.85, then 0.9 and 1.
    expected = (abs((1 - 0.6) + (0 - 0.85)) + (1 - 0.9)) / 4
    assert adaptive_calibration_error(probabilities, labels, 2) == pytest.approx(expected)
    bins = reliability(probabilities, labels)
    assert bins.counts.tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 2, 1]
    np.testing.assert_allclose(bins.confidence, [*[np.nan] * 5, 0.6, np.nan, np.nan, 0.875, 1])
    np.testing.assert_allclose(bins.accuracy, [*[np.nan] * 5, 1, np.nan, np.nan, 0.5, 1])


@pytest.mark.parametrize(
    ("probabilities", "labels", "error", "brier", "nll"),
    [
        ([[1.0, 0.0]], [0], 0.0, 0.0, 0.0),
        ([[1.0, 0.0]], [1], 1.0, 2.0, MAX_LOSS),
        ([[0.5, 0.5]], [0], 0.5, 0.5, math.log(2)),
        ([[0.5, 0.5]], [1], 0.5, 0.5, math.log(2)),
        ([[0.5, 0.5], [0.5, 0.5]], [0, 1], 0.0, 0.5, math.log(2)),
        ([[1.0]], [0], 0.0, 0.0, 0.0),
        ([[1.0], [1.0]], [0, 0], 0.0, 0.0, 0.0),
    ],
)
def test_edges(probabilities, labels, error, brier, nll):
    for binned in BINNED:
        assert binned(probabilities, labels) == pytest.approx(error)
    assert brier_score(probabilities, labels) == pytest.approx(brier)
    assert negative_log_likelihood(probabilities, labels) == pytest.approx(nll, rel=1e-12)


def test_more_bins_than_rows():
    probabilities, labels = random_predictions(3, num_rows=4)
    gaps = np.abs((probabilities.argmax(axis=1) == labels) - probabilities.max(axis=1))
    assert adaptive_calibration_error(probabilities, labels, 50) == pytest.approx(gaps.mean())


@pytest.mark.parametrize("function", ALL)
def test_rows_that_are_not_distributions_are_refused(function):
    for row in ([0.5, 0.6], [float("nan"), 1.0], [float("inf"), 0.0], [-0.1, 1.1]):
        with pytest.raises(AlignAttnError, match="row 2: its probabilities"):
            function([[0.5, 0.5], row], [0, 0])


@pytest.mark.parametrize("label", [-1, 2, 0.5, float("nan")])
def test_labels_outside_the_classes_are_refused(label):
    with pytest.raises(AlignAttnError, match=r"row 2: its label .* is not one of the classes 0 to 1"):
        brier_score([[0.5, 0.5], [0.5, 0.5]], [0, label])


EVEN = [[0.5, 0.5], [0.5, 0.5]]
TAKING_LABELS = {
    **{function.__name__: function for function in (*ALL, risk_coverage, summarise)},
    "fit_temperature": lambda rows, labels: fit_temperature(np.log(rows), labels),
    "pavpu": lambda rows, labels: pavpu(np.log([rows, rows]), labels),
    "metric": lambda rows, labels: CalibrationError().compute(predictions=rows, references=labels),
}


@pytest.mark.parametrize("name", TAKING_LABELS)
def test_a_label_that_is_no_class_number_is_refused_by_every_function_that_takes_labels(name):
    """A text ended in "Unknown format code 'g'", `pavpu` compared it, and `evaluate` read "1" and 0.5 as numbers."""
    for label in ("spam", "1", None, 0.5, np.datetime64("2020")):
        with pytest.raises(AlignAttnError, match=r"row 2: its label .* is not one of the classes 0 to 1"):
            TAKING_LABELS[name](EVEN, np.array([0, label], dtype=object))
    with pytest.raises(AlignAttnError, match="row 1: its label 'ham' is not one"):
        TAKING_LABELS[name](EVEN, np.array(["ham", "spam"]))


@pytest.mark.parametrize("rows", [[["a", "b"]] * 2, [[0.5, 0.5], [1.0]]], ids=["texts", "rows of two lengths"])
def test_probabilities_that_are_no_numbers_are_refused(rows):
    for function in (*ALL, fit_temperature):
        with pytest.raises(AlignAttnError, match="are no array of numbers"):
            function(rows, [0, 1])
    for one in (lambda: apply_temperature(rows, 1), lambda: shift_auroc(rows, EVEN)):
        with pytest.raises(AlignAttnError, match="are no array of numbers"):
            one()


@pytest.mark.parametrize("function", ALL)
def test_wrong_shapes_are_refused(function):
    for probabilities, labels in ((np.zeros((0, 2)), []), ([[0.5, 0.5]], [0, 1]), ([0.5], [0])):
        with pytest.raises(AlignAttnError, match="at least one row"):
            function(probabilities, labels)


@pytest.mark.parametrize("function", [*BINNED, reliability])
def test_there_must_be_bins(function):
    with pytest.raises(AlignAttnError, match="num_bins 0"):
        function([[1.0, 0.0]], [0], 0)


class TestMetric:
    def test_batches_keep_double_precision(self):
        probabilities, labels = [[0.6, 0.4], [0.55, 0.45]], [0, 1]
        # In single precision, the first row leaves the bin up to 0.6, which it shares with the second.
        rounded = np.float32(probabilities).astype(float)
        assert expected_calibration_error(rounded, labels) > expected_calibration_error(probabilities, labels) + 0.1
        metric = CalibrationError()
        for row, label in zip(probabilities, labels, strict=True):
            metric.add_batch(predictions=[row], references=[label])
        assert metric.compute() == {"calibration_error": expected_calibration_error(probabilities, labels)}

    def test_it_makes_no_folder_in_the_users_home(self, tmp_path):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
        scoring = "from alignattn.evaluation.calibration.metric import CalibrationError\n"
        scoring += "CalibrationError().compute(predictions=[[0.75, 0.25]], references=[0])"
        subprocess.run([sys.executable, "-c", scoring], check=True, env=kept | {"HOME": str(tmp_path)})
        assert list(tmp_path.iterdir()) == []


class TestTemperature:
    @pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
    def test_recovers_the_temperature_of_the_labels(self, temperature):
        rng = np.random.default_rng(0)
        logits = rng.normal(size=(20000, 3)) * 2
        labels = (rng.random((20000, 1)) > softmax(logits / temperature, axis=1).cumsum(axis=1)).sum(axis=1)
        assert fit_temperature(logits, labels) == pytest.approx(temperature, rel=0.05)

    def test_is_where_the_derivative_vanishes(self):
        probabilities, _ = random_predictions(4)
        labels = np.where(np.arange(500) % 3, probabilities.argmax(axis=1), 0)
        logits = torch.tensor(log_probabilities(probabilities))
        fitted = torch.tensor(fit_temperature(logits.numpy(), labels), dtype=torch.float64, requires_grad=True)
        torch.nn.functional.cross_entropy(logits / fitted, torch.tensor(labels)).backward()
        assert abs(float(fitted.grad)) < 1e-6

    @pytest.mark.parametrize("seed", range(20))
    def test_never_raises_the_likelihood_that_it_was_fitted_on(self, seed):
        rng = np.random.default_rng(seed)
        num_classes, num_rows = int(rng.integers(1, 6)), int(rng.integers(1, 60))
        probabilities = softmax(rng.normal(size=(num_rows, num_classes)) * rng.choice([0, 1, 10, 1000]), axis=1)
        # Rows whose sums differ from 1 as in half precision.
        probabilities *= rng.uniform(0.9995, 1.0005, size=(num_rows, 1))
        labels = rng.integers(0, num_classes, num_rows)
        temperature = fit_temperature(log_probabilities(probabilities), labels)
        after = negative_log_likelihood(apply_temperature(probabilities, temperature), labels)
        assert after <= negative_log_likelihood(probabilities, labels) + 1e-12

    def test_probabilities_of_zero_are_cooled_to_finite_ones(self):
        probabilities = np.array([[1.0, 0.0]] * 10)
        labels = [0] * 8 + [1] * 2
        after = apply_temperature(probabilities, fit_temperature(log_probabilities(probabilities), labels))
        np.testing.assert_allclose(after[:, 1], 0.2, atol=2e-3)

    def test_nothing_to_gain_is_a_temperature_of_one(self):
        assert fit_temperature(np.zeros((5, 3)), [0, 1, 2, 0, 1]) == 1.0
        assert fit_temperature(np.zeros((5, 1)), [0] * 5) == 1.0

    def test_rows_that_are_all_right_leave_the_probabilities_as_they_are(self):
        """Their likelihood grows down to T = 0, so a search would end where its steps do."""
        rows, labels = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 0])
        assert fit_temperature(np.log(rows), labels) == 1.0
        assert 0.5 < fit_temperature(np.log(rows), np.array([0, 1, 1])) < 0.9

    def test_logits_serve_as_well_as_log_probabilities(self):
        logits = np.random.default_rng(1).normal(size=(200, 3)) * 3
        labels = random_predictions(3, 200)[1]
        shifted = logits + np.arange(200)[:, np.newaxis]
        expected = fit_temperature(log_softmax(logits, axis=1), labels)
        assert fit_temperature(shifted, labels) == pytest.approx(expected, rel=1e-4)

    def test_keeps_the_likeliest_class_and_is_the_identity_at_one(self):
        probabilities, _ = random_predictions(4)
        np.testing.assert_allclose(apply_temperature(probabilities, 1.0), probabilities, atol=1e-12)
        for temperature in (0.2, 5.0):
            after = apply_temperature(probabilities, temperature)
            np.testing.assert_allclose(after.sum(axis=1), 1)
            assert (after.argmax(axis=1) == probabilities.argmax(axis=1)).all()

    @pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
    def test_must_be_positive(self, temperature):
        with pytest.raises(AlignAttnError, match="must be positive and finite"):
            apply_temperature([[0.5, 0.5]], temperature)

    @pytest.mark.parametrize(
        ("logits", "labels", "message"),
        [
            ([[0.0, 1.0], [0.0, -math.inf]], [0, 0], "row 2: its logits must be finite"),
            ([[0.0, 1.0]], [2], "row 1: its label 2"),
            (np.zeros((0, 2)), [], "at least one row"),
        ],
    )
    def test_mistakes(self, logits, labels, message):
        with pytest.raises(AlignAttnError, match=message):
            fit_temperature(logits, labels)


class TestSlicedWasserstein:
    def test_equal_clouds_in_any_order(self):
        cloud = torch.randn(2, 3, 5, 4)
        permuted = cloud.flip(2).flip(0)
        assert sliced_wasserstein(cloud, permuted).max() < 1e-5

    def test_a_shift_by_its_formula(self):
        """Shifted by s, the squared distance is |s|² / d in the mean over directions."""
        cloud = torch.randn(2, 1, 200, 4)
        shift = torch.tensor([3.0, 0.0, 0.0, 0.0])
        distance = sliced_wasserstein(cloud, cloud + shift, num_directions=5000)
        lengths = (cloud.square().sum(-1).mean() + (cloud + shift).square().sum(-1).mean()) / 2
        assert float(distance) == pytest.approx(float((9 / 4 / lengths).sqrt()), rel=0.03)

    def test_scale_does_not_count_and_padding_does_not_enter(self):
        query, key = torch.randn(3, 2, 6, 4), torch.randn(3, 2, 6, 4)
        mask = torch.ones(3, 6, dtype=torch.bool)
        mask[:, 4:] = False
        expected = sliced_wasserstein(query[:, :, :4], key[:, :, :4])
        torch.testing.assert_close(sliced_wasserstein(query, key, mask), expected)
        torch.testing.assert_close(sliced_wasserstein(100 * query, 100 * key, mask), expected)
