"""Causal language models: an alignment only observes, and other slots are right with a cache of keys, or refused."""

import copy
import math

import pytest
import torch
import transformers
from decoders import GROUPED, MODELS, batch, decoder
from torch import nn

import alignattn
from alignattn.attention.alignment.ct import CTAlignment
from alignattn.attention.choices import ALIGNMENTS
from alignattn.finetuning.callbacks import query_key_distance
from alignattn.patching import patch_of
from alignattn.patching.collector import Collector
from alignattn.patching.projections import attention_modules
from alignattn.utils.errors import AlignAttnError

ROW_BY_ROW = ("sparsemax", "entmax15", "entmax", "fusedmax", "csoftmax", "hard", "dot", "bilinear", "additive")
"""Slots in which a token reads no later one."""

OPTIONS = {"csoftmax": {"normalizer_options": {"bound": 0.6}}, "entmax": {"normalizer_options": {"alpha": 1.3}}}


def unrotated_heads(model, inputs):
    """Return the queries and keys that the only layer attends with where all positions are 0, so nothing is rotated."""
    seen = []

    def attend(module, query, key, value, mask, **kwargs):
        seen.append((query, key))
        return torch.zeros_like(query).transpose(1, 2), None

    transformers.AttentionInterface.register("seen", attend)
    transformers.AttentionMaskInterface.register("seen", transformers.masking_utils.sdpa_mask)
    twin = copy.deepcopy(model)
    twin.set_attn_implementation("seen")
    with torch.no_grad():
        twin(**inputs, position_ids=torch.zeros_like(inputs["input_ids"]))
    return seen[0]


