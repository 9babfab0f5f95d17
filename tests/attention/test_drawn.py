"""Alignments of some of a sample's tokens."""

import pytest
import torch

from alignattn.attention.alignment import CTAlignment, GANAlignment, OTAlignment
from alignattn.utils.errors import AlignAttnError

SIZE, HEADS, LENGTH = 4, 2, 40


@pytest.mark.parametrize("alignment_class", [GANAlignment, OTAlignment, CTAlignment])
def test_a_draw_is_of_that_many_tokens_and_another_at_each_step(alignment_class):
    torch.manual_seed(0)
    alignment = alignment_class(SIZE, points=8)
    query, key = torch.randn(2, 1, HEADS, LENGTH, SIZE, requires_grad=True)
    drawn = []
    for _ in range(3):
        (gradient,) = torch.autograd.grad(alignment(query, key), query)
        drawn.append(gradient[0].abs().sum(dim=(0, 2)) > 0)
    assert [int(places.sum()) for places in drawn] == [8, 8, 8]
    assert not torch.equal(drawn[0], drawn[1])
    assert alignment.state_dict()["step"] == 3
    evaluated = alignment.eval()
    torch.testing.assert_close(evaluated(query, key), evaluated(query, key))


@pytest.mark.parametrize("alignment_class", [GANAlignment, OTAlignment, CTAlignment])
def test_with_no_more_tokens_than_points_all_are_matched_and_padding_changes_no_draw(alignment_class):
    torch.manual_seed(0)
    alignment = alignment_class(SIZE, points=LENGTH)
    whole = alignment_class(SIZE)
    whole.load_state_dict({name: value for name, value in alignment.state_dict().items() if name != "step"})
    query, key = torch.randn(2, 2, HEADS, LENGTH, SIZE)
    torch.testing.assert_close(alignment(query, key), whole(query, key))
    few = alignment_class(SIZE, points=8).eval()
    mask = torch.ones(2, LENGTH + 5, dtype=torch.bool)
    mask[:, LENGTH:] = False
    padded = [torch.cat([part, torch.full((2, HEADS, 5, SIZE), 9.0)], dim=2) for part in (query, key)]
    torch.testing.assert_close(few(*padded, mask), few(query, key))


def test_no_points_are_refused():
    with pytest.raises(AlignAttnError, match="points=0 must be at least 1"):
        CTAlignment(SIZE, points=0)
