import copy
import gc
import io
import warnings
import weakref

import pytest
import torch
import transformers
from checkpointing import enable_checkpointing
from conftest import (
    ALIGNED,
    FAMILIES,
    PADDED_LENGTH,
    WITHOUT_NETWORKS,
    crossed,
    tiny_batch,
    tiny_model,
    without_dropout,
)
from torch import nn
from torch.nn import functional as F

import alignattn
from alignattn.attention.choices import ALIGNMENTS
from alignattn.patching import alignment_parameters, patch_of, step_alignments
from alignattn.patching.slots import LayerSlots
from alignattn.utils.errors import AlignAttnError

NAMED_PROJECTIONS = ("query", "key", "q_lin", "k_lin", "Wqkv", "query_proj", "key_proj", "q", "k")


def logits_of(model, batch):
    with torch.no_grad():
        return model(**batch).logits


def align_loss(model, batch, *, loss_scale=1.0):
    """Return the mean alignment loss of one training forward, as the trainer computes it."""
    model(**batch)
    ((_, loss, _),) = step_alignments(model)
    return loss_scale * loss


def in_training(model):
    return without_dropout(model).train()


@pytest.mark.parametrize(("family", "variant"), crossed(FAMILIES, ["soft", *ALIGNED]))
def test_evaluation_is_bitwise_unchanged_and_unpatch_restores_the_model(family, variant):
    model = tiny_model(family)
    keys, classes = list(model.state_dict()), [type(module) for module in model.modules()]
    parameters = len(list(model.parameters()))
    expected = {padded: logits_of(model, tiny_batch(padded=padded)) for padded in (True, False)}
    implementation, config = model.config._attn_implementation, model.config.to_dict()

    assert alignattn.patch(model, variant) is model
    for padded, logits in expected.items():
        assert torch.equal(logits_of(model, tiny_batch(padded=padded)), logits)
    assert set(model.state_dict()) >= set(keys)
    assert (len(list(model.parameters())) > parameters) == (variant not in WITHOUT_NETWORKS)

    alignattn.unpatch(model)
    assert list(model.state_dict()) == keys
    assert [type(module) for module in model.modules()] == classes
    assert model.config._attn_implementation == implementation
    assert model.config.to_dict() == config
    for padded, logits in expected.items():
        assert torch.equal(logits_of(model, tiny_batch(padded=padded)), logits)
    alignattn.patch(model, variant)


@pytest.mark.parametrize("attention", ["aa-ct", "sparsemax"])
@pytest.mark.parametrize("patches_the_whole", [True, False])
def test_models_that_share_a_config_are_unchanged(attention, patches_the_whole, tmp_path):
    model = tiny_model("bert")
    config = model.config
    twin = transformers.BertForSequenceClassification(config)
    twin.load_state_dict(model.state_dict())
    twin.eval()
    assert twin.config is model.config is model.bert.encoder.layer[0].attention.self.config
    expected, before = logits_of(twin, tiny_batch()), config.to_dict()
    part = model if patches_the_whole else model.bert
    alignattn.patch(part, attention)
    assert part.config is not config
    assert part.config is part.base_model.encoder.layer[0].attention.self.config
    assert config.to_dict() == before
    assert config._attn_implementation == twin.config._attn_implementation == "sdpa"
    assert torch.equal(logits_of(twin, tiny_batch()), expected)
    alignattn.unpatch(part)
    assert part.config is config
    alignattn.patch(part, attention)
    twin.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(logits_of(loaded, tiny_batch()), expected)


def test_unpatch_keeps_changes_of_the_config():
    model = alignattn.patch(tiny_model("bert"), "sparsemax")
    model.resize_token_embeddings(60)
    model.config.id2label = {0: "no", 1: "yes", 2: "maybe"}
    alignattn.unpatch(model)
    assert (model.config.vocab_size, model.config.id2label[2]) == (60, "maybe")
    assert not hasattr(model.config, "alignattn")
    assert model.config._attn_implementation == "sdpa"


def test_unpatch_keeps_the_attention_implementation_that_was_set_after_the_patch():
    model = alignattn.patch(tiny_model("bert"), "aa-ct")
    model.set_attn_implementation("eager")
    alignattn.unpatch(model)
    assert {module.config._attn_implementation for module in model.modules() if hasattr(module, "config")} == {"eager"}


def test_a_pickled_model_is_collected_and_aligned():
    model, stored = alignattn.patch(tiny_model("bert"), "aa-ct"), io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    twin = torch.load(stored, weights_only=False)
    with alignattn.collect(twin.eval()) as seen:
        twin(**tiny_batch())
    assert len(seen.layers) == twin.config.num_hidden_layers
    twin.train()(**tiny_batch())
    assert alignattn.alignment_loss(twin) > 0
    assert patch_of(twin).collector.owner is twin


