"""The number of operations of a training step, which determines its time on a GPU at small sizes."""

import functools
from contextlib import nullcontext

import pytest
import torch
import transformers
from accounting import Accounting, free_losses
from conftest import ALIGNED

import alignattn
from alignattn.attention.alignment import one_pass

LAYERS, BATCH, LENGTH = 12, 8, 128
MOST = {
    "aa-gan": 1.25,
    "aa-ct": 1.35,
    "aa-ot": 1.6,
    "aa-moments": 1.35,
    "aa-means": 1.25,
}
"""Maximum number of operations of a step, as a multiple of soft attention's."""
WAITS = {"_local_scalar_dense", "item", "nonzero", "equal", "lift_fresh"}
"""Operations that make the host wait for the device, or copy to it."""
TAPS = 75
"""Operations by which queries and keys of twelve layers reach the loss, and its gradient their projections."""


@functools.cache
def operations_of_a_step(attention, *, loss_is_free=False, autocast=False):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=LAYERS,
        num_attention_heads=3,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.BertForSequenceClassification(config).train()
    alignattn.patch(model, attention)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[1, LENGTH // 2 :] = 0
    batch = {"input_ids": torch.randint(50, (BATCH, LENGTH)), "attention_mask": mask}
    batch["labels"] = torch.zeros(BATCH, dtype=torch.long)
    with Accounting() as accounting, free_losses() if loss_is_free else nullcontext():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(**batch).loss
            if attention != "soft":
                loss = loss + alignattn.alignment_loss(model)
        loss.backward()
    return accounting.operations


@pytest.fixture(autouse=True)
def groups_of_a_gpu(monkeypatch):
    monkeypatch.setattr(one_pass, "is_in_blocks", lambda _: False)


@pytest.mark.parametrize("attention", ALIGNED)
def test_an_alignment_adds_few_operations_to_a_step(attention):
    plain = operations_of_a_step("soft").total()
    assert operations_of_a_step(attention).total() <= MOST[attention] * plain


@pytest.mark.parametrize("attention", ALIGNED)
def test_an_alignment_adds_no_wait_for_the_device(attention):
    waits = {name: operations_of_a_step(attention)[name] - operations_of_a_step("soft")[name] for name in WAITS}
    assert not any(waits.values()), waits


def test_reading_queries_and_keys_adds_few_operations_to_a_step():
    """Under autocast, as on a GPU; the loss itself is free here."""
    plain, read = (
        operations_of_a_step(attention, loss_is_free=True, autocast=True) for attention in ("soft", "aa-gan")
    )
    assert read.total() - plain.total() <= TAPS, read - plain
