"""Last-layer Laplace against dense matrices in float64, and against laplace-torch."""

import math

import laplace
import numpy as np
import pytest
import torch
from torch import nn

from alignattn.training.methods.laplace import PRIOR_PRECISIONS, LastLayerLaplace, linear_head

ROWS, SIZE, CLASSES = 40, 5, 3


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def head(request):
    torch.manual_seed(0)
    return nn.Linear(SIZE, CLASSES, bias=request.param)


def rows(count=ROWS, seed=1):
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(seed))


def dense(head, features):
    """Return the Gauss-Newton matrix from its Kronecker factors, summed row by row; inputs get a 1 for the bias."""
    weight, bias = head.weight.detach().double(), head.bias
    points = [np.append(row, 1) if bias is not None else row for row in features.double().numpy()]
    inputs, outputs = 0.0, 0.0
    for row, point in zip(features.double(), points, strict=True):
        logits = weight @ row + (0 if bias is None else bias.detach().double())
        p = torch.exp(logits) / torch.exp(logits).sum()
        inputs = inputs + np.outer(point, point)
        outputs = outputs + np.diag(p.numpy()) - np.outer(p.numpy(), p.numpy())
    return np.kron(outputs / len(points), inputs)


def test_variances_are_those_of_the_dense_inverse(head):
    features, others = rows(), rows(6, seed=2)
    posterior = LastLayerLaplace.fit(head, features)
    matrix = dense(head, features)
    covariance = np.linalg.inv(matrix + posterior.prior_precision * np.eye(len(matrix)))
    for row, found in zip(others.double().numpy(), posterior.variances(others), strict=True):
        point = np.append(row, 1) if head.bias is not None else row
        slopes = np.kron(np.eye(CLASSES), point[None])
        np.testing.assert_allclose(found, np.diag(slopes @ covariance @ slopes.T), rtol=1e-9)
    logits = head(others)
    expected = logits.detach().double() / torch.sqrt(1 + math.pi * posterior.variances(others) / 8)
    torch.testing.assert_close(posterior.moderated(logits, others), expected)


def test_the_prior_precision_has_the_largest_marginal_likelihood(head):
    features = rows()
    posterior, matrix = LastLayerLaplace.fit(head, features), dense(head, features)
    square = sum(float(parameter.detach().double().square().sum()) for parameter in head.parameters())

    def evidence(precision):
        _, volume = np.linalg.slogdet(matrix + precision * np.eye(len(matrix)))
        return (len(matrix) * math.log(precision) - precision * square - volume) / 2

    grid = [evidence(precision) for precision in np.geomspace(*PRIOR_PRECISIONS, 400)]
    assert evidence(posterior.prior_precision) >= max(grid) - 1e-9


def test_far_rows_are_less_certain_than_near_ones(head):
    posterior = LastLayerLaplace.fit(head, rows())
    near = rows(4, seed=3)
    assert (posterior.variances(100 * near) > posterior.variances(near)).all()


def laplace_torch(head, features, precision):
    """Return the posterior of laplace-torch, in float64, with Kronecker factors for each parameter separately."""
    data = torch.utils.data.TensorDataset(features, torch.zeros(len(features), dtype=torch.long))
    loader = torch.utils.data.DataLoader(data, batch_size=len(features))
    posterior = laplace.Laplace(
        head, "classification", subset_of_weights="all", hessian_structure="kron", prior_precision=precision
    )
    posterior.fit(loader)
    return posterior


@pytest.mark.filterwarnings("ignore")
def test_agrees_with_laplace_torch(head):
    """The bias becomes the weight of an input that is always 1, so that it is correlated with the others."""
    features, others = rows(), rows(6, seed=2)
    posterior = LastLayerLaplace.fit(head, features)
    parts = [head.weight] if head.bias is None else [head.weight, head.bias[:, None]]
    weights = torch.cat([part.detach().double() for part in parts], dim=1)
    joined = nn.Linear(weights.shape[1], CLASSES, bias=False).double()
    joined.weight.data = weights
    points = [
        torch.cat([some, torch.ones(len(some), weights.shape[1] - SIZE)], dim=1).double() for some in (features, others)
    ]
    theirs = laplace_torch(joined, points[0], posterior.prior_precision)
    expected = theirs(points[1], pred_type="glm", link_approx="probit")
    found = posterior.moderated(head(others), others).softmax(dim=1)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_laplace_torch_ignores_the_covariance_of_bias_and_weights():
    torch.manual_seed(0)
    head, features, others = nn.Linear(SIZE, CLASSES).double(), rows().double(), rows(6, seed=2).double()
    posterior = LastLayerLaplace.fit(head, features)
    matrix = dense(head, features)
    # The two blocks on the diagonal: the curvature of the bias is (Σ Λ), without a mean.
    is_bias = np.tile(np.arange(SIZE + 1) == SIZE, CLASSES)
    blocks = np.where(is_bias[:, None] == is_bias, matrix, 0)
    covariance = np.linalg.inv(blocks + posterior.prior_precision * np.eye(len(blocks)))
    _, found = laplace_torch(head, features, posterior.prior_precision)._glm_predictive_distribution(others)
    for row, variances in zip(others.numpy(), found.detach().numpy(), strict=True):
        slopes = np.kron(np.eye(CLASSES), np.append(row, 1)[None])
        np.testing.assert_allclose(variances, slopes @ covariance @ slopes.T, rtol=1e-3)


class Scored(nn.Module):
    """A model that halves its logits unless `is_plain`, so that no linear layer computes them."""

    def __init__(self, *, is_plain):
        super().__init__()
        self.first, self.head, self.is_plain = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, CLASSES), is_plain

    def forward(self, x):
        logits = self.head(self.first(x))
        return {"logits": logits if self.is_plain else logits / 2}


def test_the_head_is_the_layer_that_computes_the_logits():
    plain = Scored(is_plain=True).train()
    assert linear_head(plain, {"x": rows()}) is plain.head
    assert plain.training
    assert linear_head(Scored(is_plain=False), {"x": rows()}) is None
    # Logits per token are not logits per row.
    assert linear_head(plain, {"x": rows()[None]}) is None