def tiny_siglip():
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}
    text = sizes | {"vocab_size": 50, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2}
    vision = sizes | {"image_size": 16, "patch_size": 8}
    torch.manual_seed(0)
    return transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision))


@pytest.mark.parametrize("attention", ["aa-ct", "entmax15"])
def test_unpatch_restores_the_configs_of_a_composites_parts(attention):
    model = tiny_siglip()
    before = [(module, module.config) for module in model.modules() if hasattr(module, "config")]
    alignattn.unpatch(alignattn.patch(model, attention))
    assert all(module.config is config for module, config in before)
    alignattn.patch(model, attention)
    model.config.projection_dim = 7
    alignattn.unpatch(model)
    assert model.config.projection_dim == 7
    assert model.text_model.config is model.config.text_config


@pytest.mark.parametrize("make", [tiny_siglip, lambda: tiny_model("bert")])
def test_a_patch_runs_four_forwards_at_most(make):
    model, calls = make(), []

    def note(module, *_):
        calls.append(module)

    handle = model.base_model.register_forward_pre_hook(note)
    alignattn.patch(model, "aa-ct")
    handle.remove()
    assert 2 <= len(calls) <= 4


@pytest.mark.parametrize("family", FAMILIES)
def test_eager_models_stay_bitwise_eager(family):
    model = tiny_model(family)
    model.set_attn_implementation("eager")
    expected = logits_of(model, tiny_batch())
    alignattn.patch(model, "aa-ct")
    assert torch.equal(logits_of(model, tiny_batch()), expected)
    alignattn.unpatch(model)
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("family", FAMILIES)
def test_training_mode_gives_the_plain_outputs(family):
    plain, patched = in_training(tiny_model(family)), in_training(tiny_model(family))
    alignattn.patch(patched, "aa-ct")
    align_loss(patched, tiny_batch())
    torch.testing.assert_close(patched(**tiny_batch()).logits, plain(**tiny_batch()).logits)


@pytest.mark.parametrize(("family", "variant"), crossed(FAMILIES, ALIGNED))
def test_padding_never_enters_the_loss(family, variant):
    model = in_training(tiny_model(family))
    alignattn.patch(model, variant)
    padded = tiny_batch(batch=2, padded=False)
    for name in ("input_ids", "attention_mask"):
        padded[name] = F.pad(padded[name], (0, PADDED_LENGTH))
    plain = align_loss(model, tiny_batch(batch=2, padded=False))
    torch.testing.assert_close(align_loss(model, padded), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("family", "variant"), crossed(FAMILIES, ALIGNED))
def test_each_layer_counts_and_the_loss_is_that_of_its_queries_and_keys(family, variant):
    model = tiny_model(family)
    alignattn.patch(model, variant)
    with torch.no_grad(), alignattn.collect(model) as seen:
        model(**tiny_batch())
    assert len(seen.layers) == 3
    (alignment,) = patch_of(model).alignments.values()
    for index, record in enumerate(seen.layers):
        assert record.query.shape == record.key.shape == (4, 3, 9, 8)
        assert torch.equal(record.mask, tiny_batch()["attention_mask"].bool())
        if family == "modernbert":  # rotates queries and keys after the projections that are compared
            continue
        loss = alignment(record.query, record.key, record.mask, layer=index % alignment.num_layers)
        torch.testing.assert_close(record.loss, loss)


def test_the_repr_of_a_recording_shows_shapes():
    model = alignattn.patch(tiny_model("bert"), "aa-gan").train()
    with alignattn.collect(model) as seen:
        model(**tiny_batch())
    first, *others = repr(seen).splitlines()
    assert first == "Recording of 3 attention calls"
    assert all("key=[4, 3, 9, 8], weights=[4, 3, 9, 9], mask=[4, 9]" in line for line in others)


def test_collected_weights_are_those_of_eager_attention():
    model = tiny_model("bert")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**tiny_batch(), output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    alignattn.patch(model, "soft")
    with torch.no_grad(), alignattn.collect(model) as seen:
        given = model(**tiny_batch(), output_attentions=True).attentions
    for eager, collected, returned in zip(expected, [layer.weights for layer in seen.layers], given, strict=True):
        torch.testing.assert_close(collected, eager)
        torch.testing.assert_close(returned, eager)


