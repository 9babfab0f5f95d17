"""An alignment only observes: with any attention, a model computes the same, and its queries are recorded."""

import copy
import gc

import pytest
import torch
import transformers
from conftest import FAMILIES, tiny_batch, tiny_model, without_dropout
from torch.nn.attention.flex_attention import create_block_mask
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, AutoModelForSequenceClassification
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import flash_attention_mask, flex_attention_mask
from transformers.models.bert.modeling_bert import BertAttention, BertEncoder, BertLayer, BertSelfAttention
from transformers.models.sam3.modeling_sam3 import Sam3DetrDecoder

import alignattn
from alignattn.patching import is_patched, patch_of
from alignattn.patching.masks import real_tokens
from alignattn.utils.errors import AlignAttnError

SOFTCAP = 0.05
"""Low, so that the scores of random weights are capped."""

PASSES = 12


def capped_encoder():
    """The encoder of a tiny T5Gemma, whose eager attention caps its scores."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 50,
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 8,
        "attn_logit_softcapping": SOFTCAP,
        "layer_types": ["full_attention", "full_attention"],
    }
    config = transformers.T5GemmaConfig(encoder=dict(sizes), decoder=dict(sizes), vocab_size=50)
    model = transformers.T5GemmaEncoderModel(config.__class__(encoder=sizes, decoder=sizes, is_encoder_decoder=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    # Older versions of transformers choose SDPA for it, which caps nothing.
    model.set_attn_implementation("eager")
    return model.eval().encoder


def hidden(model, batch):
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    with torch.no_grad():
        return model(**inputs).last_hidden_state


def test_an_alignment_keeps_the_attention_function_of_a_model_that_caps_its_scores():
    model, batch = capped_encoder(), tiny_batch()
    expected = hidden(model, batch)
    alignattn.patch(model, "aa-ct")
    assert torch.equal(hidden(model, batch), expected)
    assert model.config._attn_implementation == "eager"
    model.train()
    model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    alignattn.alignment_loss(model).backward()
    assert model.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


def test_slots_of_a_model_that_caps_its_scores_cap_them_too():
    """Compare with the formula, on the first layer's queries, keys and values."""
    model, batch = capped_encoder(), tiny_batch(padded=False)
    alignattn.patch(model, "sparsemax")
    seen = []
    slots = model.layers[0].self_attn.alignattn
    slots.register_forward_hook(
        lambda module, args, kwargs, output: seen.append((args, kwargs, output)), with_kwargs=True
    )
    hidden(model, batch)
    (query, key, value, *_), kwargs, (attended, _) = seen[0]
    scores = torch.einsum("bhqd,bhkd->bhqk", query.double(), key.double()) * kwargs["scale"]
    capped = SOFTCAP * (scores / SOFTCAP).tanh()
    weights = sparsemax_by_sorting(capped)
    torch.testing.assert_close(attended.double(), weights @ value.double(), atol=1e-6, rtol=1e-5)


def sparsemax_by_sorting(scores):
    """Martins and Astudillo 2016, algorithm 1, a row at a time."""
    result = torch.zeros_like(scores)
    for index in torch.cartesian_prod(*(torch.arange(size) for size in scores.shape[:-1])).tolist():
        row = scores[tuple(index)]
        ordered = row.sort(descending=True).values
        support = [k for k in range(1, len(row) + 1) if 1 + k * ordered[k - 1] > ordered[:k].sum()]
        threshold = (ordered[: support[-1]].sum() - 1) / support[-1]
        result[tuple(index)] = (row - threshold).clamp(min=0)
    return result


@pytest.mark.parametrize("family", FAMILIES)
def test_no_module_changes_its_class_or_its_attention_implementation(family):
    model = tiny_model(family)
    classes = {name: type(module) for name, module in model.named_modules()}
    implementation = model.config._attn_implementation
    alignattn.patch(model, "aa-ct")
    assert {name: type(module) for name, module in model.named_modules() if name in classes} == classes
    assert model.config._attn_implementation == implementation


