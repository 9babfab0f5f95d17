"""What must hold on a GPU: the losses of a CPU, no waiting for the device, one graph when compiled."""

import pytest
import torch
from conftest import ALIGNED, tiny_batch, tiny_model
from needs import needs_gpu

import alignattn

pytestmark = [pytest.mark.cuda, needs_gpu]


def patched(preset, device):
    model = tiny_model("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return alignattn.patch(model, preset, alignment_weight=0.3).train().to(device)


def on(device):
    return {name: tensor.to(device) for name, tensor in tiny_batch().items()}


def step(model, device, alignment_loss=alignattn.alignment_loss):
    """Return the loss and the gradients of a step, on the CPU."""
    loss = model(**on(device)).loss + alignment_loss(model)
    loss.backward()
    found = {name: parameter.grad.cpu() for name, parameter in model.named_parameters() if parameter.grad is not None}
    return loss.detach().cpu(), found


@pytest.mark.parametrize("preset", ALIGNED)
def test_a_step_is_that_of_a_cpu(preset):
    torch.testing.assert_close(
        step(patched(preset, "cuda"), "cuda"), step(patched(preset, "cpu"), "cpu"), rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("preset", ALIGNED)
def test_a_compiled_loss_is_that_of_eager_mode(preset):
    torch._dynamo.reset()
    found = step(patched(preset, "cuda"), "cuda", torch.compile(alignattn.alignment_loss, fullgraph=True))
    torch.testing.assert_close(found, step(patched(preset, "cuda"), "cuda"), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("preset", ALIGNED)
def test_the_loss_never_waits_for_the_device(preset):
    model, batch = patched(preset, "cuda"), on("cuda")
    step(model, "cuda")
    loss = model(**batch).loss
    torch.cuda.set_sync_debug_mode("error")
    try:
        (loss + alignattn.alignment_loss(model)).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("preset", ALIGNED)
def test_evaluation_is_bitwise_that_of_the_plain_model(preset):
    plain, aligned = tiny_model("bert").cuda(), patched(preset, "cuda").eval()
    with torch.no_grad():
        assert torch.equal(plain(**on("cuda")).logits, aligned(**on("cuda")).logits)
