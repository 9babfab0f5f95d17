"""A model under autocast, as `--bf16` trains it."""

import torch

import alignattn
from alignattn.patching.slots import has_alignment

RELATIVE = 0.05
"""Relative tolerance of a loss: bfloat16 has 8 significant bits."""


def assert_near_under_autocast(model, batch):
    """Assert that the loss under autocast, with any alignment loss, is near that without, and has finite gradients."""
    loss = _loss(model.float(), batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = _loss(model, batch)
    torch.testing.assert_close(near.float(), loss, rtol=RELATIVE, atol=RELATIVE)
    near.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


def _loss(model, batch):
    loss = model(**batch).loss
    return loss + alignattn.alignment_loss(model) if model.training and has_alignment(model) else loss
