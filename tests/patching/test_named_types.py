"""Many model types, each small and with random weights: an alignment does not change what they compute."""

import copy
import functools
from pathlib import Path

import pytest
import torch
from model_overrides import OVERRIDES
from small_models import built, model_classes, run
from tiny_configs import config_class_of

import alignattn
from alignattn.patching.slots import LayerSlots
from alignattn.utils.errors import AlignAttnError

TEXT = ("albert", "bert", "deberta-v2", "distilbert", "electra", "esm", "eurobert", "modernbert", "mpnet")
TEXT += ("nomic_bert", "roberta", "xlm-roberta", "camembert")
DECODERS = ("gemma2", "gemma3_text", "gpt2", "gpt_neox", "llama", "mistral", "olmo2", "phi", "phi3", "qwen2", "qwen3")
BOTH = ("bart", "m2m_100", "t5", "t5gemma", "umt5", "whisper")
IMAGES = ("beit", "clip", "dinov2", "dinov3_vit", "segformer", "siglip", "swin", "vit")
AUDIO = ("audio-spectrogram-transformer", "hubert", "wav2vec2", "wav2vec2-bert", "wav2vec2-conformer")
TYPES = (*TEXT, *DECODERS, *BOTH, *IMAGES, *AUDIO)
PADDED = (*TEXT, *DECODERS, "bart", "m2m_100", "t5", "umt5")

SAVED = ("distilbert", "deberta-v2", "modernbert", "gpt2", "qwen3", "bart", "t5gemma", "clip", "swin", "wav2vec2")
"""A type of each way to name the projections of a layer, or to hold its layers."""

BALANCED = {"albert", "bert", "roberta", "xlm-roberta", "distilbert", "electra", "mpnet", "camembert"}
"""Types whose attention reads products of queries and keys alone, as their projections give them."""
BALANCED |= {"esm", "bart", "m2m_100", "t5", "umt5", "whisper", "clip", "siglip", "vit", "dinov2", "beit"}
BALANCED |= {"audio-spectrogram-transformer", "hubert", "wav2vec2", "segformer"}


@functools.cache
def _built(model_type):
    config_class = config_class_of(model_type)
    model_class = model_classes(config_class)[0][0][1]
    return built(model_class, config_class, OVERRIDES.get(model_type, {}))[0]


@pytest.fixture(params=TYPES)
def target(request):
    return copy.deepcopy(_built(request.param))


def test_evaluation_is_bitwise_unchanged(target):
    expected = [run(target.model, inputs) for inputs in target.inputs]
    alignattn.patch(target.model, "aa-ct")
    for inputs, before in zip(target.inputs, expected, strict=True):
        after = run(target.model, inputs)
        assert all(torch.equal(after[name], before[name]) for name in before)


def test_the_gradient_reaches_only_the_projections_of_queries_and_keys(target):
    alignattn.patch(target.model, "aa-ct").train()
    target.model(**copy.deepcopy(target.inputs[-1]))
    alignattn.alignment_loss(target.model).backward()
    own = set()
    for module in target.model.modules():
        slots = module._modules.get("alignattn")
        if isinstance(slots, LayerSlots):
            projections = [*slots.heads.names.of(module).values(), *alignattn_norms(module)]
            own |= {id(parameter) for projection in projections for parameter in projection.parameters()}
    reached = {
        id(parameter): name
        for name, parameter in target.model.named_parameters()
        if "alignattn" not in name and parameter.grad is not None and parameter.grad.abs().max() > 0
    }
    assert reached.keys() <= own
    weights = {id(parameter) for parameter in target.model.parameters() if parameter.dim() > 1}
    assert reached.keys() & weights == own & weights


def alignattn_norms(module):
    names = ("q_norm", "k_norm", "q_layernorm", "k_layernorm")
    return [child for name, child in module.named_children() if name in names]


@pytest.mark.parametrize("model_type", PADDED)
def test_padding_does_not_count(model_type):
    target = copy.deepcopy(_built(model_type))
    model = alignattn.patch(target.model.double(), "aa-moments").train()
    padded = target.inputs[-1]
    if model_type in BOTH:
        padded = padded | {"decoder_input_ids": torch.arange(8).view(2, 4)}
    losses = []
    for filler in (5, 6):
        inputs = copy.deepcopy(padded)
        hidden = inputs["attention_mask"] == 0
        assert hidden.any()
        inputs["input_ids"] = inputs["input_ids"].masked_fill(hidden, filler)
        # With the same dropout.
        torch.manual_seed(0)
        model(**inputs)
        losses.append(alignattn.alignment_loss(model))
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("model_type", SAVED)
def test_a_saved_model_is_loaded(model_type, tmp_path: Path):
    target = copy.deepcopy(_built(model_type))
    expected = run(target.model, target.inputs[0])
    alignattn.patch(target.model, "aa-ct").save_pretrained(tmp_path)
    loaded = alignattn.from_pretrained(tmp_path, type(target.model)).eval()
    assert alignattn.is_patched(loaded)
    found = run(loaded, target.inputs[0])
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values)


@pytest.mark.parametrize("model_type", TYPES)
def test_balance_keeps_the_function_or_is_refused(model_type):
    target = copy.deepcopy(_built(model_type))
    model = target.model.double()
    batch = {
        name: values.double() if torch.is_tensor(values) and values.is_floating_point() else values
        for name, values in target.inputs[0].items()
    }
    if model_type in BALANCED:
        report = alignattn.balance(model, [batch])
        assert report.largest_change < 1e-4 * report.spread
    else:
        with pytest.raises(AlignAttnError):
            alignattn.balance(model, [batch])
