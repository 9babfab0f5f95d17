"""The two ways to the optimal map of `moments`, and its precision; test_pooled and test_alignment test the loss."""

import mpmath
import pytest
import scipy.linalg
import torch
from precision import assert_as_precise_as_float64
from torch.utils._python_dispatch import TorchDispatchMode

from alignattn.attention.alignment import MomentsAlignment, moments
from alignattn.attention.alignment.moments import SHRINKAGE, maps_by_eigenvalues, maps_by_products, newton_schulz_steps

BATCH, HEADS, LENGTH = 3, 2, 6
WAYS = [maps_by_eigenvalues, maps_by_products]


@pytest.fixture
def way_of_a_gpu(monkeypatch):
    """The maps by products, as on a device that is not a CPU."""
    monkeypatch.setattr(moments, "maps_by_eigenvalues", maps_by_products)


def covariances(dim, *, rank=None, count=5):
    """Return random regular covariances of queries and keys in units of their spread, `[1, count, d, d]` each."""
    generator = torch.Generator().manual_seed(dim)
    deviations = torch.logspace(0, -2, dim, dtype=torch.float64)
    points = torch.randn(2, count, rank or 4 * dim, dim, generator=generator, dtype=torch.float64) * deviations
    squares = points.mT @ points
    units = squares / squares.diagonal(dim1=-2, dim2=-1).sum(dim=-1).mean(dim=0)[:, None, None]
    regular = units + SHRINKAGE / dim * torch.eye(dim, dtype=torch.float64)
    return tuple(side[None] for side in regular)


def power_of(matrix, exponent):
    """Return the power of a symmetric matrix of mpmath."""
    values, vectors = mpmath.eigsy(matrix)
    return vectors * mpmath.diag([value**exponent for value in values]) * vectors.T


