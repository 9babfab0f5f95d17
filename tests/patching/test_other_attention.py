"""Models with attention unlike BERT's: a patch refuses slots that they cannot have, and the others are correct."""

import accelerate
import pytest
import torch
import transformers
from conftest import tiny_batch, tiny_model
from transformers.models.blt.configuration_blt import BltGlobalTransformerConfig
from transformers.models.blt.modeling_blt import BltGlobalTransformer
from transformers.models.dia.configuration_dia import DiaEncoderConfig
from transformers.models.dia.modeling_dia import DiaEncoder

import alignattn
from alignattn.patching import is_patched
from alignattn.utils.errors import AlignAttnError

SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
}


def layoutlm():
    return transformers.LayoutLMModel(transformers.LayoutLMConfig(**SIZES))


def markuplm():
    fields = {"max_xpath_tag_unit_embeddings": 8, "max_xpath_subs_unit_embeddings": 8, "xpath_unit_hidden_size": 4}
    return transformers.MarkupLMModel(
        transformers.MarkupLMConfig(**SIZES, **fields, tag_pad_id=7, subs_pad_id=7, max_depth=3)
    )


def clip():
    fields = SIZES | {"projection_dim": 24, "bos_token_id": 2, "eos_token_id": 3}
    return transformers.CLIPTextModel(transformers.CLIPTextConfig(**fields))


def eurobert():
    fields = SIZES | {"num_key_value_heads": 1, "bos_token_id": 2, "eos_token_id": 3}
    return transformers.EuroBertModel(transformers.EuroBertConfig(**fields))


def esm():
    return transformers.EsmModel(
        transformers.EsmConfig(**SIZES, mask_token_id=4, position_embedding_type="rotary", token_dropout=False)
    )


def codegen(config=transformers.CodeGenConfig, model=transformers.CodeGenModel):
    return model(config(vocab_size=50, n_embd=24, hidden_size=24, n_layer=1, n_head=4, rotary_dim=4))


def bloom():
    return codegen(transformers.BloomConfig, transformers.BloomModel)


def whisper_encoder():
    fields = {"d_model": 24, "encoder_layers": 1, "encoder_attention_heads": 3, "encoder_ffn_dim": 32}
    config = transformers.WhisperConfig(**fields, num_mel_bins=8, max_source_positions=20)
    return transformers.WhisperModel(config).get_encoder()


@pytest.mark.parametrize(("make", "attention"), [(clip, "qvi"), (clip, "local")])
def test_slots_that_a_causal_model_cannot_have_are_refused_at_the_patch(make, attention):
    torch.manual_seed(0)
    model = make().train()
    implementation = model.config._attn_implementation
    keys, modes = list(model.state_dict()), [module.training for module in model.modules()]
    with pytest.raises(AlignAttnError, match="attends causally"):
        alignattn.patch(model, attention)
    assert not is_patched(model)
    assert list(model.state_dict()) == keys
    assert [module.training for module in model.modules()] == modes
    assert model.config._attn_implementation == implementation


@pytest.mark.parametrize("attention", ["aa-ct", "bilinear", "entmax15", "qvi"])
def test_an_encoder_whose_heads_share_keys_is_supported(attention):
    torch.manual_seed(0)
    model, inputs = eurobert().eval(), {"input_ids": torch.randint(5, 50, (2, 6)), "attention_mask": torch.ones(2, 6)}
    inputs["attention_mask"][1, 4:] = 0
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state
        found = alignattn.patch(model, attention)(**inputs).last_hidden_state
        if attention == "aa-ct":
            assert torch.equal(found, expected)
        else:
            # `bilinear` and `qvi` start at the pretrained function.
            assert torch.allclose(found[0], expected[0], atol=1e-4) == (attention != "entmax15")
        inputs["input_ids"][1, 4:] = 7
        torch.testing.assert_close(model(**inputs).last_hidden_state[1, :4], found[1, :4])


def test_a_model_that_is_causal_only_for_padded_batches_refuses_qvi():
    """With SDPA, all tokens of an unpadded batch of Aimv2 attend to all; its mask of a padded batch is causal."""
    fields = SIZES | {"eos_token_id": 3}
    model = transformers.Aimv2TextModel(transformers.Aimv2TextConfig(**fields))
    with pytest.raises(AlignAttnError, match="attends causally"):
        alignattn.patch(model, "qvi")
    assert is_patched(alignattn.patch(model, "aa-ct"))


def test_longformer_is_refused_for_its_layout_and_not_as_causal():
    """Longformer pads to whole windows, and its attention keeps tokens before samples."""
    fields = SIZES | {"attention_window": 4, "num_hidden_layers": 1}
    with pytest.raises(AlignAttnError, match="tokens before samples"):
        alignattn.patch(transformers.LongformerModel(transformers.LongformerConfig(**fields)), "aa-ct")


