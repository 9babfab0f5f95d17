"""What an alignment costs on a GPU at BERT-base's size, held without one; `accounting` has the rules."""

from dataclasses import replace

import pytest
import torch
from accounting import GIGABYTE, MIB, Accounting, account_of, account_of_values, bert_base_calls
from torch import nn

from alignattn.attention.choices import ALIGNMENTS, VALUES

LAYERS, HEADS, DIM = 12, 12, 64
LIMITS = {
    ("gan", 32, 128, None): (170, 15.9, 145),
    ("ct", 32, 128, None): (290, 24.0, 146),
    ("ot", 32, 128, None): (495, 29.1, 145),
    ("gan", 32, 128, 8): (110, 4.7, 37),
    ("ct", 32, 128, 8): (166, 6.8, 38),
    ("ot", 32, 128, 8): (280, 8.0, 37),
    ("gan", 8, 512, None): (170, 15.9, 145),
    ("ct", 8, 512, None): (290, 24.0, 146),
    ("ot", 8, 512, None): (2905, 71.0, 145),
}
"""Operations, GB moved and MiB kept of the loss and its backward pass, by alignment, samples, tokens and drawn samples.
The operations by which queries and keys reach the loss are counted in patching/test_calls.py."""


def calls_of(batch, length, rows):
    calls = bert_base_calls(batch, length)
    if rows is None:
        return calls
    chosen = torch.empty(rows, dtype=torch.int64, device="meta")
    mask = torch.ones(rows, length, dtype=torch.bool, device="meta")
    return [replace(call, query_mask=mask, key_mask=mask, chosen=chosen) for call in calls]


@pytest.mark.parametrize(("name", "batch", "length", "rows"), LIMITS)
def test_a_loss_stays_within_its_budget(name, batch, length, rows):
    alignment = ALIGNMENTS.load(name)(DIM, num_layers=LAYERS).to("meta")
    account = account_of(alignment, calls_of(batch, length, rows))
    operations, gigabytes, kept = LIMITS[name, batch, length, rows]
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