def of_ids(_module, query, key, value, attention_mask, **kwargs):
    """Replace flash attention, whose mask is `[B, n]`, or None if nothing is padded."""
    pairs = (
        None if attention_mask is None else attention_mask.bool()[:, None, None, :].expand(-1, 1, query.shape[2], -1)
    )
    return sdpa_attention_forward(_module, query, key, value, pairs, **kwargs)


def of_blocks(_module, query, key, value, attention_mask, **kwargs):
    """Replace flex attention, whose mask is a `BlockMask`."""
    batch, length = len(query), query.shape[2]
    sample, token = torch.arange(batch)[:, None, None], torch.arange(length)
    pairs = attention_mask.mask_mod(sample, torch.zeros_like(sample), token[:, None], token[None])
    return sdpa_attention_forward(_module, query, key, value, pairs.expand(batch, length, length)[:, None], **kwargs)


STUBS = {"stub_of_ids": (of_ids, flash_attention_mask), "stub_of_blocks": (of_blocks, flex_attention_mask)}

for _name, (_function, _mask) in STUBS.items():
    AttentionInterface.register(_name, _function)
    AttentionMaskInterface.register(_name, _mask)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("implementation", STUBS)
def test_masks_of_flash_and_flex_attention_mark_padding(implementation, padded):
    """Stubs have their signatures and masks, as neither runs on this machine. The loss is that of eager attention."""
    losses = []
    # transformers compiles the making of a mask of blocks, which takes half a minute.
    with torch.compiler.set_stance("force_eager"):
        for name in ("eager", implementation):
            model = tiny_model("bert")
            model.set_attn_implementation(name)
            model = alignattn.patch(model, "aa-moments").train()
            without_dropout(model)
            model(**tiny_batch(padded=padded))
            losses.append(alignattn.alignment_loss(model))
    torch.testing.assert_close(losses[1], losses[0])


def test_real_tokens_are_read_from_every_mask():
    real = torch.tensor([[True, True, False], [True, True, True]])
    pairs = real[:, None, None, :].expand(2, 1, 3, 3)
    added = torch.zeros(2, 1, 3, 3).masked_fill(~pairs, torch.finfo(torch.float32).min)
    banded = pairs & (torch.arange(3)[:, None] - torch.arange(3)).abs().le(0)
    masks = [real, real.long(), pairs, added, added[:, :, :1], banded, added.expand(2, 4, 3, 3), pairs[:, 0]]
    masks += [added.masked_fill(~pairs, value) for value in (-10000.0, float("-inf"))]
    for mask in masks:
        queries, keys = real_tokens(mask)
        assert torch.equal(queries, real)
        assert queries is keys
    assert real_tokens(None) == (None, None)
    assert torch.equal(real_tokens(pairs[:1], 2)[0], real[:1].expand(2, 3))


def test_real_tokens_of_attention_to_other_tokens_are_read_from_every_mask():
    real = torch.tensor([[True, True, False], [True, True, True]])
    pairs = real[:, None, None, :].expand(2, 1, 2, 3)
    added = torch.zeros(2, 1, 2, 3).masked_fill(~pairs, torch.finfo(torch.float32).min)
    blocks = create_block_mask(lambda b, h, q, kv: real[b, kv], 2, 1, 2, 3, device="cpu")
    for mask in [real, real.long(), pairs, added, added[:, :, :1], added.expand(2, 4, 2, 3), pairs[:, 0], blocks]:
        queries, keys = real_tokens(mask, 2, (2, 3))
        assert torch.equal(keys, real)
        assert torch.equal(queries, torch.ones(2, 2, dtype=torch.bool))
    only_first = pairs & torch.tensor([True, False])[:, None]
    assert real_tokens(only_first, 2, (2, 3))[0].tolist() == [[True, False]] * 2
    with pytest.raises(AlignAttnError, match="2 queries and 3 keys"):
        real_tokens(torch.ones(2, 1, 3, 3, dtype=torch.bool), 2, (2, 3))


