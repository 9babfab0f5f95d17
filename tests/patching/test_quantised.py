"""Quantised models under LoRA: bitsandbytes (4 and 8 bits) and torchao. `make quantised` runs these tests."""

import pytest
import torch
from decoders import MODELS
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TorchAoConfig

import alignattn
from alignattn.utils.errors import AlignAttnError

pytestmark = pytest.mark.quantised


def int8_weights():
    from torchao.quantization import Int8WeightOnlyConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


EXACT = {
    "bitsandbytes, 4 bits": lambda: BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32),
    "torchao": int8_weights,
}
"""Quantisations of the weights alone, so that a float model can have the same weights."""

CONFIGS = {**EXACT, "bitsandbytes, 8 bits": lambda: BitsAndBytesConfig(load_in_8bit=True)}

TOLERANCE = 1e-3
"""Relative error in float32. bitsandbytes and torchao round in half precision on some processors."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("llama")
    MODELS["llama"](hidden_size=64, intermediate_size=128).save_pretrained(path)
    return path


def quantised(folder, name):
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=CONFIGS[name]())


def with_the_same_weights(folder, model):
    """Return a float model with the dequantised weights: the outputs of the quantised layers for the unit matrix."""
    twin = AutoModelForCausalLM.from_pretrained(folder)
    for path, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            with torch.no_grad():
                weight = layer.train()(torch.eye(layer.in_features)).T
                twin.get_submodule(path).weight.copy_(weight)
    return twin


def adapted(model):
    torch.manual_seed(1)
    return get_peft_model(model, LoraConfig(target_modules=["q_proj", "k_proj"], init_lora_weights=False)).train()


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: weight.grad for name, weight in model.named_parameters() if "lora_" in name}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("is_patched_first", [True, False])
def test_losses_and_gradients_are_those_of_the_same_weights_in_floats(name, is_patched_first, folder):
    tokens = torch.randint(4, 60, (2, 9))

    def of(model):
        if is_patched_first:
            alignattn.patch(model, "aa-moments")
        model = adapted(model)
        if not is_patched_first:
            alignattn.patch(model, "aa-moments")
        task_loss = model(tokens, labels=tokens).loss
        alignment_loss = alignattn.alignment_loss(model)
        return task_loss, alignment_loss, gradients(model, task_loss + alignment_loss)

    model = quantised(folder, name)
    *expected, of_floats = of(with_the_same_weights(folder, model))
    *found, of_quantised = of(quantised(folder, name))
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=0)
    for parameter, gradient in of_floats.items():
        assert (of_quantised[parameter] - gradient).norm() < TOLERANCE * gradient.norm(), parameter


@pytest.mark.parametrize("name", CONFIGS)
def test_an_adapter_follows_the_alignment(name, folder):
    tokens = torch.randint(4, 60, (2, 9))
    with torch.no_grad():
        expected = quantised(folder, name).eval()(tokens).logits
        patched = alignattn.patch(quantised(folder, name), "aa-ct").eval()
        assert torch.equal(patched(tokens).logits, expected)
    model = adapted(alignattn.patch(quantised(folder, name), "aa-ct"))
    model(tokens)
    assert all(grad.norm() > 0 for grad in gradients(model, alignattn.alignment_loss(model)).values())


@pytest.mark.parametrize("name", CONFIGS)
def test_an_alignment_without_an_adapter_is_refused(name, folder):
    model = alignattn.patch(quantised(folder, name), "aa-ct").train()
    model(torch.randint(4, 60, (2, 9)))
    with pytest.raises(AlignAttnError, match="adapt them"):
        alignattn.alignment_loss(model)
