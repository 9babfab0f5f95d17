"""Last-layer Laplace against dense matrices in float64, and against laplace-torch where that is installed."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from alignattn.training.laplace import PRIOR_PRECISIONS, LastLayerLaplace, linear_head

ROWS, SIZE, CLASSES = 40, 5, 3


@pytest.fixture(params=[True, False], ids=["bias", "no bias"])
def head(request):
    torch.manual_seed(0)
    return nn.Linear(SIZE, CLASSES, bias=request.param)


def rows(count=ROWS, seed=1):
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(seed))


def dense(head, features):
    """Inputs with a 1 for the bias, and the Gauss-Newton matrix in Kronecker factors, row by row."""
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


@pytest.mark.filterwarnings("ignore")
def test_agrees_with_laplace_torch():
    laplace = pytest.importorskip("laplace", reason="needs laplace-torch, which pulls in ten packages")
    features, others = rows(), rows(6, seed=2)
    # Theirs leaves out how a bias hangs together with the weights.
    head = nn.Linear(SIZE, CLASSES, bias=False)
    double = nn.Linear(SIZE, CLASSES, bias=False).double()
    double.load_state_dict(head.state_dict())
    posterior = LastLayerLaplace.fit(head, features)
    data = torch.utils.data.TensorDataset(features.double(), torch.zeros(ROWS, dtype=torch.long))
    loader = torch.utils.data.DataLoader(data, batch_size=ROWS)
    theirs = laplace.Laplace(
        double,
        "classification",
        subset_of_weights="all",
        hessian_structure="kron",
        prior_precision=posterior.prior_precision,
    )
    theirs.fit(loader)
    expected = theirs(others.double(), pred_type="glm", link_approx="probit")
    found = posterior.moderated(head(others), others).softmax(dim=1)
    torch.testing.assert_close(found, expected.detach(), rtol=1e-3, atol=1e-4)


class Scored(nn.Module):
    """A model that divides its logits, which no linear layer gives."""

    def __init__(self, *, is_plain):
        super().__init__()
        self.first, self.head, self.is_plain = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, CLASSES), is_plain

    def forward(self, x):
        logits = self.head(self.first(x))
        return {"logits": logits if self.is_plain else logits / 2}


def test_the_head_is_the_layer_that_gives_the_logits():
    plain = Scored(is_plain=True).train()
    assert linear_head(plain, {"x": rows()}) is plain.head
    assert plain.training
    assert linear_head(Scored(is_plain=False), {"x": rows()}) is None
    # A class a token is none a row.
    assert linear_head(plain, {"x": rows()[None]}) is None
