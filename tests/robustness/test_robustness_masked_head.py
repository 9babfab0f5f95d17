"""The head on the masked tokens alone has the loss, gradients and logits of the head on all tokens."""

import pytest
import torch
import transformers
from conftest import FAMILIES, tiny_batch

from alignattn.robustness.masked_head import masked_tokens_alone
from alignattn.training.weights import IGNORED_LABEL


def _model(family):
    torch.manual_seed(0)
    return transformers.AutoModelForMaskedLM.from_config(FAMILIES[family]()).double().eval()


def _inputs():
    inputs = tiny_batch()
    is_masked = torch.rand(inputs["input_ids"].shape, generator=torch.Generator().manual_seed(3)) < 0.3
    inputs["labels"] = inputs["input_ids"].masked_fill(~is_masked | (inputs["attention_mask"] == 0), IGNORED_LABEL)
    return inputs


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradients_are_the_models_own(family):
    model, inputs = _model(family), _inputs()
    expected = model(**inputs).loss
    expected_gradients = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)
    with masked_tokens_alone(model):
        loss = model(**inputs).loss
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    # transformers computes some models' cross-entropy in float32.
    torch.testing.assert_close(loss.double(), expected.double(), rtol=1e-6, atol=0)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert (gradient is None) == (expected_gradient is None)
        if gradient is not None:
            torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_masked_tokens_and_the_model_is_unchanged_afterwards(family):
    model, inputs = _model(family), _inputs()
    with torch.no_grad():
        expected = model(**inputs).logits[inputs["labels"] != IGNORED_LABEL]
        with masked_tokens_alone(model):
            torch.testing.assert_close(model(**inputs).logits, expected[None], rtol=1e-12, atol=1e-12)
            assert model(inputs["input_ids"]).logits.shape[:2] == inputs["input_ids"].shape
        assert model(**inputs).logits.shape[:2] == inputs["input_ids"].shape


def test_a_batch_without_masked_tokens_has_zero_loss_and_gradients():
    model, inputs = _model("bert"), _inputs()
    inputs["labels"] = torch.full_like(inputs["labels"], IGNORED_LABEL)
    with masked_tokens_alone(model):
        loss = model(**inputs).loss
    loss.backward()
    assert loss.item() == 0
    assert all(weights.grad is None or not weights.grad.any() for weights in model.parameters())