def test_an_object_decoder_with_a_custom_mask_is_aligned():
    """It attends to a prompt and to an image under masks of n queries and m keys; a patch can make no input for it."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_layers": 2, "num_attention_heads": 2, "num_queries": 5}
    torch.manual_seed(0)
    model = Sam3DetrDecoder(transformers.Sam3DETRDecoderConfig(**sizes))
    image, prompt = torch.randn(2, 4, 16), torch.randn(2, 3, 16)
    inputs = {
        "vision_features": image,
        "text_features": prompt,
        "vision_pos_encoding": torch.randn(2, 4, 16),
        "text_mask": torch.tensor([[True, True, False], [True, True, True]]),
        "spatial_shapes": torch.tensor([[2, 2]]),
    }
    alignattn.patch(model, "aa-ct").train()
    model(**inputs)
    loss = alignattn.alignment_loss(model)
    loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()
    assert loss.isfinite()


def test_a_custom_mask_is_accepted():
    batch = tiny_batch()
    batch["attention_mask"] = torch.zeros(4, 1, 9, 9).masked_fill(
        ~batch["attention_mask"].bool()[:, None, None, :], torch.finfo(torch.float32).min
    )
    model = tiny_model("bert")
    expected = model(**batch).logits
    alignattn.patch(model, "aa-ct")
    assert torch.equal(model(**batch).logits, expected)
    model.train()
    model(**batch)
    assert alignattn.alignment_loss(model).isfinite()


def test_an_implementation_set_after_the_patch_is_refused_unless_only_aligned():
    model = alignattn.patch(tiny_model("bert"), "sparsemax")
    model.set_attn_implementation("eager")
    with pytest.raises(AlignAttnError, match="after the patch"):
        model(**tiny_batch())
    model = alignattn.patch(tiny_model("bert"), "aa-ct")
    model.set_attn_implementation("eager")
    model.train()
    model(**tiny_batch())
    assert alignattn.alignment_loss(model) > 0


@pytest.mark.parametrize("family", ["bert", "deberta-v3"])
@pytest.mark.parametrize(
    "build",
    [
        lambda model: type(model)(model.config),
        lambda model: AutoModel.from_config(copy.deepcopy(model.config), attn_implementation="eager"),
        lambda model: AutoModelForSequenceClassification.from_config(model.config, attn_implementation="eager"),
        lambda model: type(model.base_model)(copy.deepcopy(model.config)),
        lambda model: type(model)(type(model.config).from_dict(model.config.to_dict(), attn_implementation="eager")),
    ],
)
def test_a_model_built_from_the_config_of_a_patched_one_needs_its_slots(family, build):
    model = alignattn.patch(tiny_model(family), "sparsemax", layers=(0,))
    batch = tiny_batch()
    batch.pop("labels")
    model(**batch)
    twin = build(model)
    for each in (twin, copy.deepcopy(twin)):
        with pytest.raises(AlignAttnError, match="config of a patched model"):
            each(**batch)
    alignattn.patch(twin, "sparsemax")(**batch)
    plain = build(alignattn.unpatch(model))
    plain(**batch)


@pytest.mark.parametrize("part", [BertEncoder, BertLayer, BertAttention, BertSelfAttention])
@pytest.mark.parametrize("own", [lambda config: config, lambda config: eager_config(config)])
def test_a_part_of_a_model_built_from_the_config_of_a_patched_one_needs_slots(part, own):
    model = alignattn.patch(tiny_model("bert"), "sparsemax", layers=(0,))
    inputs = torch.randn(2, 5, model.config.hidden_size)
    with pytest.raises(AlignAttnError, match="config of"):
        part(own(model.config))(inputs)
    part(alignattn.unpatch(model).config)(inputs)


def eager_config(config):
    return type(config).from_dict(config.to_dict(), attn_implementation="eager")


def test_a_failed_forward_leaves_no_records():
    model = alignattn.patch(tiny_model("bert"), "aa-moments").train()
    without_dropout(model)
    model(**tiny_batch())
    expected = alignattn.alignment_loss(model)

    def fail(*_):
        raise RuntimeError("out of memory")

    handle = model.bert.encoder.layer[1].output.register_forward_hook(fail)
    for forward in (model, model.bert):
        inputs = tiny_batch(seed=2)
        if forward is model.bert:
            inputs.pop("labels", None)
        with pytest.raises(RuntimeError, match="out of memory"):
            forward(**inputs)
    handle.remove()
    assert patch_of(model).collector.newest.previous is None
    model(**tiny_batch())
    torch.testing.assert_close(alignattn.alignment_loss(model), expected)


def test_an_abandoned_forward_is_discarded():
    model = alignattn.patch(tiny_model("bert"), "aa-moments").eval()
    model.train()
    without_dropout(model)
    model(**tiny_batch())
    expected = alignattn.alignment_loss(model)
    model(**tiny_batch(seed=2))
    alignattn.discard(model)
    model(**tiny_batch())
    torch.testing.assert_close(alignattn.alignment_loss(model), expected)


@pytest.mark.parametrize("frozen_layers", [0, 1])
def test_backward_passes_without_a_step_keep_no_records(frozen_layers):
    """Saliency and gradient attacks do so: memory stays constant, and the next loss counts only its own forward."""
    model = alignattn.patch(tiny_model("bert"), "aa-moments").train()
    model.bert.embeddings.requires_grad_(frozen_layers == 0)
    model.bert.encoder.layer[:frozen_layers].requires_grad_(False)
    without_dropout(model)
    model(**tiny_batch())
    expected = alignattn.alignment_loss(model)
    counts = []
    for seed in range(PASSES):
        model(**tiny_batch(seed=seed)).logits.sum().backward()
        model.zero_grad()
        gc.collect()
        counts.append(sum(isinstance(found, torch.Tensor) for found in gc.get_objects()))
    half = PASSES // 2
    assert max(counts[half:]) <= max(counts[:half])
    model(**tiny_batch())
    torch.testing.assert_close(alignattn.alignment_loss(model), expected)


def test_backward_passes_that_end_at_a_later_layer_keep_no_records():
    model = alignattn.patch(tiny_model("bert"), "aa-moments").train()
    first, *later = model.bert.encoder.layer
    first.register_forward_hook(lambda _module, _args, output: output.detach())
    for seed in range(3):
        model(**tiny_batch(seed=seed)).logits.sum().backward()
    model(**tiny_batch())
    assert len(patch_of(model).collector.take()) == 1 + len(later)


def test_a_loss_may_follow_a_backward_pass_that_keeps_its_graph():
    model = alignattn.patch(tiny_model("bert"), "aa-moments").train()
    model(**tiny_batch()).logits.sum().backward(retain_graph=True)
    assert alignattn.alignment_loss(model) > 0


def test_a_retained_graph_under_checkpointing_records_each_forward_once():
    model = alignattn.patch(tiny_model("bert"), "aa-moments").train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model(**tiny_batch()).logits.sum().backward(retain_graph=True)
    model(**tiny_batch())
    calls = patch_of(model).collector.take()
    assert len(calls) == 2 * len({id(call.slots) for call in calls})


def test_passes_over_a_frozen_encoder_keep_the_records_of_one():
    """The Fisher information of a head, or a probe that accumulates gradients, does so."""
    model = alignattn.patch(tiny_model("bert"), "aa-moments").train()
    model.bert.requires_grad_(False)
    for _ in range(3):
        model(**tiny_batch()).logits.sum().backward()
    calls = patch_of(model).collector.take()
    assert len(calls) == len({id(call.slots) for call in calls})


@pytest.mark.parametrize("attention", ["aa-ct", "entmax15"])
def test_weights_on_the_meta_device_are_checked_at_the_first_forward(attention):
    with torch.device("meta"):
        model = tiny_model("bert")
    alignattn.patch(model, attention)
    plain = tiny_model("bert")
    model.to_empty(device="cpu")
    model.load_state_dict(plain.state_dict(), strict=False)
    for name, buffer in plain.named_buffers():
        model.get_buffer(name).copy_(buffer)
    query = model.bert.encoder.layer[0].attention.self.query
    # Simulate a faulty patch: only the patched model does this.
    query.register_forward_hook(lambda *args: args[2] + patched_only(model))
    with pytest.raises(AlignAttnError, match="would change what"):
        model(**tiny_batch())


def patched_only(model):
    collector = patch_of(model).collector
    return 0.0 if collector.is_off else torch.randn(24) * 10


def test_the_alignment_follows_a_projections_forward_replaced_after_the_patch():
    """accelerate replaces forwards. The gradient of the alignment is that of the new computation."""
    model = alignattn.patch(tiny_model("bert"), "aa-moments").train()
    query = model.bert.encoder.layer[0].attention.self.query
    own_forward = query.forward
    query.forward = lambda states: 2 * own_forward(states)
    model(**tiny_batch())
    alignattn.alignment_loss(model).backward()
    twin = alignattn.patch(tiny_model("bert"), "aa-moments").train()
    seen = twin.bert.encoder.layer[0].attention.self.query
    with torch.no_grad():
        seen.weight *= 2
        seen.bias *= 2
    torch.manual_seed(0)
    for patched in (model, twin):
        patched.zero_grad()
        without_dropout(patched)
        patched(**tiny_batch())
        alignattn.alignment_loss(patched).backward()
    torch.testing.assert_close(query.weight.grad, 2 * seen.weight.grad)


def add_something(output):
    return output + torch.arange(24.0)


def fail(output):
    raise RuntimeError("shapes differ")


@pytest.mark.parametrize(("fault", "said"), [(add_something, "would change what"), (fail, "shapes differ")])
def test_a_patch_that_changes_the_outputs_is_refused_and_undone(fault, said):
    model = tiny_model("bert")
    query = model.bert.encoder.layer[0].attention.self.query
    query.register_forward_hook(lambda *args: fault(args[2]) if is_patched(model) else args[2])
    keys = list(model.state_dict())
    with pytest.raises(AlignAttnError, match=said):
        alignattn.patch(model, "aa-ct")
    assert not is_patched(model)
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attentions_of_an_aligned_model_are_those_of_the_plain_one(implementation):
    model = tiny_model("bert")
    if implementation == "eager":
        model.set_attn_implementation("eager")
        model.config.output_attentions = True
    expected = model(**tiny_batch(), output_attentions=True)
    alignattn.patch(model, "aa-ct")
    found = model(**tiny_batch(), output_attentions=True)
    assert len(found.attentions) == len(expected.attentions)
    for one, other in zip(found.attentions, expected.attentions, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(found.logits, expected.logits)


@pytest.mark.parametrize("is_asked_by", ["call", "config"])
@pytest.mark.parametrize("attention", ["qvi", "interaction", "bilinear", "entmax15"])
def test_slots_return_the_weights_that_they_attend_with(attention, is_asked_by):
    model = tiny_model("bert")
    model.set_attn_implementation("eager")
    model.config.output_attentions = is_asked_by == "config"
    alignattn.patch(model, attention)
    asked = {"output_attentions": True} if is_asked_by == "call" else {}
    with torch.no_grad():
        attentions = model(**tiny_batch(), **asked).attentions
    assert len(attentions) == model.config.num_hidden_layers
    torch.testing.assert_close(attentions[0].sum(dim=-1), torch.ones(attentions[0].shape[:-1]))
