"""Vector scaling and isotonic regression: against scikit-learn, and against temperature scaling."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from alignattn.commands.calibrate import SCALING_NAMES
from alignattn.evaluation.calibration import (
    SCALINGS,
    apply_temperature,
    fit_isotonic,
    fit_temperature,
    fit_vector,
    log_probabilities,
    negative_log_likelihood,
)
from alignattn.utils.errors import AlignAttnError


def overconfident(num_classes, num_rows=300, seed=0):
    """Return predictions that are three times too sharp and shifted towards the first class, and labels."""
    rng = np.random.default_rng([seed, num_classes])
    logits = rng.normal(size=(num_rows, num_classes))
    labels = np.array([rng.choice(num_classes, p=row) for row in softmax(logits, axis=1)])
    return softmax(3 * logits + np.eye(num_classes)[0], axis=1), labels


class AsSaved(ClassifierMixin, BaseEstimator):
    """A classifier that returns its inputs as probabilities."""

    def fit(self, probabilities, labels):
        self.classes_ = np.unique(labels)
        return self

    def predict(self, probabilities):
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_proba(self, probabilities):
        return probabilities


@pytest.mark.parametrize("num_classes", [2, 4])
def test_isotonic_regression_is_that_of_scikit_learn(num_classes):
    probabilities, labels = overconfident(num_classes)
    others, _ = overconfident(num_classes, seed=1)
    model = FrozenEstimator(AsSaved().fit(probabilities, labels))
    expected = CalibratedClassifierCV(model, method="isotonic").fit(probabilities, labels).predict_proba(others)
    np.testing.assert_allclose(fit_isotonic(probabilities, labels).apply(others), expected, atol=1e-12)


def test_vector_scaling_of_two_classes_is_scikit_learns_logistic_regression():
    probabilities, labels = overconfident(2)
    features = log_probabilities(probabilities)
    model = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(features, labels)
    found = fit_vector(probabilities, labels)
    np.testing.assert_allclose(found.apply(probabilities), model.predict_proba(features), atol=1e-4)


def test_vector_scaling_is_at_an_optimum_which_no_temperature_beats():
    probabilities, labels = overconfident(4)
    logits, found = log_probabilities(probabilities), fit_vector(probabilities, labels)

    def loss(parameters):
        scaled = log_softmax(logits * parameters[:4] + parameters[4:], axis=1)
        return -np.mean([row[label] for row, label in zip(scaled, labels, strict=True)])

    slopes = approx_fprime(np.concatenate([found.weights, found.biases]), loss, 1e-6)
    np.testing.assert_allclose(slopes, 0, atol=1e-5)
    temperature = apply_temperature(probabilities, fit_temperature(logits, labels))
    assert negative_log_likelihood(found.apply(probabilities), labels) < negative_log_likelihood(temperature, labels)
    assert found.biases.mean() == pytest.approx(0)


@pytest.mark.parametrize("name", SCALINGS)
def test_separable_rows_still_give_distributions(name):
    labels = np.array([0, 1, 2] * 5)
    fitted = SCALINGS[name](0.8 * np.eye(3)[labels] + 0.2 / 3, labels)
    for given in (np.eye(3), np.full((1, 3), 1 / 3)):
        calibrated = fitted.apply(given)
        assert np.isfinite(calibrated).all()
        np.testing.assert_allclose(calibrated.sum(axis=1), 1)
    with pytest.raises(AlignAttnError, match="row 2"):
        SCALINGS[name]([[0.5, 0.5], [0.5, 0.6]], [0, 1])


def test_the_command_knows_their_names_before_it_needs_scipy():
    assert tuple(SCALINGS) == SCALING_NAMES
