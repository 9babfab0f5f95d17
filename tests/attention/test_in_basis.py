"""The basis that an alignment learns: its bounds, and why its shift is tied."""

import pytest
import torch
from torch.func import functional_call

from alignattn.attention.alignment import CTAlignment, MomentsAlignment, OTAlignment, SlicedAlignment
from alignattn.attention.alignment.calls import Call
from alignattn.attention.alignment.in_basis import MAX_CONDITION, AlignmentInBasis, bounded
from alignattn.attention.distance import spread_distance

LAYERS, HEADS, SIZE, BATCH, LENGTH = 2, 2, 4, 5, 9


def in_basis(alignment=OTAlignment, seed=0, **options):
    """Return a module whose basis is not the identity."""
    module = AlignmentInBasis(alignment(SIZE, num_layers=LAYERS, **options), HEADS).double()
    torch.nn.init.normal_(module.generator, generator=torch.Generator().manual_seed(seed))
    return module


def call(layer=0, seed=0, mask=None):
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, BATCH, LENGTH, HEADS * SIZE, generator=generator, dtype=torch.float64)
    return Call(query + 2, 3 * key - 1, HEADS, mask, mask, layer)


def test_the_logarithm_is_bounded_for_every_parameter():
    generator = 50 * torch.randn(20, SIZE, SIZE, dtype=torch.float64)
    values = torch.linalg.eigvalsh(bounded(generator))
    assert torch.equal(bounded(generator), bounded(generator).mT)
    assert ((values[:, -1] - values[:, 0]).exp() <= MAX_CONDITION * (1 + 1e-9)).all()
    small = 1e-4 * (generator + generator.mT)
    torch.testing.assert_close(bounded(small), small, rtol=1e-3, atol=1e-6)
    # Computed from the eigenvalues.
    values, vectors = torch.linalg.eigh((generator + generator.mT)[0] / 100)
    reach = torch.tensor(MAX_CONDITION).double().log() / 2
    expected = vectors * (values / (1 + (values / reach / 2) ** 2)) @ vectors.mT
    torch.testing.assert_close(bounded(generator / 50)[0], expected)


def test_the_gradient_of_the_basis_matches_finite_differences():
    module, given = in_basis(MomentsAlignment).eval(), [call(), call(1, seed=1)]
    module.forward = module.of_calls
    at_start = torch.zeros_like(module.generator, requires_grad=True)  # where all eigenvalues are equal
    for generator in (module.generator.detach().requires_grad_(), at_start):
        torch.autograd.gradcheck(lambda part: functional_call(module, {"generator": part}, (given,))[0], generator)


@pytest.mark.parametrize("alignment", [CTAlignment, MomentsAlignment])
def test_the_loss_is_the_alignment_of_the_folded_projections(alignment):
    module = in_basis(alignment)
    calls = [call(), call(seed=1), call(1, seed=2)]  # layer 0 is called twice
    loss = module.of_calls(calls)[0]
    moved = []
    for part in calls:
        basis = module.basis(part.layer)
        query, key = (
            rows.flatten(0, 1).unflatten(-1, (HEADS, SIZE)).transpose(0, 1) for rows in (part.query, part.key)
        )
        new = [basis.of_queries(query), basis.of_keys(key)]
        # c is tied: it makes the means over a layer's calls equal, and the alignment sees both relative to that mean.
        of_layer = [other for other in calls if other.layer == part.layer]
        mean = torch.cat([other.query.flatten(0, 1) for other in of_layer]).mean(dim=0).view(HEADS, 1, SIZE)
        new = [rows - basis.of_queries(mean) for rows in new]
        rows = [rows.transpose(0, 1).flatten(1).unflatten(0, (BATCH, LENGTH)) for rows in new]
        moved.append(Call(*rows, HEADS, None, None, part.layer))
    torch.testing.assert_close(loss, module.alignment.of_calls(moved)[0])


def test_padding_does_not_matter():
    mask = torch.arange(LENGTH) < torch.tensor([9, 3, 5, 1, 0])[:, None]
    full = call(mask=mask)
    other = Call(*(torch.where(mask[..., None], part, 1e3) for part in (full.query, full.key)), HEADS, mask, mask, 0)
    first, second = in_basis(), in_basis()
    torch.testing.assert_close(first.of_calls([full])[0], second.of_calls([other])[0])
    torch.testing.assert_close(first.means, second.means)
    assert first.means[0, 0].abs().sum() > 0
    assert first.means[0, 1].abs().sum() == 0


def test_only_training_steps_update_the_means():
    module = in_basis()
    module.eval().of_calls([call()])
    assert module.steps.tolist() == [0, 0]
    module.train().of_calls([call()])
    module.of_calls([call(seed=1)])
    assert module.steps.tolist() == [2, 0]
    expected = torch.stack([call(seed=seed).key.mean(dim=(0, 1)).view(HEADS, SIZE) for seed in range(2)]).mean(dim=0)
    torch.testing.assert_close(module.means[1, 0], expected)
    module.reset()
    assert not any(part.any() for part in (module.generator, module.means, module.steps))


def far_clouds(stretch):
    """Return queries and keys with one mean away from the origin, the keys stretched along the axes, `[1, 1, N, d]`."""
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 40, SIZE, generator=generator)
    return query + 1, key * torch.tensor(stretch) + 1


def test_with_a_free_shift_a_cosine_cost_falls_while_the_clouds_drift_apart():
    query, key = far_clouds([1.0] * SIZE)
    cost = OTAlignment(SIZE)
    generator, shift = torch.zeros(1, SIZE, SIZE).requires_grad_(), torch.zeros(1, 1, SIZE).requires_grad_()
    optimizer = torch.optim.Adam([generator, shift], lr=0.2)
    seen = []
    for _ in range(40):
        log_matrix = bounded(generator)
        new_query, new_key = query @ log_matrix.matrix_exp(), key @ (-log_matrix).matrix_exp() + shift
        loss = cost(new_query, new_key)
        seen.append((loss.item(), spread_distance(new_query[0].detach(), new_key[0].detach()).item()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert seen[-1][0] < seen[0][0] / 2
    assert seen[-1][1] > 3 * seen[0][1]


def test_with_a_tied_shift_the_clouds_come_together():
    query, key = far_clouds([0.4, 0.7, 1.4, 2.5])
    rows = [part[:, 0] for part in (query, key)]
    module = AlignmentInBasis(SlicedAlignment(SIZE), 1)
    optimizer = torch.optim.Adam([module.generator], lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        module.of_calls([Call(*rows, 1, None, None, 0)])[0].backward()
        optimizer.step()
    basis = module.basis(0)
    before = spread_distance(query[0], key[0])
    after = spread_distance(basis.of_queries(query[0]), basis.of_keys(key[0]))
    assert (after < before / 2).all()
    assert (basis.condition <= MAX_CONDITION).all()