@pytest.mark.parametrize("dim", [1, 2, 24])
def test_trace_and_maps_are_those_of_fifty_digits(dim):
    """At a condition of Σ_q Σ_k near 1e8, with fewer tokens than dimensions. Half of each map is a derivative."""
    sides = covariances(dim, rank=max(1, dim // 4), count=1)
    with mpmath.workdps(50):
        of_query, of_key = (mpmath.matrix(side[0, 0].tolist()) for side in sides)
        half, inverse = (power_of(of_query, exponent) for exponent in (0.5, -0.5))
        product = half * of_key * half
        values = mpmath.eigsy(product, eigvals_only=True)
        forth = inverse * power_of(product, 0.5) * inverse
        trace = float(sum(value**0.5 for value in values))
        exact = [torch.tensor(each.tolist(), dtype=torch.float64) for each in (forth, forth**-1)]
    assert dim == 1 or max(values) / min(values) > 1e5
    for way in WAYS:
        maps = way(*sides, SHRINKAGE / dim)
        # tr(T Σ_q) = tr(T⁻¹ Σ_k) is the trace of the root.
        found = sum((each * side).sum() for each, side in zip(maps, sides, strict=True)) / 2
        assert found.item() == pytest.approx(trace, rel=1e-14)
        for each, expected in zip(maps, exact, strict=True):
            assert (each[0, 0] - expected).norm() < 1e-11 * expected.norm()


@pytest.mark.parametrize("way", WAYS)
def test_the_map_takes_one_gaussian_to_the_other(way):
    of_query, of_key = covariances(8)
    forth, back = way(of_query, of_key, SHRINKAGE / 8)
    torch.testing.assert_close(forth @ of_query @ forth, of_key)
    torch.testing.assert_close(back @ of_key @ back, of_query)
    root = torch.from_numpy(scipy.linalg.sqrtm((of_query @ of_key)[0, 0].numpy()).real)
    torch.testing.assert_close((back @ of_key)[0, 0], root)


@pytest.mark.parametrize("way", WAYS)
def test_the_widest_spectrum_that_the_ridge_allows(way):
    """All variance in one direction, of queries and keys the same one or another one."""
    dim = 64
    ridge = SHRINKAGE / dim
    line, other = (torch.eye(dim, dtype=torch.float64)[i] for i in (0, 1))
    for key_line, trace in ((line, 1 + ridge + (dim - 1) * ridge), (other, None)):
        sides = [torch.diag(axis + ridge)[None, None] for axis in (line, key_line)]
        expected = (sides[0] * sides[1]).diagonal(dim1=-2, dim2=-1).sqrt()
        forth, back = way(*sides, ridge)
        found = (forth @ sides[0]).diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(forth @ back, torch.eye(dim, dtype=torch.float64)[None, None], rtol=0, atol=1e-9)
        assert trace is None or found.sum().item() == pytest.approx(trace)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
def test_only_the_head_that_is_not_finite_is_lost(way, lost):
    sides = [side.clone() for side in covariances(4)]
    expected = way(*sides, SHRINKAGE / 4)
    sides[1][0, 2, 0, 0] = lost
    for found, wanted in zip(way(*sides, SHRINKAGE / 4), expected, strict=True):
        assert found[0, 2].isnan().all()
        torch.testing.assert_close(found[0, [0, 1, 3, 4]], wanted[0, [0, 1, 3, 4]])


def features(dim=4, dtype=torch.float64, length=LENGTH, shift=0.0):
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, BATCH, HEADS, length, dim, generator=generator, dtype=torch.float64)
    return [(side + shift).to(dtype).requires_grad_() for side in (query, 1.5 * key + 0.5)]


MASK = torch.arange(LENGTH) < torch.tensor([6, 4, 0])[:, None]


@pytest.mark.usefixtures("way_of_a_gpu")
def test_gradient_of_products():
    module = MomentsAlignment(4).double()
    assert torch.autograd.gradcheck(lambda query, key: module(query, key, MASK), features())


@pytest.mark.usefixtures("way_of_a_gpu")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_both_ways_give_one_loss_and_gradient(dtype, monkeypatch):
    """With fewer tokens than dimensions."""
    found = []
    for way in WAYS:
        monkeypatch.setattr(moments, "maps_by_eigenvalues", way)
        sides = features(32, dtype)
        loss = MomentsAlignment(32)(*sides, MASK)
        found.append((loss, torch.autograd.grad(loss, sides)))
    torch.testing.assert_close(*found)


@pytest.mark.usefixtures("way_of_a_gpu")
def test_products_compile_without_a_graph_break():
    module, sides = MomentsAlignment(4).double(), features()
    torch._dynamo.reset()
    loss = torch.compile(module, fullgraph=True, backend="aot_eager")(*sides, MASK)
    expected = module(*sides, MASK)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, sides), torch.autograd.grad(expected, sides))


@pytest.mark.parametrize("shift", [1e2, 1e4])
def test_a_large_common_mean_costs_no_precision(shift):
    sides = features(16, torch.float32, length=64, shift=shift)
    assert_as_precise_as_float64(MomentsAlignment(16), sides, rel=1e-4)


def test_a_second_derivative_is_refused():
    query, key = features()
    loss = MomentsAlignment(4).double()(query, key, MASK)
    (slope,) = torch.autograd.grad(loss, query, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        slope.sum().backward()


def test_a_retained_graph_gives_the_same_gradient_twice():
    sides = features()
    loss = MomentsAlignment(4).double()(*sides, MASK)
    first = torch.autograd.grad(loss, sides, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, sides), first, rtol=0, atol=0)


class Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_no_factorisation_and_no_wait_beside_a_cpu():
    """On the meta device a copy to the host raises an error."""
    features = torch.randn(3, 2, 2, 8, 3, 8, device="meta", requires_grad=True)
    mask = torch.ones(1, 1, 2, 8, dtype=torch.bool, device="meta")
    with Operations() as operations:
        MomentsAlignment(8, num_layers=3).losses(features, mask, slice(0, 3))[0].sum().backward()
    assert not [name for name in operations.names if "linalg" in name or "triangular" in name or "eig" in name]
    assert operations.names.count("baddbmm") == len(list(newton_schulz_steps(SHRINKAGE / 8, 1 + SHRINKAGE))) + 1
