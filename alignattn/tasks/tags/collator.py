"""Batches of tagged rows."""

from typing import Any

import torch
from transformers import DataCollatorForTokenClassification

from alignattn.tasks.tags.tagging import WORD_STARTS


class TagCollator(DataCollatorForTokenClassification):
    """Pads what that of transformers does, and where words begin, if the model reads it."""

    def torch_call(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a batch of encoded rows."""
        starts = [list(feature[WORD_STARTS]) for feature in features if WORD_STARTS in feature]
        others = [{name: value for name, value in feature.items() if name != WORD_STARTS} for feature in features]
        batch: dict[str, Any] = super().torch_call(others)  # type: ignore[no-untyped-call]
        if starts:
            length, pads_left = batch["input_ids"].shape[1], self.tokenizer.padding_side == "left"
            gaps = [[0] * (length - len(row)) for row in starts]
            rows = [gap + row if pads_left else row + gap for row, gap in zip(starts, gaps, strict=True)]
            batch[WORD_STARTS] = torch.tensor(rows)
        return batch