def test_modules_that_do_not_call_the_attention_interface_are_refused():
    sizes = {"depths": [1], "num_attention_heads": [2], "patch_embeds_hidden_size": 16, "hidden_size": 16}
    images = {"window_size": 4, "num_mel_bins": 16, "spec_size": 64, "patch_size": 4, "patch_stride": [4, 4]}
    model = transformers.ClapAudioModel(transformers.ClapAudioConfig(**sizes, **images, num_hidden_layers=1))
    with pytest.raises(AlignAttnError, match="ClapAudioSelfAttention of ClapAudioModel does not call"):
        alignattn.patch(model, "entmax15")


def test_masked_attention_to_an_image_is_not_causal():
    """EoMT masks the places that a query's segment does not reach, but these places attend to the query."""
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 2, "num_blocks": 1, "num_queries": 4}
    torch.manual_seed(0)
    model = transformers.EomtForUniversalSegmentation(
        transformers.EomtConfig(**sizes, image_size=16, patch_size=4, num_register_tokens=1, num_upscale_blocks=1)
    ).eval()
    pixels = torch.randn(2, 3, 16, 16)
    expected = model(pixel_values=pixels).class_queries_logits
    alignattn.patch(model, "aa-ct")
    assert torch.equal(model(pixel_values=pixels).class_queries_logits, expected)
    model.train()(pixel_values=pixels)
    assert alignattn.alignment_loss(model).isfinite()


def test_is_causal_alone_does_not_refuse_an_alignment():
    # Its forward accepts only embeddings, and its attention is not causal, although its modules set `is_causal`.
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 3, "num_hidden_layers": 1}
    model = BltGlobalTransformer(BltGlobalTransformerConfig(**sizes, intermediate_size=32))
    assert is_patched(alignattn.patch(model, "aa-ct"))


@pytest.mark.parametrize("attention", ["dot", "qvi", "sum", "interaction"])
@pytest.mark.parametrize("make", [esm, whisper_encoder])
def test_slots_that_would_scale_scaled_queries_again_are_refused(make, attention):
    with pytest.raises(AlignAttnError, match="scales its queries before"):
        alignattn.patch(make(), attention)


def test_unscaled_queries_are_supported():
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 3}
    model = DiaEncoder(DiaEncoderConfig(vocab_size=50, **sizes, head_dim=8, intermediate_size=32))
    assert alignattn.patch(model, "qvi")(input_ids=torch.arange(5)[None]).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("attention", ["aa-ct", "bilinear"])