def test_attention_is_collected_in_double_precision():
    model = alignattn.patch(tiny_model("bert").double(), "aa-ct")
    expected = logits_of(model, tiny_batch())
    with torch.no_grad(), alignattn.collect(model) as seen:
        torch.testing.assert_close(model(**tiny_batch()).logits, expected)
    assert seen.layers[0].weights[-1, :, :, -PADDED_LENGTH:].max() == 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scope", ["projections", "all"])
def test_the_gradient_scope_limits_the_gradient(family, scope):
    model = in_training(tiny_model(family))
    alignattn.patch(model, "aa-ct", gradient_scope=scope)
    align_loss(model, tiny_batch()).backward()
    own = {id(parameter) for parameter in alignment_parameters(model)}
    moved = {
        name
        for name, parameter in model.named_parameters()
        if id(parameter) not in own and parameter.grad is not None and parameter.grad.abs().max() > 0
    }
    is_projection = {name: any(f".{part}." in name for part in NAMED_PROJECTIONS) for name in moved}
    assert any(is_projection.values())
    assert all(is_projection.values()) == (scope == "projections")
    assert all(parameter.grad is not None for parameter in alignment_parameters(model))


@pytest.mark.parametrize("family", ["albert", "bert", "distilbert", "modernbert", "deberta-v3", "mpnet"])
def test_projection_gradient_is_that_of_a_detached_input(family):
    """Compare the sum of both gradients, the task's and the alignment's, with a loss rebuilt from detached inputs."""
    model = in_training(tiny_model(family)).double()
    alignattn.patch(model, "aa-ct", head_reduction="mean")
    weight = 0.7
    batch = tiny_batch()
    task_loss = model(**batch).loss
    ((_, align, _),) = step_alignments(model)
    (task_loss + weight * align).backward()
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}

    model.zero_grad()
    inputs, handles = [], []
    for module in model.modules():
        if isinstance(getattr(module, "alignattn", None), LayerSlots):
            first = next(getattr(module, name) for name in NAMED_PROJECTIONS if hasattr(module, name))
            handles.append(
                first.register_forward_pre_hook(
                    lambda _, args, module=module: (
                        # DeBERTa-v3 projects embeddings of positions by the same layer.
                        inputs.append((module, args[0].detach()))
                        if args[0].shape[:2] == batch["input_ids"].shape
                        else None
                    )
                )
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task_loss = model(**batch).loss
    for handle in handles:
        handle.remove()
    losses = []
    for module, hidden in inputs:
        projections = [getattr(module, name) for name in NAMED_PROJECTIONS if hasattr(module, name)]
        outputs = [F.linear(hidden, linear.weight, linear.bias) for linear in projections]
        query, key = outputs if len(outputs) == 2 else outputs[0].chunk(3, dim=-1)[:2]
        heads = [features.unflatten(-1, (3, -1)).transpose(1, 2) for features in (query, key)]
        (alignment,) = patch_of(model).alignments.values()
        losses.append(alignment(*heads, batch["attention_mask"].bool(), layer=module.alignattn.layer))
    (task_loss + weight * torch.stack(losses).mean()).backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(found[name], parameter.grad, msg=name)


def test_layers_restrict_the_patch():
    model = tiny_model("bert")
    alignattn.patch(model, "aa-ct", layers=[2, 0])
    patched = [hasattr(layer.attention.self, "alignattn") for layer in model.bert.encoder.layer]
    assert patched == [True, False, True]
    with torch.no_grad(), alignattn.collect(model) as seen:
        model(**tiny_batch())
    assert len(seen.losses()) == 2


def test_shared_layers_refuse_layers():
    with pytest.raises(AlignAttnError, match="have 1 attention module"):
        alignattn.patch(tiny_model("albert"), "aa-ct", layers=[0])


def test_the_papers_patch_functions_equal_a_patch_with_a_config():
    first = alignattn.patch_alignment(tiny_model("bert"), "ct", weight=0.5, gradient_scope="all")
    second = alignattn.patch(tiny_model("bert"), "aa-ct", alignment_weight=0.5, gradient_scope="all")
    assert first.alignattn.config == second.alignattn.config
    paper = {"value_options": {"init": "paper"}}
    first = alignattn.patch_qvi(tiny_model("bert"), **paper)
    second = alignattn.patch(tiny_model("bert"), alignattn.AttentionConfig(value="qvi", **paper))
    assert first.alignattn.config == second.alignattn.config


def test_a_copy_of_a_patched_model_has_its_own_collector():
    model = alignattn.patch(tiny_model("bert"), "aa-ct")
    twin = copy.deepcopy(model)
    with torch.no_grad(), alignattn.collect(twin) as seen:
        model(**tiny_batch())
        assert not seen.layers
        twin(**tiny_batch())
        assert len(seen.layers) == 3


def test_half_precision_models_keep_their_losses_in_float32():
    model = alignattn.patch(in_training(tiny_model("bert")).bfloat16(), "aa-ct")
    assert {parameter.dtype for parameter in alignment_parameters(model)} == {torch.float32}
    loss = align_loss(model, tiny_batch())
    assert loss.dtype == torch.float32
    loss.backward()
    assert model.bert.encoder.layer[0].attention.self.query.weight.grad.abs().max() > 0


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_autocast_computes_the_loss_in_float32_of_its_rounded_inputs(alignment):
    model = alignattn.patch_alignment(in_training(tiny_model("bert")), alignment)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = align_loss(model, tiny_batch())
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, align_loss(model, tiny_batch()), rtol=0.05, atol=0.05)
    loss.backward()


