"""Captions that a model writes for pictures."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForImageTextToText

from alignattn.tasks.captions.sources import easy_vqa_captions
from alignattn.tasks.captions.task import ImageToText
from alignattn.tasks.processor import EncodedSplit, encode_rows
from alignattn.tasks.sequences.processor import NO_LABEL, SequencesProcessor, target_ids
from alignattn.tasks.sequences.task import WrittenTask
from alignattn.tasks.task import TaskOptions
from alignattn.tasks.vqa.images import WHITE, picture_problem, read_picture
from alignattn.tasks.vqa.task import EASY_VQA, IMAGE
from alignattn.utils.errors import shown


class CaptionsProcessor(SequencesProcessor):
    """A picture a row, which stays a file until a batch is made; its caption is written."""

    auto_class = AutoModelForImageTextToText
    continuous_input = IMAGE
    has_lengths = False

    def feature_dim(self, dims: int) -> int:
        """Return that of the colours."""
        return 1

    def read_split(
        self, task: WrittenTask, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return the rows of easy-VQA; None for a task of files."""
        assert isinstance(task, ImageToText)
        return easy_vqa_captions(task, name) if task.collection == EASY_VQA and data_dir is None else None

    def input_problems(self, task: WrittenTask, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without a picture that can be read."""
        paths = dataset[task.source_column][:]
        known = {path: picture_problem(path) for path in set(paths) if isinstance(path, str) and path}
        nothing = f"column {task.source_column!r} names no picture"
        found = {
            index: known[path] if path in known else f"{nothing} ({shown(path)})" for index, path in enumerate(paths)
        }
        return {index: problem for index, problem in found.items() if problem is not None}

    def encode(
        self, task: WrittenTask, dataset: datasets.Dataset, processor: Any, options: TaskOptions
    ) -> datasets.Dataset:
        """Return the file of the picture, and the tokens of the first caption that is right."""
        return encode_rows(_encode_batch, task, dataset, processor, options)

    def batches(self, processor: Any, split: EncodedSplit, *, trains: bool = False) -> Any:
        """Return what makes a batch: it reads the pictures."""
        return partial(_batch_of, size=split.options.image_size)

    def generate(self, model: Any, batch: Mapping[str, Tensor], options: TaskOptions) -> tuple[Tensor, ...]:
        """Return what a model writes for pictures, as of all sequences."""
        written: tuple[Tensor, Tensor] = model.write(batch[IMAGE], num_beams=options.num_beams, most=options.max_length)
        return written


def _encode_batch(
    batch: dict[str, list[Any]], task: WrittenTask, tokenizer: Any, max_length: int
) -> dict[str, list[Any]]:
    return {IMAGE: batch[task.source_column], "labels": target_ids(batch, task, tokenizer, max_length)}


def _batch_of(rows: Sequence[Mapping[str, Any]], size: int) -> dict[str, Tensor]:
    """Pictures `[B, 3, size, size]` of 0 to 1, and the tokens of their captions `[B, T]`."""
    pictures = torch.stack([read_picture(row[IMAGE], size) for row in rows]).float() / WHITE
    labels = [torch.tensor(row["labels"]) for row in rows]
    return {IMAGE: pictures, "labels": pad_sequence(labels, batch_first=True, padding_value=NO_LABEL)}
