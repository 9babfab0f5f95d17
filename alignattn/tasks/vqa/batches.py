"""Batches of questions and their images."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from alignattn.tasks.vqa.images import WHITE, is_of_features, read_features, read_picture
from alignattn.tasks.vqa.task import IMAGE

ANSWER_IDS, ANSWER_SCORES = "answer_ids", "answer_scores"
"""What people answered, as numbers of classes, and how right each is."""


class ImageBatches:
    """Makes a batch of encoded questions, each with the file of its image.

    Args:
        tokenizer: that encoded the questions, and pads them.
        size: pixels of a side to which pictures are brought.
        width: numbers of a region's features.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, size: int, width: int) -> None:
        self.pad_questions = DataCollatorWithPadding(tokenizer)
        self.size = size
        self.width = width

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return what the questions' collator does, and of the images what `images` does.

        Where rows have several people's answers, also `answer_ids` `[B, a]` and `answer_scores` `[B, a]`, 0 where a row
        has fewer than others.
        """
        beside = (IMAGE, ANSWER_IDS, ANSWER_SCORES)
        questions = [{name: value for name, value in row.items() if name not in beside} for row in rows]
        batch = {**self.pad_questions(questions), **self.images([row[IMAGE] for row in rows])}
        if ANSWER_IDS in rows[0]:
            batch[ANSWER_IDS] = _padded([torch.tensor(row[ANSWER_IDS], dtype=torch.int64) for row in rows])
            batch[ANSWER_SCORES] = _padded([torch.tensor(row[ANSWER_SCORES]) for row in rows])
        return batch

    def images(self, paths: Sequence[str]) -> dict[str, Tensor]:
        """Return `image`: pictures `[B, 3, size, size]` of 0 to 1, or regions `[B, boxes, width]` and `image_mask`."""
        if not is_of_features(paths[0]):
            return {IMAGE: torch.stack([read_picture(path, self.size) for path in paths]).float() / WHITE}
        regions = [read_features(path, self.width) for path in paths]
        mask = _padded([torch.ones(len(boxes), dtype=torch.bool) for boxes in regions])
        return {IMAGE: _padded(regions), "image_mask": mask}


def _padded(rows: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
