"""Packed batches have the losses and gradients of padded ones, and their samples do not attend to each other."""

from types import SimpleNamespace

import pytest
import torch
from conftest import ALIGNED, VOCABULARY, tiny_model, without_dropout
from transformers import AttentionInterface, AttentionMaskInterface, DataCollatorWithFlattening
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import alignattn
from alignattn.training.weights import BatchSize
from alignattn.utils.errors import AlignAttnError

ENCODERS = ("albert", "bert", "roberta", "distilbert", "electra", "modernbert")
LENGTHS = (5, 9, 1, 7)
FIRST_POSITION = {"roberta": 1}
"""The first position after that of padding."""


def sample_by_sample(module, query, key, value, attention_mask, cu_seq_lens_q=None, **kwargs):
    """Replace flash attention, which needs a GPU: each sample of a packed row attends only to itself."""
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    attended = []
    for start, end in cu_seq_lens_q.unfold(0, 2, 1).tolist():
        part = slice(start, end)
        mask = None if attention_mask is None else attention_mask[:, :, part, part]
        heads = (features[:, :, part] for features in (query, key, value))
        attended.append(sdpa_attention_forward(module, *heads, mask, **kwargs)[0])
    return torch.cat(attended, dim=1), None


AttentionInterface.register("sample_by_sample", sample_by_sample)
AttentionMaskInterface.register("sample_by_sample", sdpa_mask)


def samples():
    draw = torch.Generator().manual_seed(4)
    return [{"input_ids": torch.randint(3, VOCABULARY, (length,), generator=draw).tolist()} for length in LENGTHS]


def padded_batch():
    ids = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long)
    for row, sample in zip(ids, samples(), strict=True):
        row[: len(sample["input_ids"])] = torch.tensor(sample["input_ids"])
    return {"input_ids": ids, "attention_mask": ids.ne(0).long()}


def packed_batch(family="bert"):
    first = FIRST_POSITION.get(family, 0)
    batch = DataCollatorWithFlattening(return_flash_attn_kwargs=True)(samples())
    batch["position_ids"] = batch["position_ids"] + first
    return {name: value for name, value in batch.items() if name != "labels"}


def encoder(variant, family="bert", implementation="sdpa", **overrides):
    model = tiny_model(family)
    model.set_attn_implementation(implementation)
    without_dropout(model)
    return alignattn.patch(model, variant, **({"alignment_weight": 0.3} | overrides)).double().train()


def loss_and_gradients(model, batch, aligns=True):
    """Return a loss that weighs every feature of every real token differently, the states and the gradients."""
    states = model.base_model(**batch).last_hidden_state
    states = states[batch["attention_mask"].bool()] if "attention_mask" in batch else states[0]
    wanted = torch.randn(states.shape, dtype=states.dtype, generator=torch.Generator().manual_seed(5))
    loss = (states * wanted).sum()
    loss = loss + alignattn.alignment_loss(model) if aligns else loss
    loss.backward()
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    return {"loss": loss.detach(), "states": states.detach()} | gradients


def assert_equal(variant, family="bert", aligns=True, **overrides):
    expected = loss_and_gradients(encoder(variant, family, **overrides), padded_batch(), aligns)
    found = loss_and_gradients(encoder(variant, family, **overrides), packed_batch(family), aligns)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("family", ENCODERS)
def test_a_packed_batch_equals_a_padded_one(family):
    assert_equal("aa-ct", family, implementation="sample_by_sample")


@pytest.mark.parametrize("variant", [name for name in ALIGNED if name != "aa-ct"])
def test_a_packed_batch_equals_a_padded_one_for_every_alignment(variant):
    assert_equal(variant, implementation="sample_by_sample")


def test_an_alignment_keeps_the_models_attention_to_a_packed_batch():
    """SDPA ignores the bounds of samples: they attend to each other, with and without an alignment."""
    model = tiny_model("bert")
    expected = model.base_model(**packed_batch()).last_hidden_state
    alignattn.patch(model, "aa-ct")
    assert torch.equal(model.base_model(**packed_batch()).last_hidden_state, expected)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_slots_keep_samples_apart(family):
    assert_equal("entmax15", family, aligns=False)
    assert_equal("aa-ct+qvi+entmax15", family)


def test_layers_that_are_not_patched_keep_samples_apart_too():
    assert_equal("entmax15", layers=(1,), aligns=False)


def test_records_of_a_packed_batch_are_by_sample():
    model = encoder("aa-ct").eval()
    with torch.no_grad(), alignattn.collect(model) as packed:
        model.base_model(**packed_batch())
    with torch.no_grad(), alignattn.collect(model) as padded:
        model.base_model(**padded_batch())
    torch.testing.assert_close(packed.losses(), padded.losses(), rtol=1e-9, atol=1e-11)
    assert packed.layers[0].mask.sum(dim=1).tolist() == list(LENGTHS)


def test_bounds_changed_in_place_take_effect():
    model, batch = encoder("entmax15").eval(), packed_batch()
    first = model.base_model(**batch).last_hidden_state
    for bounds in (batch["cu_seq_lens_q"], batch["cu_seq_lens_k"]):
        bounds.copy_(torch.tensor([0, 4, 14, 15, 22]))
    assert not torch.allclose(model.base_model(**batch).last_hidden_state, first)


def test_inference_mode_does_not_change_a_packed_batch():
    model = encoder("entmax15").eval()
    expected = model.base_model(**packed_batch()).last_hidden_state
    with torch.inference_mode():
        torch.testing.assert_close(model.base_model(**packed_batch()).last_hidden_state, expected)


def test_the_size_of_a_packed_batch_counts_its_samples():
    labels = torch.tensor([[1] * 10 + [-100] * 12])
    size = BatchSize.of(packed_batch() | {"labels": labels})
    assert (size.samples, size.labels) == (len(LENGTHS), 10)
    size = BatchSize.of(packed_batch() | {"labels": labels}, SimpleNamespace(loss_is_of_rows=True))
    assert size.items == size.samples


def test_the_size_of_a_batch_packed_by_positions_counts_its_samples():
    batch = DataCollatorWithFlattening()([sample | {"labels": sample["input_ids"]} for sample in samples()])
    assert "cu_seq_lens_q" not in batch
    assert BatchSize.of(batch).samples == len(LENGTHS)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cu_seq_lens_q": torch.tensor([0, 5, 14, 15, 21])}, "from 0 to the 22 tokens"),
        ({"cu_seq_lens_q": torch.tensor([0, 5, 5, 15, 22])}, "from 0 to the 22 tokens"),
        ({"cu_seq_lens_k": torch.tensor([0, 22])}, "cu_seq_lens_k is"),
        (padded_batch(), "4 rows"),
    ],
    ids=["short", "empty", "keys", "rows"],
)
def test_invalid_bounds_are_refused(changes, said):
    batch = packed_batch() | changes
    if "cu_seq_lens_k" not in changes:
        del batch["cu_seq_lens_k"]
    if "attention_mask" in batch:
        del batch["position_ids"]
    with pytest.raises(AlignAttnError, match=said):
        encoder("entmax15").base_model(**batch)


@pytest.mark.parametrize("family", ["deberta-v3", "mpnet"])
def test_models_without_packed_attention_refuse_a_packed_batch(family):
    model, batch = encoder("aa-ct", family), packed_batch()
    with pytest.raises(AlignAttnError, match="samples of a packed batch"):
        model(**batch)
    alignattn.unpatch(model)(**batch)
