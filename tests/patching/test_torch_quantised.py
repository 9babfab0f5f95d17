"""Layers that torch quantises after or before a patch: they compute what they compute without one."""

import copy

import pytest
import torch
from conftest import tiny_batch, tiny_model
from decoders import decoder
from torch import nn
from torch.ao import quantization

import alignattn
from alignattn.utils.errors import AlignAttnError

MODELS = {"bert": tiny_model, "modernbert": tiny_model, "deberta-v3": tiny_model, "qwen3": decoder}
"""Separate and fused projections, a model without transformers' interface, and norms of the projections' outputs."""

COARSE = quantization.QConfig(
    activation=nn.Identity, weight=quantization.default_weight_fake_quant.with_args(quant_min=-4, quant_max=3)
)
"""Weights of three bits, so that a gradient of the weights before their quantisation differs clearly."""


def batch_of(family):
    return {"input_ids": torch.randint(4, 50, (2, 9))} if family == "qwen3" else tiny_batch()


def quantised(model, dtype=torch.qint8):
    return quantization.quantize_dynamic(model, {nn.Linear}, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize("order", ["patched first", "quantised first"])
@pytest.mark.parametrize("family", MODELS)
def test_a_dynamically_quantised_model_computes_the_same_with_a_patch(family, order, dtype):
    model, batch = MODELS[family](family).float().eval(), batch_of(family)
    plain = quantised(model, dtype)
    if order == "patched first":
        patched = quantised(alignattn.patch(model, "aa-ct"), dtype)
    else:
        patched = alignattn.patch(copy.deepcopy(plain), "aa-ct")
    expected = plain(**batch).logits
    assert torch.equal(patched(**batch).logits, expected)
    with alignattn.collect(patched) as seen:
        patched(**batch)
    with torch.no_grad(), alignattn.collect(patched) as again:
        patched(**batch)
    torch.testing.assert_close([loss.detach() for loss in seen.losses()], again.losses())


def test_quantised_layers_are_not_trained():
    model = quantised(alignattn.patch(tiny_model("bert").train(), "aa-ct"))
    for is_trained, reason in ((False, "a forward in training mode"), (True, "adapt them")):
        # torch puts the model into evaluation mode, but not its new layers.
        if is_trained:
            model.train()
        model(**tiny_batch())
        with pytest.raises(AlignAttnError, match=reason):
            alignattn.alignment_loss(model)


def fake_quantised(preset, scope="projections"):
    model = tiny_model("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
    if preset is not None:
        alignattn.patch(model, preset, gradient_scope=scope)
    model.bert.encoder.qconfig = COARSE
    return quantization.prepare_qat(model)


def gradients(model, loss):
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if "alignattn" not in name}


@pytest.mark.parametrize("scope", ["projections", "all"])
def test_quantisation_aware_training_has_the_gradient_of_the_plain_model(scope):
    batch = tiny_batch() | {"labels": torch.tensor([0, 1, 1, 0])}
    found, expected = (
        gradients(model, model(**batch).loss) for model in (fake_quantised("aa-ct", scope), fake_quantised(None))
    )
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name


def test_the_alignment_follows_quantisation_aware_training():
    """The last layer's projections have equal gradients in both scopes: no other layer's alignment reaches them."""
    found, expected = {}, {}
    for of_scope, scope in ((found, "projections"), (expected, "all")):
        model = fake_quantised("aa-moments", scope)
        model(**tiny_batch())
        of_scope |= gradients(model, alignattn.alignment_loss(model))
    for name in ("query", "key"):
        weight = f"bert.encoder.layer.2.attention.self.{name}.weight"
        assert expected[weight].any()
        torch.testing.assert_close(found[weight], expected[weight])
    assert found["bert.embeddings.word_embeddings.weight"] is None