def test_training_without_the_alignment_loss_warns_once_and_keeps_nothing():
    model = alignattn.patch(tiny_model("bert"), "aa-ct").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(**tiny_batch()).loss.backward()
        query = weakref.ref(patch_of(model).collector.newest.query)
        optimizer.step()
        gc.collect()
        assert query() is None

    with pytest.warns(UserWarning, match=r"alignattn\.alignment_loss.*AlignmentTrainer"):
        step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()
    with pytest.raises(AlignAttnError, match="no attention layer of this BertForSequenceClassification recorded"):
        alignattn.alignment_loss(model)


def test_reentrant_checkpointing_is_refused_where_it_would_lose_the_gradient():
    model = alignattn.patch(tiny_model("bert"), "aa-ct").train()
    enable_checkpointing(model, use_reentrant=True)
    with pytest.raises(AlignAttnError, match="use_reentrant"):
        align_loss(model, tiny_batch())


def test_without_the_mask_registration_padding_would_be_attended():
    """An attention function that is registered without a mask function gets no mask; ours has one for padding."""
    masks = []

    def spy(module, query, key, value, attention_mask, **kwargs):
        masks.append(attention_mask)
        return transformers.integrations.sdpa_attention.sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )

    transformers.AttentionInterface.register("maskless", spy)
    model = tiny_model("bert")
    model.set_attn_implementation("maskless")
    logits_of(model, tiny_batch())
    assert masks[0] is None
    model.set_attn_implementation("sdpa")
    alignattn.patch(model, "soft")
    with torch.no_grad(), alignattn.collect(model) as seen:
        model(**tiny_batch())
    assert seen.layers[0].weights[-1, :, :, -PADDED_LENGTH:].max() == 0


class TestRefusals:
    def test_patching_twice(self):
        model = alignattn.patch(tiny_model("bert"), "aa-ct")
        with pytest.raises(AlignAttnError, match="patched already"):
            alignattn.patch(model, "aa-gan")

    @pytest.mark.parametrize("function", [alignattn.unpatch, lambda model: alignattn.collect(model).__enter__()])
    def test_plain_models(self, function):
        with pytest.raises(AlignAttnError, match="not patched"):
            function(tiny_model("bert"))

    def test_models_without_the_interface_and_without_a_family(self):
        config = transformers.DebertaConfig(
            vocab_size=50, hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=32
        )
        with pytest.raises(AlignAttnError, match=r"DebertaModel keeps no projections"):
            alignattn.patch(transformers.DebertaModel(config), "aa-ct")

    def test_layers_out_of_range_leave_the_model_plain(self):
        model = tiny_model("bert")
        keys = list(model.state_dict())
        with pytest.raises(AlignAttnError, match="layers="):
            alignattn.patch(model, "aa-ct", layers=[3])
        assert list(model.state_dict()) == keys
        assert not alignattn.is_patched(model)

    def test_values_that_read_all_queries_of_causal_models(self):
        decoder = FAMILIES["bert"]()
        decoder.is_decoder = True
        with pytest.raises(AlignAttnError, match="causally"):
            alignattn.patch(transformers.BertModel(decoder), "qvi")

    def test_attention_that_adds_less_than_rounding_is_no_causal_attention(self):
        model = tiny_model("bert")
        with torch.no_grad():
            for layer in model.base_model.encoder.layer:
                layer.attention.output.dense.weight.mul_(1e-12)
        assert alignattn.is_patched(alignattn.patch(model, "aa-ct"))

    def test_unsupported_attention_implementation(self):
        model = tiny_model("bert")
        model.set_attn_implementation("flex_attention")
        # transformers compiles the making of its masks.
        stance = torch.compiler.set_stance("force_eager")
        with stance, pytest.raises(AlignAttnError, match="attn_implementation="):
            alignattn.patch(model, "entmax15")

    def test_projections_that_are_no_linear_layers(self):
        model = tiny_model("bert")
        model.bert.encoder.layer[1].attention.self.query = nn.Identity()
        with pytest.raises(AlignAttnError, match="does not say how many features"):
            alignattn.patch(model, "aa-ct")

    def test_modules_that_are_no_model_of_transformers(self):
        with pytest.raises(AlignAttnError, match="Linear is not a PreTrainedModel"):
            alignattn.patch(nn.Linear(2, 2), "aa-ct")

    def test_an_encoder_has_no_steps_to_spend_a_budget_over(self):
        model = tiny_model("bert")
        with pytest.raises(AlignAttnError, match=r"over the steps .* BertForSequenceClassification attends in one"):
            alignattn.patch(model, "csoftmax", normalizer_options={"fertility": 1.5})
        assert not alignattn.is_patched(model)