def test_other_slots_support_models_that_scale_queries_themselves(attention):
    torch.manual_seed(0)
    model = esm().eval()
    batch = {"input_ids": torch.randint(5, 50, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    batch["attention_mask"][1, 6:] = 0
    with torch.no_grad():
        expected = model(**batch).last_hidden_state
        alignattn.patch(model, attention)
        torch.testing.assert_close(model(**batch).last_hidden_state[0], expected[0])


def test_patch_and_unpatch_keep_the_random_numbers_and_the_mode():
    model = tiny_model("bert").train()
    model.bert.embeddings.eval()
    modes = [module.training for module in model.modules()]
    torch.manual_seed(3)
    alignattn.patch(model, "aa-ot")
    drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(3))
    alignattn.unpatch(model)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("family", ["Olmo", "Olmoe", "Dbrx"])
def test_an_alignment_is_refused_where_queries_and_keys_are_clipped_after_their_projections(family):
    def small(clip):
        fields = SIZES | {"clip_qkv": clip}
        if family == "Dbrx":
            attends = {"clip_qkv": clip, "kv_n_heads": 2, "rope_theta": 1e4}
            feeds = {"ffn_hidden_size": 32, "moe_num_experts": 2, "moe_top_k": 1}
            fields = {"vocab_size": 50, "d_model": 24, "n_heads": 4, "n_layers": 1, "attn_config": attends}
            fields |= {"ffn_config": feeds}
        return getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")(**fields))

    with pytest.raises(AlignAttnError, match=f"{family}Attention of {family}Model clips queries and keys .*clip_qkv=8"):
        alignattn.patch(small(8.0), "aa-ct")
    assert is_patched(alignattn.patch(small(None), "aa-ct"))


def test_a_fused_projection_in_another_order_is_refused_at_the_patch_or_at_the_first_forward():
    """CodeGen orders queries, values and keys by parts. Neither model calls transformers' attention interface."""
    with pytest.raises(AlignAttnError, match="CodeGenAttention of CodeGenModel orders queries, keys and values"):
        alignattn.patch(codegen(), "aa-ct")
    assert is_patched(alignattn.patch(bloom(), "aa-ct"))
    ids = torch.arange(5)[None]
    for model in (bloom(), codegen()):
        accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
        alignattn.patch(model, "aa-ct").train()
        if isinstance(model, transformers.BloomModel):
            model(ids)
            assert alignattn.alignment_loss(model) > 0
        else:
            with pytest.raises(AlignAttnError, match="orders queries, keys and values"):
                model(ids)


def test_models_without_weights_are_patched():
    with torch.device("meta"):
        model = tiny_model("bert")
    assert is_patched(alignattn.patch(model, "aa-ct"))


@pytest.mark.parametrize("make", [layoutlm, markuplm])
def test_masks_that_a_model_makes_mark_padding(make):
    """Its mask is `[B, 1, 1, n]`. A padded row has the weights and the loss of the same row without padding."""
    torch.manual_seed(0)
    model = alignattn.patch(make().eval(), "aa-ct+sparsemax")
    ids = torch.randint(5, 50, (1, 9))
    padded = torch.cat([ids, torch.full((1, 3), 7)], dim=1)
    with torch.no_grad(), alignattn.collect(model) as seen:
        model(input_ids=ids)
        model(input_ids=padded, attention_mask=torch.arange(12)[None].lt(9).long())
    alone, beside = seen.layers[0], seen.layers[2]
    torch.testing.assert_close(beside.weights[:, :, :9, :9], alone.weights)
    assert beside.weights[..., 9:].abs().max() == 0
    torch.testing.assert_close(beside.loss, alone.loss)


@pytest.mark.parametrize("attention", ["aa-ct", "aa-gan+qvi"])
@pytest.mark.parametrize("size", ["50GB", "20KB"])
def test_a_variant_of_a_checkpoint_is_loaded(attention, size, tmp_path):
    model = alignattn.patch(tiny_model("bert"), attention)
    model.save_pretrained(tmp_path, variant="fp16", max_shard_size=size)
    assert not (tmp_path / "model.safetensors").exists()
    auto_class = transformers.AutoModelForSequenceClassification
    loaded = alignattn.from_pretrained(tmp_path, auto_class, variant="fp16")
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_torch_func_refuses_a_forward_that_records():
    model = alignattn.patch(tiny_model("bert"), "aa-ct")
    batch = tiny_batch()
    parameters = dict(model.named_parameters())

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (), batch).loss

    plain = torch.func.grad(lambda parameters: loss(parameters))(parameters)
    name = "bert.encoder.layer.0.attention.self.query.weight"
    model(**batch).loss.backward()
    torch.testing.assert_close(plain[name], parameters[name].grad)
    with pytest.raises(AlignAttnError, match=r"torch\.func transforms"):
        torch.func.grad(loss)(dict(model.train().named_parameters()))
    assert loss(parameters).requires_grad  # without a transform it records as any forward
    assert alignattn.alignment_loss(model) > 0


@pytest.mark.parametrize("preset", ["aa-gan", "aa-ot", "aa-ct"])
def test_half_precision_loses_nothing_of_a_scaled_gradient(preset):
    """The loss is scaled as by a gradient scaler, and compared with the same numbers in float32."""
    scale, weight, found = 2.0**16, 1e-3, {}
    torch.manual_seed(0)
    for dtype in (torch.float16, torch.float32):
        model = alignattn.patch(tiny_model("bert"), preset, alignment_weight=weight).train()
        alignment = model.alignattn.alignments["8"]
        torch.manual_seed(1)
        for parameter in alignment.parameters():
            parameter.data.normal_()
        torch.manual_seed(2)
        features = [torch.randn(32, 1, 256, 8).half().to(dtype).requires_grad_() for _ in range(2)]
        (scale * weight * alignment(*features)).backward()
        found[dtype] = torch.stack([part.grad.float() for part in features])
    error = (found[torch.float16] - found[torch.float32]).norm() / found[torch.float32].norm()
    assert error < 1e-3


class WithoutGradients(transformers.BertModel):
    """A model that runs its attention under `no_grad`, as XCodec runs its HuBERT."""

    def forward(self, input_ids=None, attention_mask=None):
        with torch.no_grad():
            return super().forward(input_ids, attention_mask)


def test_a_model_that_switches_gradients_off_is_refused_at_the_patch():
    model = WithoutGradients(transformers.BertConfig(**SIZES))
    with pytest.raises(AlignAttnError, match="without gradients"):
        alignattn.patch(model, "aa-ct")
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert is_patched(alignattn.patch(model, "entmax15"))
