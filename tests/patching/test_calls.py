"""The number of operations of a training step, which determines its time on a GPU at small sizes."""

import functools
from collections import Counter

import pytest
import torch
import transformers
from conftest import ALIGNED
from torch.utils._python_dispatch import TorchDispatchMode

import alignattn
from alignattn.attention.alignment import base

LAYERS, BATCH, LENGTH = 12, 8, 128
MOST = {
    "aa-gan": 1.25,
    "aa-ct": 1.35,
    "aa-ot": 1.6,
    "aa-moments": 1.35,
    "aa-means": 1.25,
    "aa-mmd": 1.35,
    "aa-sliced": 1.35,
}
"""Maximum number of operations of a step, as a multiple of soft attention's."""
VIEWS = {
    "_unsafe_view", "alias", "as_strided", "chunk", "detach", "diagonal", "expand", "narrow", "permute", "select",
    "slice", "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view",
}  # fmt: skip
"""Operations that launch nothing."""
WAITS = {"_local_scalar_dense", "item", "nonzero", "equal", "lift_fresh"}
"""Operations that make the host wait for the device, or copy to it."""


class CallCounter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


@functools.cache
def calls_of_a_step(attention):
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
    with CallCounter() as counter:
        loss = model(**batch).loss
        if attention != "soft":
            loss = loss + alignattn.alignment_loss(model)
        loss.backward()
    return counter.calls


def launches(attention):
    return sum(count for name, count in calls_of_a_step(attention).items() if name not in VIEWS)


@pytest.fixture(autouse=True)
def generic_path(monkeypatch):
    monkeypatch.setattr(base, "uses_cpu_backend", lambda _: False)


@pytest.mark.parametrize("attention", ALIGNED)
def test_an_alignment_adds_few_operations_to_a_step(attention):
    assert launches(attention) <= MOST[attention] * launches("soft")


@pytest.mark.parametrize("attention", ALIGNED)
def test_an_alignment_adds_no_wait_for_the_device(attention):
    waits = {name: calls_of_a_step(attention)[name] - calls_of_a_step("soft")[name] for name in WAITS}
    assert not any(waits.values()), waits
