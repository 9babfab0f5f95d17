"""Choices for the slots of a model, and assertions that they take effect."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import alignattn
from alignattn.attention.choices import VALUES
from alignattn.attention.config import PLAIN
from alignattn.models import capabilities_of


@dataclass(frozen=True)
class Filling:
    """A choice for one slot of attention; the other slots are plain."""

    slot: str
    choice: str

    def __str__(self) -> str:
        return f"{self.slot}={self.choice}"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `alignattn.patch` for it."""
        # By default, a slot that is patched in Python starts as plain attention.
        starts = self.slot == "value" and any(option.name == "init" for option in VALUES[self.choice].options)
        return {"alignment": None, self.slot: self.choice} | ({"value_options": {"init": "paper"}} if starts else {})


FILLINGS = (
    Filling("score", "additive"),
    Filling("normalizer", "entmax15"),
    *(Filling("value", choice) for choice in VALUES if choice != PLAIN.value),
    Filling("alignment", "gan"),
)
STEP_BY_STEP = tuple(filling for filling in FILLINGS if filling.slot != "alignment")
"""The choices that attention with one query at a time also supports."""


def with_fillings(names: Iterable[str]) -> list[Any]:
    """Return test parameters: each model plain (None) and with each filling that changes what it computes."""
    return [
        pytest.param(name, filling, id=f"{name}-{filling or 'plain'}")
        for name in names
        for filling in (None, *STEP_BY_STEP)
        if filling is None or filling.slot in capabilities_of(name).slots
    ]


def fill(model: Any, filling: Filling | None) -> Any:
    """Return the model, patched if there is a filling."""
    return model if filling is None else alignattn.patch(model, **filling.arguments)


def assert_counts(filling: Filling, plain: torch.Tensor, filled: torch.Tensor) -> None:
    """Assert that a filled slot changes the output of a model, except for an alignment, which is only a loss."""
    assert torch.allclose(filled, plain, rtol=1e-5, atol=1e-6) == (filling.slot == "alignment")


def assert_takes(
    filling: Filling, model: Any, batch: Any, auto_class: Any, folder: Path, **labels: torch.Tensor
) -> tuple[Any, Any]:
    """Assert that a model with a filled slot trains, predicts, is saved and loaded; return both in evaluation mode.

    Args:
        filling: a choice that the model supports.
        model: the plain model.
        batch: its inputs, with labels if it needs them in evaluation, too.
        auto_class: the auto class of transformers that loads it.
        folder: the folder to save it in.
        **labels: labels for the loss only.
    """
    plain = model.eval()(**batch).logits
    filled = fill(model, filling).train()
    loss = filled(**batch, **labels).loss
    (loss + alignattn.alignment_loss(filled) if filling.slot == "alignment" else loss).backward()
    own = [part for path, part in filled.named_parameters() if "alignattn" in path]
    assert any(part.grad is not None and part.grad.abs().max() > 0 for part in own) or filling.slot == "normalizer"
    expected = filled.eval()(**batch).logits
    assert_counts(filling, plain, expected)
    filled.save_pretrained(folder)
    loaded = alignattn.from_pretrained(folder, auto_class)
    torch.testing.assert_close(loaded(**batch).logits, expected, rtol=1e-5, atol=1e-6)
    return filled, loaded
