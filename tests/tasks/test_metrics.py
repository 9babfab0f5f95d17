"""The metrics, against hand-computed values and against scikit-learn and SciPy called directly."""

from math import sqrt

import numpy as np
import pytest
from datasets import Dataset
from scipy import stats
from sklearn import metrics as sk

from alignattn.tasks import LabelledTask, VisualQuestionAnswering
from alignattn.tasks.definitions import TASKS
from alignattn.tasks.labels import USER_BINARY_METRICS, USER_CLASSIFICATION_METRICS, USER_REGRESSION_METRICS
from alignattn.tasks.metrics import METRICS, score
from alignattn.tasks.task import EncodedSplit
from alignattn.utils.errors import AlignAttnError

COMPUTED = [name for name, metric in METRICS.items() if metric.function is not None]
PREDICTED = [1, 0, 1, 1, 0]
TRUE = [1, 0, 0, 1, 1]  # two true positives, one true negative, one false positive, one false negative


def metrics_of(task, logits, labels):
    split = EncodedSplit(Dataset.from_dict({"text": [""] * len(labels)}), None, None)
    return TASKS[task].evaluate(split, logits, labels).metrics


def logits_for(classes, num_labels=2):
    return np.eye(num_labels)[classes] - 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [("accuracy", 3 / 5), ("f1", 2 / 3), ("macro_f1", (2 / 3 + 1 / 2) / 2), ("matthews_correlation", 1 / 6)],
)
def test_classification_by_hand(name, value):
    assert score(name, PREDICTED, TRUE) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(("name", "value"), [("pearson", 3 / sqrt(2 * 42 / 9)), ("spearmanr", 1.0)])
def test_correlation_by_hand(name, value):
    assert score(name, [1.0, 2.0, 3.0], [1.0, 2.0, 4.0]) == pytest.approx(value, abs=1e-12)


def test_macro_f1_counts_classes_alike_and_a_missed_one_as_0():
    predicted, true = [0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 2]
    assert score("macro_f1", predicted, true) == pytest.approx((1 + 2 / 3 + 0) / 3, abs=1e-12)


def test_classification_tasks_against_sklearn():
    generator = np.random.default_rng(0)
    logits, labels = generator.normal(size=(200, 2)), generator.integers(0, 2, size=200)
    predicted = (logits[:, 1] > logits[:, 0]).astype(int)
    macro = {"macro_f1": sk.f1_score(labels, predicted, average="macro")}
    assert metrics_of("mrpc", logits, labels) == pytest.approx(
        {"accuracy": sk.accuracy_score(labels, predicted), "f1": sk.f1_score(labels, predicted)} | macro, abs=1e-12
    )
    assert metrics_of("cola", logits, labels) == pytest.approx(
        {"matthews_correlation": sk.matthews_corrcoef(labels, predicted)} | macro, abs=1e-12
    )


def test_three_classes():
    logits = logits_for([0, 1, 2, 2], num_labels=3)
    for dtype in (np.float16, np.float32, np.float64):
        scores = metrics_of("mnli", logits.astype(dtype), [0, 1, 2, 1])
        assert scores == {"accuracy": 0.75, "macro_f1": pytest.approx((1 + 2 / 3 + 2 / 3) / 3)}


def test_stsb_against_scipy_with_ties():
    generator = np.random.default_rng(1)
    logits, labels = generator.normal(size=(100, 1)).round(1), generator.integers(0, 6, size=100) * 1.0
    expected = {
        "pearson": stats.pearsonr(logits[:, 0], labels).statistic,
        "spearmanr": stats.spearmanr(logits[:, 0], labels).statistic,
    }
    assert metrics_of("stsb", logits, labels) == pytest.approx(expected, abs=1e-12)
    assert metrics_of("stsb", logits[:, 0], labels) == pytest.approx(expected, abs=1e-12)


def test_scores_keep_double_precision():
    close = np.array([1.0, 2.0, 4.0]) * 1e-10 + 1.0  # one and the same number in float32
    scores = metrics_of("stsb", close, [1.0, 2.0, 3.0])
    assert scores["pearson"] == pytest.approx(3 / sqrt(2 * 42 / 9), abs=1e-5)


@pytest.mark.parametrize("task", ["cola", "stsb"])
def test_constant_predictions_score_zero(task):
    logits = np.ones((4, TASKS[task].num_labels))
    scores = metrics_of(task, logits, [0, 1, 1, 0])
    assert {scores[name] for name in TASKS[task].metrics} == {0.0}


@pytest.mark.parametrize("name", ["pearson", "spearmanr", "matthews_correlation"])
@pytest.mark.parametrize("predicted", [[0, 1, 1], [1, 1, 1]])
def test_correlation_with_constant_labels_is_undefined(name, predicted):
    assert np.isnan(score(name, predicted, [1, 1, 1]))


def test_f1_of_an_absent_class_is_undefined():
    assert np.isnan(score("f1", [0, 0], [0, 0]))
    assert score("f1", [0, 1], [0, 0]) == 0


def test_no_predicted_positive_scores_zero_f1():
    assert metrics_of("mrpc", logits_for([0, 0]), [1, 0])["f1"] == 0


@pytest.mark.parametrize("name", COMPUTED)
def test_metric_of_nothing_raises(name):
    with pytest.raises(AlignAttnError, match=f"{name} needs at least"):
        score(name, [], [])


def test_correlation_of_one_row_raises():
    with pytest.raises(AlignAttnError, match="pearson needs at least 2 rows and got 1"):
        metrics_of("stsb", np.zeros((1, 1)), np.zeros(1))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_outputs_that_diverged_are_not_scored(bad):
    logits = logits_for(PREDICTED)
    logits[2, 0] = bad
    with pytest.raises(AlignAttnError, match="hold NaN or infinity"):
        metrics_of("mrpc", logits, TRUE)


@pytest.mark.parametrize(
    ("task", "shape"),
    [("mnli", (5, 2)), ("mrpc", (5,)), ("stsb", (5, 2)), ("mrpc", (4, 2)), ("stsb", (4, 1))],
)
def test_wrong_shapes_raise(task, shape):
    with pytest.raises(ValueError, match=r"logits|shape"):
        metrics_of(task, np.zeros(shape), TRUE)


def test_every_metric_belongs_to_a_task():
    # The official accuracy of questions about images compares with ten answers per row, not with a label.
    labelled = [
        task
        for task in TASKS.values()
        if isinstance(task, LabelledTask) and not isinstance(task, VisualQuestionAnswering)
    ]
    of_own_files = {*USER_BINARY_METRICS, *USER_CLASSIFICATION_METRICS, *USER_REGRESSION_METRICS}
    assert {name for task in labelled for name in task.metrics} | of_own_files == set(COMPUTED)
