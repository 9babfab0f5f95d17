"""Scores, normalizers and values as slots of patched models."""

import pytest
import torch
import transformers
from checkpointing import enable_checkpointing
from conftest import FAMILIES, PADDED_LENGTH, crossed, tiny_batch, tiny_model, without_dropout
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers import AutoModel, AutoModelForSequenceClassification

import alignattn
from alignattn.attention.choices import SLOTS
from alignattn.attention.config import PRESETS, AttentionConfig
from alignattn.attention.variant import values_mask
from alignattn.patching import function_parameters, has_alignment, step_alignments
from alignattn.utils.errors import AlignAttnError

CHOICES = [
    name for slot in ("score", "normalizer", "value") for name in SLOTS[slot] if name != getattr(PRESETS["soft"], slot)
]
MIXES = ["aa-ct+qvi+entmax15", "aa-gan+bilinear+sparsemax+sum", "aa-ot+additive+csoftmax+interaction"]
UNCHANGED_AT_FIRST = ("bilinear", "sum", "qvi", "csoftmax", "local")
"""Slots that start at the pretrained function, or whose bound or window does not limit these short rows."""
PAPER_FAMILIES = ("albert", "bert", "roberta")
SLIDING = "modernbert"
FITTING = [
    pytest.param(family, choice, marks=[pytest.mark.matrix] if (i + j) % len(FAMILIES) else [])
    for i, family in enumerate(FAMILIES)
    for j, choice in enumerate([*CHOICES, *MIXES])
    if not (family == SLIDING and "additive" in choice)
]
"""Each choice with one family, all with `make matrix`. Additive scores do not fit a sliding window."""


def logits_of(model, batch):
    with torch.no_grad():
        return model(**batch).logits


def train(model, steps=2):
    """Take some steps of AlignmentTrainer's loss, with a learning rate that changes every parameter."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        loss = model.train()(**tiny_batch()).loss
        if has_alignment(model):
            ((_, align_loss, _),) = step_alignments(model)
            loss = loss + align_loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.mark.parametrize(("family", "attention"), crossed(PAPER_FAMILIES, [*PRESETS, *CHOICES, *MIXES]))
def test_patch_train_save_and_reload_gives_equal_logits(family, attention, tmp_path):
    """In double precision, so that rounding does not decide which of two close keys `hard` attends to."""
    model = train(alignattn.patch(tiny_model(family).double(), attention))
    expected = logits_of(model, tiny_batch())
    assert expected.isfinite().all()
    model.save_pretrained(tmp_path)
    loaded = alignattn.from_pretrained(tmp_path, AutoModelForSequenceClassification)
    weights = loaded.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    torch.testing.assert_close(logits_of(loaded, tiny_batch()), expected)
    assert alignattn.patching.patch_of(loaded).config == alignattn.patching.patch_of(model).config


@pytest.mark.parametrize(("family", "attention"), FITTING)
def test_unpatch_restores_the_function_and_the_config(family, attention):
    model = tiny_model(family)
    expected, config = logits_of(model, tiny_batch()), model.config.to_dict()
    alignattn.patch(model, attention)
    changed = logits_of(model, tiny_batch())
    assert changed.isfinite().all()
    if attention not in UNCHANGED_AT_FIRST:
        assert not torch.equal(changed, expected)
    alignattn.unpatch(model)
    assert model.config.to_dict() == config
    assert torch.equal(logits_of(model, tiny_batch()), expected)


@pytest.mark.parametrize(("family", "attention"), FITTING)
def test_padding_changes_no_logit(family, attention):
    model = train(alignattn.patch(tiny_model(family).double(), attention))
    plain = tiny_batch(padded=False)
    padded = dict(plain)
    for name in ("input_ids", "attention_mask"):
        padded[name] = F.pad(plain[name], (0, PADDED_LENGTH))
    torch.testing.assert_close(logits_of(model, padded), logits_of(model, plain))


@pytest.mark.parametrize(("family", "attention"), FITTING)
def test_returned_and_collected_weights_are_those_of_the_attention(family, attention):
    model = train(alignattn.patch(tiny_model(family).double(), attention))
    plain = logits_of(model, tiny_batch())
    with torch.no_grad(), alignattn.collect(model) as seen:
        output = model(**tiny_batch(), output_attentions=True)
    torch.testing.assert_close(output.logits, plain)
    for record, returned in zip(seen.layers, output.attentions, strict=True):
        torch.testing.assert_close(record.weights, returned)
        real = record.mask
        rows = returned.transpose(1, 2)[real]
        torch.testing.assert_close(rows.sum(dim=-1), rows.new_ones(rows.shape[:2]))
        assert (returned.permute(0, 3, 1, 2)[~real] == 0).all()


@pytest.mark.parametrize("attention", [*CHOICES, *MIXES])
def test_every_parameter_of_a_slot_learns(attention):
    model = alignattn.patch(tiny_model("bert"), attention)
    before = [parameter.clone() for parameter in function_parameters(model)]
    train(model)
    for old, new in zip(before, function_parameters(model), strict=True):
        assert not torch.equal(old, new)


def test_learned_alpha_moves_and_survives_a_reload(tmp_path):
    model = alignattn.patch(tiny_model("bert"), "entmax", normalizer_options={"learned": True, "alpha": 1.4})
    before = [parameter.clone() for parameter in function_parameters(model)]
    train(model).save_pretrained(tmp_path)
    loaded = alignattn.from_pretrained(tmp_path, AutoModelForSequenceClassification)
    trained = function_parameters(loaded)
    assert all(map(torch.equal, trained, function_parameters(model)))
    assert not any(map(torch.equal, trained, before))


@pytest.mark.parametrize("attention", CHOICES)
def test_gradient_checkpointing_gives_the_same_gradients(attention):
    gradients = []
    for checkpointing in (False, True):
        model = alignattn.patch(tiny_model("bert"), attention).train()
        without_dropout(model)
        if checkpointing:
            enable_checkpointing(model)
        model(**tiny_batch()).loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("attention", [*CHOICES, *MIXES])
def test_autocast_and_half_precision_models_run(attention):
    model = alignattn.patch(tiny_model("bert"), attention)
    expected = logits_of(model, tiny_batch())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(logits_of(model, tiny_batch()).float(), expected, rtol=0.1, atol=0.1)
        model.train()(**tiny_batch()).loss.backward()
    half = alignattn.patch(tiny_model("bert").bfloat16(), attention)
    assert {parameter.dtype for parameter in function_parameters(half)} <= {torch.float32}
    assert logits_of(half, tiny_batch()).isfinite().all()


def test_a_narrow_window_is_not_taken_for_causal_attention():
    model = alignattn.patch(tiny_model("bert"), "local", normalizer_options={"window": 1})
    assert logits_of(model, tiny_batch()).isfinite().all()


def test_values_mask_is_the_transpose_without_padding():
    window = (torch.arange(4)[:, None] - torch.arange(4)).abs() < 2
    real = torch.tensor([True, True, True, False])
    found = values_mask((window & real)[None, None])[0, 0]
    for value in range(3):
        for query in range(4):
            assert found[value, query] == (abs(value - query) < 2 and query != 3)
    assert found[3].all()


class MasksOfAttention(TorchFunctionMode):
    """Notes the masks that PyTorch's attention receives."""

    def __init__(self):
        super().__init__()
        self.masks = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            self.masks.append(args[3] if len(args) > 3 else kwargs.get("attn_mask"))
        return function(*args, **kwargs)