class CustomModel(transformers.PreTrainedModel):
    config_class = transformers.RobertaConfig

    def __init__(self, config):
        super().__init__(config)
        self.reader = transformers.RobertaModel(config)
        self.post_init()


class TestPartOfAModel:
    """A part has its own config: the config of the whole does not record its patch."""

    @pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert"])
    @pytest.mark.parametrize("attention", ["sparsemax", "qvi"])
    def test_saving_the_whole_warns_of_a_changed_part(self, family, attention, tmp_path):
        model = tiny_model(family)
        alignattn.patch(model.base_model, attention)
        with pytest.warns(UserWarning, match=f"{attention}.*as a part of another model.*patch the whole model instead"):
            model.save_pretrained(tmp_path)
        with pytest.warns(UserWarning, match="as a part of another model"):
            torch.nn.parallel.DataParallel(model).state_dict()

    @pytest.mark.parametrize("attention", ["sparsemax", "qvi"])
    def test_the_warning_covers_composite_and_custom_models(self, attention, tmp_path):
        two = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(FAMILIES["bert"](), FAMILIES["bert"]())
        pair = transformers.EncoderDecoderModel(two)
        alignattn.patch(pair.encoder, attention)
        with pytest.warns(UserWarning, match=f"{attention}.*as a part of another model's .encoder."):
            pair.save_pretrained(tmp_path)
        own = CustomModel(FAMILIES["roberta"]())
        alignattn.patch(own.reader, attention)
        with pytest.warns(UserWarning, match="as a part of another model's .reader."):
            own.save_pretrained(tmp_path)
        with pytest.warns(UserWarning, match="as a part of another model's .reader."):
            torch.nn.ModuleDict({"reader": own.reader}).state_dict()

    def test_recorded_patches_and_alignments_do_not_warn(self, tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            whole = alignattn.patch(tiny_model("modernbert"), "sparsemax")
            whole.save_pretrained(tmp_path / "whole")
            part = tiny_model("modernbert")
            alignattn.patch(part.base_model, "sparsemax").save_pretrained(tmp_path / "encoder")
            torch.nn.Sequential(part.base_model).state_dict()
            torch.nn.parallel.DataParallel(torch.compile(whole)).state_dict()
            aligned = tiny_model("bert")
            alignattn.patch(aligned.bert, "aa-ct")
            aligned.save_pretrained(tmp_path / "aligned")

    def test_loading_reports_slots_that_the_config_does_not_record(self, tmp_path, caplog):
        model = tiny_model("bert")
        alignattn.patch(model.bert, "qvi")
        with pytest.warns(UserWarning, match="as a part"):
            model.save_pretrained(tmp_path)
        loaded = alignattn.from_pretrained(tmp_path, transformers.AutoModelForSequenceClassification)
        assert not alignattn.is_patched(loaded)
        assert "of the checkpoint are not used (bert.encoder.layer.0.attention.self.alignattn." in caplog.text


def test_unpatch_removes_the_slots_of_a_copy_that_an_adapter_trains():
    peft = pytest.importorskip("peft")
    model = alignattn.patch(tiny_model("bert"), "aa-ct")
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["dense"], modules_to_save=["self"]))
    alignattn.unpatch(adapted)
    assert not any(isinstance(module, LayerSlots) for module in adapted.modules())


def test_collecting_leaves_no_attribute_behind():
    model = alignattn.patch(tiny_model("bert"), "aa-ct").eval()
    before = [list(vars(module)) for module in model.modules()]
    with alignattn.collect(model):
        model(**tiny_batch())
    assert [list(vars(module)) for module in model.modules()] == before
