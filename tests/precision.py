"""The precision of a loss in float32."""

import pytest


def assert_as_precise_as_float64(loss_of, sides, *, rel):
    """Compare the loss of queries and keys in float32, and its gradients, with those of the same numbers in float64."""
    exact = [side.detach().double().requires_grad_() for side in sides]
    loss, expected = (loss_of(*each) for each in (sides, exact))
    assert loss.item() == pytest.approx(expected.item(), rel=rel)
    loss.backward()
    expected.backward()
    for side, other in zip(sides, exact, strict=True):
        assert (side.grad.double() - other.grad).norm() < 1e-3 * other.grad.norm()