@pytest.mark.parametrize("attention", ["qvi", "sum", "interaction", "bilinear", "dot"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "mpnet"])
def test_a_gpu_attends_without_forming_weights(family, attention):
    """There, PyTorch's fused kernels refuse a mask whose last dimension has another stride than 1."""
    model = alignattn.patch(tiny_model(family), attention)
    with MasksOfAttention() as seen:
        logits_of(model, tiny_batch())
    assert any(mask is not None for mask in seen.masks)
    assert {mask.stride(-1) for mask in seen.masks if mask is not None} == {1}


class TestPretrained:
    """QVI starts at the pretrained function of real checkpoints, and its weights get gradients."""

    def test_logits_and_gradients_of_qvi(self, minilm):
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=2).eval()
        ids = torch.randint(1000, 20000, (4, 24), generator=torch.Generator().manual_seed(0))
        batch = {"input_ids": ids, "labels": torch.tensor([0, 1, 1, 0])}
        expected = logits_of(model, batch)
        alignattn.patch_qvi(model)
        assert (logits_of(model, batch) - expected).abs().max() < 1e-3
        model(**batch).loss.backward()
        for layer in model.bert.encoder.layer:
            attention = layer.attention.self
            ratio = attention.alignattn.value_slot.weight.grad.norm() / attention.value.weight.grad.norm()
            assert 0.01 < ratio < 100

    def test_sentence_embeddings_of_qvi(self, minilm):
        tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
        sentences = ["A man is eating pasta.", "The weather is lovely today, is it not?", "He drove to the stadium."]
        batch = tokenizer(sentences, padding=True, return_tensors="pt")
        model = AutoModel.from_pretrained(minilm).eval()

        def embeddings():
            with torch.no_grad():
                hidden = model(**batch).last_hidden_state
            mask = batch["attention_mask"][:, :, None]
            return (hidden * mask).sum(dim=1) / mask.sum(dim=1)

        plain = embeddings()
        alignattn.patch_qvi(model)
        assert F.cosine_similarity(plain, embeddings()).min() > 0.9999


class TestConfig:
    def test_names_compose(self):
        composed = AttentionConfig.resolve("aa-ct+qvi+entmax15", alignment_weight=0.1)
        assert composed == AttentionConfig(alignment="ct", value="qvi", normalizer="entmax15", alignment_weight=0.1)
        assert AttentionConfig.resolve("soft+aa-ct") == AttentionConfig(alignment="ct")
        assert AttentionConfig.from_dict(composed.to_dict()) == composed

    def test_no_choice_is_in_two_slots(self):
        names = [name for choices in SLOTS.values() for name in choices]
        assert len(names) == len(set(names))

    @pytest.mark.parametrize(
        ("attention", "changes"), [("soft", False), ("aa-ct", False), *((choice, True) for choice in CHOICES)]
    )
    def test_all_choices_except_alignments_change_the_function(self, attention, changes):
        assert AttentionConfig.resolve(attention).changes_function == changes

    def test_a_slot_that_the_attention_does_not_support_is_refused(self):
        with pytest.raises(AlignAttnError, match=r"score='additive'.*sliding window.*choose one of scaled_dot"):
            alignattn.patch(tiny_model(SLIDING), "additive")
        model = tiny_model("bert")
        model.config._attn_implementation = "flash_attention_2"
        with pytest.raises(AlignAttnError, match=r"normalizer='entmax15'.*flash_attention_2.*'sdpa' or 'eager'"):
            alignattn.patch(model, "entmax15")