@pytest.mark.parametrize("name", MODELS)
def test_the_distance_is_that_of_unrotated_queries_and_the_keys_of_their_group(name):
    model, inputs = decoder(name, num_hidden_layers=1), batch()
    query, key = unrotated_heads(model, inputs)
    alignattn.patch(model, "aa-moments", alignment_weight=1).train()
    model(**inputs)
    found = alignattn.alignment_loss(model)
    shared = key[:, [head * key.shape[1] // query.shape[1] for head in range(query.shape[1])]]
    expected = ALIGNMENTS.load("moments")(query.shape[-1])(query, shared, inputs["attention_mask"].bool())
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_an_alignment_leaves_evaluation_and_generation_as_they_are(name, implementation):
    model, inputs = decoder(name), batch()
    if name != "gemma2":
        # SDPA does not support its soft-capping.
        model.set_attn_implementation(implementation)
    left = {side: values.flip(1) for side, values in inputs.items()}
    with torch.no_grad():
        expected = model(**inputs).logits
        tokens = model.generate(**left, max_new_tokens=5, do_sample=False)
        alignattn.patch(model, "aa-ct")
        assert torch.equal(model(**inputs).logits, expected)
        assert torch.equal(model.generate(**left, max_new_tokens=5, do_sample=False), tokens)


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_reaches_only_projections_and_their_norms(name):
    model = alignattn.patch(decoder(name), "aa-ct").train()
    model(**batch())
    alignattn.alignment_loss(model).backward()
    reached = {
        path.split(".")[-2]
        for path, parameter in model.named_parameters()
        if "alignattn" not in path and parameter.grad is not None
    }
    fused = {"qkv_proj"}, {"query_key_value"}
    assert reached - {"q_norm", "k_norm"} in ({"q_proj", "k_proj"}, *fused)


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_real_token_counts_once(side):
    model = alignattn.patch(decoder("qwen3"), "aa-ct").train()
    inputs = batch(rows=1, tokens=6, padding=0)
    model(**inputs)
    expected = alignattn.alignment_loss(model)
    width = (2, 0) if side == "left" else (0, 2)
    padded = {name: nn.functional.pad(values, width) for name, values in inputs.items()}
    positions = (padded["attention_mask"].cumsum(1) - 1).clamp_min(0)
    model(**padded, position_ids=positions)
    torch.testing.assert_close(alignattn.alignment_loss(model), expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_positions_of_padding_are_no_samples(side):
    model = alignattn.patch(decoder("qwen3"), "aa-ct").train()
    batches = [batch(rows=2, tokens=6, padding=0), batch(rows=2, tokens=5, padding=0)]
    width = (4, 0) if side == "left" else (0, 4)
    batches[1] = {name: nn.functional.pad(values, width) for name, values in batches[1].items()}
    losses, counts = [], []
    for with_positions in (False, True):
        for inputs in batches:
            positions = {"position_ids": (inputs["attention_mask"].cumsum(1) - 1).clamp_min(0)}
            model(**inputs, **(positions if with_positions else {}))
        losses.append(alignattn.alignment_loss(model))
        with torch.no_grad(), alignattn.collect(model) as collected:
            model(**batches[1], **(positions if with_positions else {}))
        counts.append([len(call.query) for call in collected.layers])
    torch.testing.assert_close(losses[1], losses[0])
    assert counts[0] == counts[1]


@pytest.mark.parametrize("alignment", ["aa-ct", "aa-gan", "aa-moments"])
def test_samples_packed_by_positions_have_the_loss_of_a_padded_batch(alignment):
    model = alignattn.patch(decoder("llama"), alignment).train()
    lengths = (3, 5, 4, 4)
    ids = torch.randint(4, 60, (4, 5))
    mask = (torch.arange(5) < torch.tensor(lengths)[:, None]).long()
    model(input_ids=ids, attention_mask=mask)
    expected = alignattn.alignment_loss(model)
    packed = torch.cat([row[:length] for row, length in zip(ids, lengths, strict=True)]).view(2, 8)
    positions = torch.cat([torch.arange(length) for length in lengths]).view(2, 8)
    model(input_ids=packed, position_ids=positions, use_cache=False)
    torch.testing.assert_close(alignattn.alignment_loss(model), expected)


@pytest.mark.parametrize(
    ("slot", "implementation"), [*((slot, "sdpa") for slot in ROW_BY_ROW), (ROW_BY_ROW[0], "eager")]
)
def test_slots_compute_the_same_with_and_without_a_cache(slot, implementation):
    model = decoder("llama")
    model.set_attn_implementation(implementation)
    alignattn.patch(model, slot, **OPTIONS.get(slot, {}))
    ids = batch(padding=0)["input_ids"]
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        first = model(ids[:, :4], use_cache=True)
        steps, cache = [first.logits], first.past_key_values
        for place in range(4, ids.shape[1]):
            step = model(ids[:, place : place + 1], past_key_values=cache, use_cache=True)
            steps.append(step.logits)
            cache = step.past_key_values
        torch.testing.assert_close(torch.cat(steps, dim=1), whole)
        assert not torch.allclose(model(ids.roll(1, 1)).logits[:, 0], whole[:, 0])
        changed = ids.clone()
        changed[:, -1] = 5 + (ids[:, -1] == 5).long()
        assert torch.equal(model(changed, use_cache=False).logits[:, :-1].argmax(-1), whole[:, :-1].argmax(-1))
        torch.testing.assert_close(model(changed, use_cache=False).logits[:, :-1], whole[:, :-1])


@pytest.mark.parametrize("slot", ["qvi", "sum", "interaction", "local"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_neox"])
def test_slots_that_would_see_later_tokens_are_refused(name, slot):
    model = decoder(name)
    with pytest.raises(AlignAttnError, match="attends causally"):
        alignattn.patch(model, slot)
    assert not hasattr(model, "alignattn")


def test_soft_capping_applies_to_other_normalizers():
    capped, free = (decoder("gemma2", attn_logit_softcapping=cap) for cap in (0.05, None))
    for model in (capped, free):
        alignattn.patch(model, "entmax15")
    with torch.no_grad(), alignattn.collect(capped) as seen, alignattn.collect(free) as others:
        capped(**batch(padding=0))
        free(**batch(padding=0))
    spread = [record.weights[:, :, -1].std() for record in (seen.layers[0], others.layers[0])]
    assert spread[0] < spread[1]


def test_records_hold_both_numbers_of_heads():
    model = alignattn.patch(decoder("llama"), "aa-ct+entmax15")
    with torch.no_grad(), alignattn.collect(model) as seen:
        model(**batch())
    record = seen.layers[0]
    assert (record.query.shape[1], record.key.shape[1], record.weights.shape[1]) == (4, 2, 4)


def test_generation_in_training_mode_leaves_no_records():
    model, inputs = alignattn.patch(decoder("llama"), "aa-ct").train(), batch()
    model(**inputs)
    expected = alignattn.alignment_loss(model)
    model.generate(**inputs, max_new_tokens=4, do_sample=False)
    model(**inputs)
    model.generate(**inputs, max_new_tokens=4, do_sample=False)
    assert not patch_of(model).collector.newest.previous.previous.previous
    torch.testing.assert_close(alignattn.alignment_loss(model), expected)


def test_a_forward_with_disabled_adapters_leaves_no_records():
    peft = pytest.importorskip("peft")
    model, inputs = alignattn.patch(decoder("llama"), "aa-ct"), batch()
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "k_proj"]))
    adapted.train()
    adapted(**inputs)
    expected = alignattn.alignment_loss(adapted)
    other = batch(rows=3)
    with adapted.disable_adapter():
        adapted(**other)
    adapted(**inputs)
    with torch.no_grad(), adapted.disable_adapter():
        adapted(**other)
    with adapted.disable_adapter():
        adapted(**other)
    found = alignattn.alignment_loss(adapted)
    torch.testing.assert_close(found, expected)
    found.backward()
    assert all(parameter.grad.isfinite().all() for parameter in adapted.parameters() if parameter.grad is not None)


def test_the_keys_of_a_learned_prefix_do_not_count():
    peft = pytest.importorskip("peft")
    model, inputs = decoder("llama"), batch()
    plain = alignattn.patch(copy.deepcopy(model), "aa-moments", layers=(0,)).train()
    plain(**inputs)
    expected = alignattn.alignment_loss(plain)
    alignattn.patch(model, "aa-moments", layers=(0,))
    adapted = peft.get_peft_model(model, peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)).train()
    for parameter in model.parameters():
        parameter.requires_grad_()
    adapted(**inputs)
    torch.testing.assert_close(alignattn.alignment_loss(adapted), expected)


@pytest.mark.parametrize("name", ["qwen3", "gemma2"])
def test_a_patched_decoder_is_saved_and_loaded(name, tmp_path):
    """Gemma 2 supports no SDPA, which its Auto class does not say."""
    model, inputs = alignattn.patch(decoder(name), "aa-ct+entmax15").float(), batch()
    with torch.no_grad():
        expected = model(**inputs).logits
    model.save_pretrained(tmp_path)
    loaded = alignattn.from_pretrained(tmp_path, transformers.AutoModelForCausalLM)
    with torch.no_grad():
        torch.testing.assert_close(loaded(**inputs).logits, expected)
    assert isinstance(next(iter(patch_of(loaded).alignments.values())), CTAlignment)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_cross_attention_is_aligned_on_request_with_both_masks(implementation):
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    torch.manual_seed(0)
    config = transformers.BartConfig(vocab_size=60, d_model=32, encoder_ffn_dim=48, decoder_ffn_dim=48, **sizes)
    model, source = transformers.BartModel(config).double().eval(), batch()
    model.set_attn_implementation(implementation)
    target = batch(rows=2, tokens=4, padding=1)
    inputs = source | {f"decoder_{name}": values for name, values in target.items()}
    seen = {}
    cross = model.decoder.layers[0].encoder_attn
    for role, projection in (("query", cross.q_proj), ("key", cross.k_proj)):
        projection.register_forward_hook(lambda _m, _a, output, role=role: seen.update({role: output.detach()}))
    expected = model(**inputs).last_hidden_state
    alignattn.patch(model, "aa-moments", cross_attention=True)
    assert torch.equal(model(**inputs).last_hidden_state, expected)
    model.train()
    for module in model.modules():
        module.dropout = 0.0
        module.activation_dropout = 0.0
    model(**inputs)
    calls = patch_of(model).collector.calls()
    assert [call.slots.is_cross for call in calls] == [False, False, True]
    distance = next(iter(patch_of(model).alignments.values()))
    query, key = (seen[role].unflatten(-1, (4, 8)).transpose(1, 2) for role in ("query", "key"))
    masks = target["attention_mask"].bool(), source["attention_mask"].bool()
    alone = ALIGNMENTS.load("moments")(8)(query, key, masks[0], key_mask=masks[1])
    found = alignattn.patching.recording.mean_alignment(calls[-1:], torch.nn.ModuleDict({"8": distance}))[0]
    torch.testing.assert_close(found, alone)


def test_cross_attention_is_recognised_by_its_class_and_aligned_only_on_request():
    """LXMERT names it `visual_attention.att`, Pix2Struct `encoder_decoder_attention.attention`."""
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 32, "l_layers": 1, "r_layers": 1}
    config = transformers.LxmertConfig(vocab_size=60, **sizes, x_layers=1, visual_feat_dim=8)
    text = {"hidden_size": 24, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 3, "initializer_range": 0.02}
    pix2struct = transformers.Pix2StructTextModel(transformers.Pix2StructTextConfig(vocab_size=60, **text))
    found = [[module.is_cross for module in attention_modules(pix2struct, with_cross_attention=on)] for on in (0, 1)]
    assert found == [[False], [False, True]]
    for on, count in ((False, 4), (True, 6)):
        model = alignattn.patch(transformers.LxmertModel(config), "aa-ct", cross_attention=on).train()
        model(**batch(), visual_feats=torch.randn(2, 5, 8), visual_pos=torch.rand(2, 5, 4))
        assert [call.slots.is_cross for call in patch_of(model).collector.calls()].count(True) == count - 4
        assert alignattn.alignment_loss(model).isfinite()


