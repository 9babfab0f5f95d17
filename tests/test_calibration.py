import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from alignattn.attention.distance import sliced_wasserstein
from alignattn.calibration import expected_calibration_error
from alignattn.errors import AlignAttnError


@pytest.mark.parametrize("num_classes", [2, 3, 7])
@pytest.mark.parametrize("num_bins", [1, 5, 10, 15])
def test_agrees_with_torchmetrics_below_a_confidence_of_one(num_classes, num_bins):
    rng = np.random.default_rng(num_classes)
    probabilities = rng.dirichlet(np.ones(num_classes) * 0.4, size=500)
    labels = rng.integers(0, num_classes, 500)
    expected = multiclass_calibration_error(
        torch.tensor(probabilities), torch.tensor(labels), num_classes=num_classes, n_bins=num_bins
    )
    assert expected_calibration_error(probabilities, labels, num_bins) == pytest.approx(float(expected), abs=1e-6)


def test_by_hand():
    probabilities = [[0.9, 0.1], [0.85, 0.15], [0.4, 0.6], [1.0, 0.0]]
    # 0.9, right, and 0.85, wrong, share the bin up to 0.9; 0.6 and 1.0, both right, are alone in theirs.
    in_bin_of_0_9 = abs((1 - 0.9) + (0 - 0.85))
    expected = (in_bin_of_0_9 + (1 - 0.6) + (1 - 1.0)) / 4
    assert expected_calibration_error(probabilities, [0, 1, 1, 0]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("probabilities", "labels", "error"),
    [
        ([[1.0, 0.0]], [0], 0.0),
        ([[1.0, 0.0]], [1], 1.0),
        ([[0.5, 0.5]], [0], 0.5),
        ([[0.5, 0.5], [0.5, 0.5]], [0, 1], 0.0),
        ([[1.0]], [0], 0.0),
    ],
)
def test_edges(probabilities, labels, error):
    assert expected_calibration_error(probabilities, labels) == pytest.approx(error)


@pytest.mark.parametrize("row", [[0.5, 0.6], [float("nan"), 1.0], [-0.1, 1.1]])
def test_rows_that_are_no_distribution(row):
    with pytest.raises(AlignAttnError, match="row 2"):
        expected_calibration_error([[0.5, 0.5], row], [0, 0])


@pytest.mark.parametrize(("probabilities", "labels"), [(np.zeros((0, 2)), []), ([[0.5, 0.5]], [0, 1])])
def test_shapes(probabilities, labels):
    with pytest.raises(AlignAttnError, match="at least one row"):
        expected_calibration_error(probabilities, labels)


class TestSlicedWasserstein:
    def test_equal_clouds_in_any_order(self):
        cloud = torch.randn(2, 3, 5, 4)
        permuted = cloud.flip(2).flip(0)
        assert sliced_wasserstein(cloud, permuted).max() < 1e-6

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
