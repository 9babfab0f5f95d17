"""Slots in models outside transformers: `attend` and `attach` have the effects of a patch."""

import json

import pytest
import torch
from conftest import PADDED_LENGTH, VOCABULARY, tiny_batch, tiny_model
from own_encoder import HEADS, LAYERS, SIZE, OwnAttention, own_encoder
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import alignattn
from alignattn.attention.choices import SLOTS
from alignattn.attention.config import PLAIN_ATTENTION, PRESETS, AttentionConfig
from alignattn.patching import alignment_parameters, function_parameters, patch_of
from alignattn.utils.errors import AlignAttnError

CONFIGS = {
    AttentionConfig.resolve(name).name: name for name in (*PRESETS, *(name for slot in SLOTS.values() for name in slot))
}
"""A name for each preset and each choice of a slot; `gan` is the config of `aa-gan`, and `softmax` that of `soft`."""
ATTENTIONS = list(CONFIGS)
ALIGNED = [name for name in ATTENTIONS if AttentionConfig.resolve(name).alignment is not None]


def logits_of(model, batch):
    with torch.no_grad():
        return model(**batch)["logits"]


def padded(batch):
    """The same rows with more padding, whose ids are those of words."""
    ids, mask = (F.pad(batch[name], (0, PADDED_LENGTH)) for name in ("input_ids", "attention_mask"))
    return batch | {"input_ids": ids + VOCABULARY // 2 * (mask == 0), "attention_mask": mask}


class Rows(Dataset):
    def __init__(self):
        self.batch = tiny_batch(batch=8)

    def __len__(self):
        return len(self.batch["labels"])

    def __getitem__(self, index):
        return {name: values[index] for name, values in self.batch.items()}


def train(model, folder, **changes):
    """Train with the Trainer, at a learning rate that changes every parameter."""
    settings = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "logging_steps": 1}
    settings |= {"alignment_learning_rate": 1e-2, "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    args = alignattn.AlignmentTrainingArguments(str(folder), **(settings | changes))
    trainer = alignattn.AlignmentTrainer(model=model, args=args, train_dataset=Rows())
    trainer.train()
    model.eval()
    return trainer


class TestAttend:
    def test_attend_without_slots_is_scaled_dot_product_attention(self):
        layer = OwnAttention().eval()
        query, key, value = torch.randn(3, 2, HEADS, 5, SIZE // HEADS)
        mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
        expected = F.scaled_dot_product_attention(query, key, value, mask[:, None, None, :])
        assert torch.equal(alignattn.attend(layer, query, key, value, mask), expected)
        assert torch.equal(alignattn.attend(layer, query, key, value, mask.long()), expected)
        pairs = mask[:, None, None, :].expand(-1, 1, 5, -1)
        torch.testing.assert_close(alignattn.attend(layer, query, key, value, pairs), expected)
        plain = F.scaled_dot_product_attention(query, key, value, scale=0.3)
        assert torch.equal(alignattn.attend(layer, query, key, value, scale=0.3), plain)
        assert torch.equal(alignattn.attend(layer, query, key, value, dropout=0.9, scale=0.3), plain)
        assert not torch.equal(alignattn.attend(layer.train(), query, key, value, dropout=0.9, scale=0.3), plain)

    @pytest.mark.parametrize(
        "mask", [torch.zeros(2, 5), torch.ones(2, 5, 5).bool(), torch.ones(2, 3, 5, 5).bool(), torch.ones(2, 4).bool()]
    )
    def test_masks_of_other_types_or_shapes_are_refused(self, mask):
        query, key, value = torch.randn(3, 2, HEADS, 5, SIZE // HEADS)
        with pytest.raises(AlignAttnError, match=r"not a mask of attend: give bool, \[2, 5\] or"):
            alignattn.attend(OwnAttention(), query, key, value, mask)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_model_is_trained_saved_reloaded_and_unpatched(attention, tmp_path):
    plain = own_encoder()
    keys, classes = list(plain.state_dict()), [type(module) for module in plain.modules()]
    model = alignattn.attach(own_encoder(), attention, alignment_weight=0.5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    logged = train(model, tmp_path).state.log_history[0]
    aligns = attention in ALIGNED
    assert ("align_loss" in logged) == aligns
    if aligns:
        assert logged["loss"] == pytest.approx(logged["task_loss"] + 0.5 * logged["align_loss"], rel=1e-5)
    for parameter in (*alignment_parameters(model), *function_parameters(model)):
        name = next(name for name, other in model.named_parameters() if other is parameter)
        assert not torch.equal(parameter, before[name]), name

    model.double()  # so that rounding does not decide which of two close keys `hard` attends to
    batch = tiny_batch()
    expected = logits_of(model, batch)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "attention.json").write_text(json.dumps(patch_of(model).config.to_dict()))
    config = AttentionConfig.from_dict(json.loads((tmp_path / "attention.json").read_text()))
    reloaded = alignattn.attach(own_encoder(seed=1), config).double()
    reloaded.load_state_dict(load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(logits_of(reloaded, batch), expected)
    for padding in (True, False):
        rows = tiny_batch(padded=padding)
        torch.testing.assert_close(logits_of(model, padded(rows)), logits_of(model, rows))

    alignattn.unpatch(reloaded)
    assert list(reloaded.state_dict()) == keys
    assert [type(module) for module in reloaded.modules()] == classes
    plain.double().load_state_dict(reloaded.state_dict())
    assert torch.equal(logits_of(reloaded, batch), logits_of(plain, batch))
    if aligns or attention == PLAIN_ATTENTION:
        assert torch.equal(logits_of(plain, batch), expected)


@pytest.mark.parametrize("attention", [PLAIN_ATTENTION, *ALIGNED])
def test_evaluation_is_bitwise_unchanged(attention):
    model = own_encoder()
    expected = {padding: logits_of(model, tiny_batch(padded=padding)) for padding in (True, False)}
    alignattn.attach(model, attention)
    for padding, logits in expected.items():
        assert torch.equal(logits_of(model, tiny_batch(padded=padding)), logits)


@pytest.mark.parametrize("attention", ALIGNED)
def test_the_loss_is_that_of_the_recorded_queries_and_keys_without_padding(attention):
    model = alignattn.attach(own_encoder(), attention)
    losses = []
    for batch in (tiny_batch(), padded(tiny_batch())):
        with torch.no_grad(), alignattn.collect(model) as seen:
            model(**batch)
        assert len(seen.layers) == LAYERS
        for layer, record in zip(model.layers, seen.layers, strict=True):
            assert torch.equal(record.mask, batch["attention_mask"].bool())
            assert record.weights.shape == (4, HEADS, *[batch["input_ids"].shape[1]] * 2)
            (alignment,) = patch_of(model).alignments.values()
            loss = alignment(record.query, record.key, record.mask, layer=layer.attention.alignattn.layer)
            torch.testing.assert_close(record.loss, loss)
        losses.append(torch.stack(seen.losses()))
    torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)


def test_the_alignment_trains_only_the_projections():
    model = alignattn.attach(own_encoder(), "aa-ct")
    with alignattn.collect(model) as seen:
        model(**tiny_batch())
    torch.stack(seen.losses()).mean().backward()
    moved = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    moved = {name for name in moved if "alignattn." not in name}
    assert moved == {
        f"layers.{layer}.attention.{role}_projection.{part}"
        for layer in range(LAYERS)
        for role in ("query", "key")
        for part in ("weight", "bias")
    }


def test_layers_restrict_the_slots():
    model = alignattn.attach(own_encoder(), "entmax15", layers=[1])
    assert [hasattr(layer.attention, "alignattn") for layer in model.layers] == [False, True]
    with pytest.raises(AlignAttnError, match="this model has layers 0 to 1"):
        alignattn.attach(own_encoder(), "entmax15", layers=[2])


def test_a_model_with_slots_compiles_without_a_graph_break():
    torch._dynamo.reset()
    model = alignattn.attach(own_encoder(), "aa-ct").train()
    loss = torch.compile(model, backend="aot_eager", fullgraph=True)(**tiny_batch())["loss"]
    (loss + alignattn.alignment_loss(model)).backward()
    assert all(parameter.grad is not None for parameter in alignment_parameters(model))


class Wrapped(nn.Module):
    """A model around an encoder, in which a test changes something."""

    def __init__(self):
        super().__init__()
        self.encoder = own_encoder()

    @property
    def attention(self):
        return self.encoder.layers[1].attention


def with_multihead_attention(model):
    model.encoder.layers[1].attention = nn.MultiheadAttention(SIZE, HEADS)


def with_half_an_attention(model):
    del model.attention.key_projection


def with_one_projection(model):
    model.attention.key_projection = model.attention.query_projection


def with_fewer_keys(model):
    model.attention.key_projection = nn.Linear(SIZE, SIZE // HEADS)


def with_an_adapter(model):
    model.attention.key_projection = nn.Sequential(model.attention.key_projection)


def with_a_causal_layer(model):
    model.attention.is_causal = True


def with_slots(model):
    alignattn.attach(model, "soft")


def with_slots_in_a_part(model):
    alignattn.attach(model.encoder, "soft")


def with_an_encoder_of_transformers(model):
    model.bert = tiny_model("bert")


class TestRefusals:
    def test_values_that_read_all_queries_do_not_fit_a_causal_layer(self):
        model = Wrapped()
        with_a_causal_layer(model)
        with pytest.raises(AlignAttnError, match="Wrapped attends causally"):
            alignattn.attach(model, "qvi")
        assert alignattn.is_patched(alignattn.attach(model, "aa-ct+entmax15"))

    @pytest.mark.parametrize("attention", ["qvi", "sum", "interaction"])
    def test_values_that_read_all_queries_do_not_fit_a_causal_mask(self, attention):
        model = alignattn.attach(nn.ModuleList([OwnAttention()]), attention)
        states, mask = torch.randn(2, 5, SIZE), torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 1, -1, -1)
        model[0](states[:, :1], mask[..., :1, :1])  # one token says nothing about the mask of several
        with pytest.raises(AlignAttnError, match=f"ModuleList attends causally, and value '{attention}' reads all"):
            model[0](states, mask)
        model = alignattn.attach(alignattn.unpatch(model), "aa-ct+entmax15")
        assert model[0](states, mask).isfinite().all()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                with_multihead_attention,
                r"layers\.1\.attention \(MultiheadAttention\) is attention that slots cannot reach",
            ),
            (with_half_an_attention, r"encoder\.layers\.1\.attention \(OwnAttention\) is only part of"),
            (
                with_one_projection,
                r"layers\.1\.attention \(OwnAttention\) projects queries and keys by one layer",
            ),
            (with_fewer_keys, r"attention \(OwnAttention\) projects to \[24, 8\] features, which do not make 3 heads"),
            (with_an_adapter, r"attention \(OwnAttention\) projects to \[24, 0\] features"),
            (with_slots, "this Wrapped is patched already"),
            (with_slots_in_a_part, "this OwnEncoder is patched already"),
            (with_an_encoder_of_transformers, r"bert.*self \(BertSelfAttention\) is attention that slots cannot reach"),
        ],
    )
    def test_an_unsuitable_model_is_refused_and_left_unchanged(self, change, message):
        model = Wrapped()
        change(model)
        keys = list(model.state_dict())
        with pytest.raises(AlignAttnError, match=message) as raised:
            alignattn.attach(model, "aa-ct")
        assert "\n" not in str(raised.value)
        assert list(model.state_dict()) == keys

    def test_a_model_without_attention(self):
        with pytest.raises(AlignAttnError, match="Linear has no attention: an attention module has num_heads"):
            alignattn.attach(nn.Linear(2, 2), "soft")

    def test_an_encoder_of_transformers_goes_to_patch(self):
        with pytest.raises(AlignAttnError, match=r"alignattn\.patch is for transformers' models"):
            alignattn.attach(tiny_model("bert"), "soft")

    def test_a_module_of_attention_alone(self):
        with pytest.raises(AlignAttnError, match="OwnAttention is an attention module: pass the model"):
            alignattn.attach(OwnAttention(), "soft")

    def test_queries_of_other_projections(self):
        model = alignattn.attach(own_encoder(), "aa-ct")
        attention = model.layers[0].attention
        projections = (attention.value_projection, attention.key_projection, attention.value_projection)

        def forward(states, mask):
            heads = [project(states).unflatten(-1, (HEADS, -1)).transpose(1, 2) for project in projections]
            return alignattn.attend(attention, *heads, mask).transpose(1, 2).flatten(2)

        attention.forward = forward
        with alignattn.collect(model), pytest.raises(AlignAttnError, match="without queries or keys of its module"):
            model(**tiny_batch())


def test_a_replica_of_data_parallel_is_refused_in_training():
    model = alignattn.patch(tiny_model("bert"), "aa-ct").train()
    replica = model._replicate_for_data_parallel()
    with pytest.raises(AlignAttnError, match="does not run in DataParallel"):
        replica(**tiny_batch())
    with torch.no_grad():
        assert replica(**tiny_batch()).loss.isfinite()