def test_layers_without_attention_are_logged(caplog):
    sizes = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    sizes |= {"num_experts": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "head_dim": 8}
    layer_types = ["linear_attention", "full_attention"]
    config = transformers.Qwen3NextConfig(**GROUPED, **sizes, layer_types=layer_types, num_experts_per_tok=1)
    torch.manual_seed(0)
    model = alignattn.patch(transformers.Qwen3NextModel(config), "aa-ct").train()
    assert "1 of 2 layers" in caplog.text
    assert "linear_attention" in caplog.text
    model(**batch())
    assert alignattn.alignment_loss(model).isfinite()


def test_shared_keys_are_repeated_for_each_query_head():
    model = alignattn.patch(decoder("llama"), "soft")
    with torch.no_grad(), alignattn.collect(model) as seen:
        model(**batch())
    record = seen.layers[0]
    assert torch.equal(record.shared_key[:, 1], record.key[:, 0])
    assert torch.equal(record.shared_key[:, 2], record.key[:, 1])
    assert math.isfinite(query_key_distance(model, batch()))


def test_cross_attention_before_self_attention_has_only_the_mask_of_its_keys():
    collector = Collector()
    collector.proof = []
    real = torch.tensor([[True, True, False], [True, False, False]])
    found = collector.cross_mask(torch.zeros(2, 4, 8), torch.zeros(2, 3, 8), real)
    assert found.query is None
    assert torch.equal(found.key, real)
