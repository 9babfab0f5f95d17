"""What fills a slot of a model, and that it makes a difference there."""

from typing import Any

import torch

SLOTS_TAKEN = {"score": "additive", "normalizer": "entmax15", "value": "qvi", "alignment": "gan"}

AWAY_FROM_PLAIN = {"value": {"value_options": {"init": "paper"}}}
"""Query-value interaction that is patched in from Python starts at plain attention unless told otherwise."""


def choice_of(slot: str) -> dict[str, Any]:
    """What `alignattn.patch` is given to fill this slot alone."""
    return {"alignment": None, slot: SLOTS_TAKEN[slot], **AWAY_FROM_PLAIN.get(slot, {})}


def assert_counts(slot: str, plain: torch.Tensor, filled: torch.Tensor) -> None:
    """What a model says with a slot filled is another thing than without, but for an alignment, which is a loss."""
    assert torch.allclose(filled, plain, rtol=1e-5, atol=1e-6) == (slot == "alignment")
