"""Image captioning, and captions for the pictures of easy-VQA."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForImageTextToText

from alignattn.tasks.pictures import picture_problem
from alignattn.tasks.processor import EncodedSplit, by_row, encode_rows
from alignattn.tasks.sequences import NO_LABEL, SequencesProcessor, target_ids
from alignattn.tasks.task import TaskOptions
from alignattn.tasks.task_types import EASY_VQA, IMAGE, GenerationTask, ImageToText
from alignattn.tasks.vqa.images import WHITE, read_picture
from alignattn.tasks.vqa.sources import easy_vqa_questions
from alignattn.utils.errors import shown

SHAPES = ("circle", "rectangle", "triangle")
YES_NO = ("yes", "no")


class CaptionsProcessor(SequencesProcessor):
    """One picture per row, loaded by the collator; the model generates its caption."""

    auto_class = AutoModelForImageTextToText
    continuous_input = IMAGE
    has_lengths = False

    @property
    def file_column(self) -> str:
        """The column of the pictures' files."""
        return self.task.source_column

    def read_split(
        self, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return the rows of easy-VQA; None if the rows are in files."""
        assert isinstance(self.task, ImageToText)
        return easy_vqa_captions(self.task, name) if self.task.collection == EASY_VQA and data_dir is None else None

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without a readable picture."""
        pictures = dataset[self.task.source_column][:]
        paths = [picture if isinstance(picture, str) else "" for picture in pictures]
        known = {path: picture_problem(path) for path in set(paths) if path}
        nothing = f"column {self.task.source_column!r} has no picture"
        return by_row(
            known[path] if path else f"{nothing} ({shown(picture)})"
            for path, picture in zip(paths, pictures, strict=True)
        )

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return the picture's file, and the tokens of the first reference caption."""
        return encode_rows(_encode_batch, self.task, dataset, tokenizer, options)

    def collator(self, tokenizer: Any, split: EncodedSplit, *, is_training: bool = False) -> Any:
        """Return a collator that reads the pictures."""
        assert isinstance(self.task, ImageToText)
        return partial(_collate, size=self.task.image_size)

    def generate(self, model: Any, batch: Mapping[str, Tensor], options: TaskOptions) -> tuple[Tensor, ...]:
        """Return the generated tokens, `[B, n]`, and their log-probability, `[B]`."""
        generated: tuple[Tensor, Tensor] = model.generate(
            batch[IMAGE], num_beams=options.num_beams, max_length=options.max_length
        )
        return generated


def _encode_batch(
    batch: dict[str, list[Any]], task: GenerationTask, tokenizer: Any, max_length: int
) -> dict[str, list[Any]]:
    return {IMAGE: batch[task.source_column], "labels": target_ids(batch, task, tokenizer, max_length)}


def _collate(rows: Sequence[Mapping[str, Any]], size: int) -> dict[str, Tensor]:
    """Pictures `[B, 3, size, size]` with values from 0 to 1, and the tokens of their captions `[B, T]`."""
    pictures = torch.stack([read_picture(row[IMAGE], size) for row in rows]).float() / WHITE
    labels = [torch.tensor(row["labels"]) for row in rows]
    return {IMAGE: pictures, "labels": pad_sequence(labels, batch_first=True, padding_value=NO_LABEL)}


def easy_vqa_captions(task: ImageToText, split: str) -> tuple[datasets.Dataset, str]:
    """Return the pictures of a split of easy-VQA with captions such as "a red circle", and the origin of the rows.

    Colour and shape come from the questions that ask for one of them; pictures without both are left out. Raises
    `AlignAttnError` as `easy_vqa_questions` does.
    """
    words_of: defaultdict[str, list[str]] = defaultdict(list)
    images, questions, answers = easy_vqa_questions(task, split)
    for image, question, answer in zip(images, questions, answers, strict=True):
        if answer not in YES_NO:
            words_of[image] += [answer, *question.rstrip("?").split()]
    colours = {*answers}.difference(SHAPES, YES_NO)
    rows = []
    for image, words in words_of.items():
        colour, shape = (next((word for word in words if word in known), None) for known in (colours, SHAPES))
        if colour is not None and shape is not None:
            rows.append((image, f"a {colour} {shape}"))
    columns = {task.source_column: [image for image, _ in rows], task.target_column: [text for _, text in rows]}
    return datasets.Dataset.from_dict(columns), f"split {split!r} of easy-vqa"
