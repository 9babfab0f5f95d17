"""What an alignment costs on a GPU at BERT-base's size, held without one; `accounting` has the rules."""

import pytest
import torch
from accounting import GIGABYTE, MIB, Accounting, account_of, account_of_values, bert_base_calls
from torch import nn

from alignattn.attention.choices import ALIGNMENTS, VALUES

LAYERS, HEADS, DIM = 12, 12, 64
LIMITS = {
    ("gan", 32, 128): (377, 19.8, 1258),
    ("ct", 32, 128): (617, 28.1, 1769),
    ("ot", 32, 128): (1111, 36.4, 586),
    ("gan", 8, 512): (377, 19.7, 1238),
    ("ct", 8, 512): (617, 27.9, 1746),
    ("ot", 8, 512): (3323, 92.6, 586),
}
"""Operations, GB moved and MiB kept of the loss and its backward pass, by alignment, samples and tokens."""


@pytest.mark.parametrize(("name", "batch", "length"), LIMITS)
def test_a_loss_stays_within_its_budget(name, batch, length):
    alignment = ALIGNMENTS.load(name)(DIM, num_layers=LAYERS).to("meta")
    account = account_of(alignment, bert_base_calls(batch, length))
    operations, gigabytes, kept = LIMITS[name, batch, length]
    assert account.operations.total() <= operations, account.operations
    assert account.moved.total() <= gigabytes * GIGABYTE, account.moved
    assert account.kept <= kept * MIB


QVI_LIMITS = 660, 5.92, 305
"""The same of query-value interaction, 32 samples of 128 tokens; 72 MiB are its results."""


def test_query_value_interaction_stays_within_its_budget():
    build = VALUES.load("qvi")
    account = account_of_values([build(DIM, HEADS).to("meta") for _ in range(LAYERS)], 32, 128)
    operations, gigabytes, kept = QVI_LIMITS
    assert account.operations.total() <= operations, account.operations
    assert account.moved.total() <= gigabytes * GIGABYTE, account.moved
    assert account.kept <= kept * MIB


def test_an_account_is_that_by_hand():
    """y = x * row, of 4 × 8 numbers of 4 bytes and an expanded row; then bias + x @ weight of two samples."""
    rows, row = torch.empty(4, 8, device="meta"), nn.Parameter(torch.empty(8, device="meta"))
    with Accounting() as accounting:
        product = rows * row.expand(4, 8).view(4, 8)
        del product
        kept = rows * row
        kept.view(2, 2, 8).transpose(1, 2)
    assert accounting.operations == {"mul": 2}
    assert accounting.moved == {"mul": 2 * (128 + 32 + 128)}
    assert (accounting.alive, accounting.peak) == (128, 128)
    batched, weight, bias = (torch.empty(shape, device="meta") for shape in ((2, 4, 8), (2, 8, 3), (2, 1, 3)))
    with Accounting() as accounting:
        torch.baddbmm(bias, batched, weight)
    read, made = 4 * (2 * 3 + 2 * 4 * 8 + 2 * 8 * 3), 4 * (2 * 4 * 3)
    assert accounting.operations.total() == 2
    assert accounting.moved.total() == read + 3 * made
