"""Pictures and their captions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from alignattn.tasks.names import IMAGE
from alignattn.tasks.sequence_to_sequence import NO_LABEL, GenerationTask
from alignattn.tasks.task import EncodedSplit, TaskOptions, by_row
from alignattn.utils.errors import shown

if TYPE_CHECKING:
    import datasets
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ImageToText(GenerationTask):
    """Pictures and their captions.

    Attributes:
        source_column: The column of picture files.
        target_column: The column of captions.
        collection: `easy-vqa`, whose captions name the shape and its colour; empty if the rows are in files.
        image_size: Pixels per side to which pictures are scaled.
    """

    kind = "image-to-text"
    auto_class = "AutoModelForImageTextToText"
    continuous_input = IMAGE
    has_lengths = False

    source_column: str = IMAGE
    target_column: str = "caption"
    collection: Literal["", "easy-vqa"] = ""
    image_size: int = 64

    def problem(self) -> str | None:
        """Return the problem of the image size, or that of `GenerationTask.problem`."""
        return "image_size must be at least 1" if self.image_size < 1 else super().problem()

    @property
    def file_column(self) -> str:
        """The column of the pictures' files."""
        return self.source_column

    def read_split(
        self, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return the pictures of easy-VQA with captions such as "a red circle"; None if the rows are in files.

        Colour and shape come from the questions that ask for one of them; pictures without both are left out. Raises
        `AlignAttnError` as `easy_vqa_questions` does.
        """
        import datasets

        from alignattn.tasks.vqa.sources import easy_vqa_questions

        if self.collection != "easy-vqa" or data_dir is not None:
            return None
        shapes, yes_no = ("circle", "rectangle", "triangle"), ("yes", "no")
        words_of: defaultdict[str, list[str]] = defaultdict(list)
        images, questions, answers = easy_vqa_questions(self.name, name)
        for image, question, answer in zip(images, questions, answers, strict=True):
            if answer not in yes_no:
                words_of[image] += [answer, *question.rstrip("?").split()]
        colours = {*answers}.difference(shapes, yes_no)
        rows = []
        for image, words in words_of.items():
            colour, shape = (next((word for word in words if word in known), None) for known in (colours, shapes))
            if colour is not None and shape is not None:
                rows.append((image, f"a {colour} {shape}"))
        columns = {self.source_column: [image for image, _ in rows], self.target_column: [text for _, text in rows]}
        return datasets.Dataset.from_dict(columns), f"split {name!r} of easy-vqa"

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without a readable picture."""
        from alignattn.tasks.pictures import picture_problem

        pictures = dataset[self.source_column][:]
        paths = [picture if isinstance(picture, str) else "" for picture in pictures]
        known = {path: picture_problem(path) for path in set(paths) if path}
        nothing = f"column {self.source_column!r} has no picture"
        return by_row(
            known[path] if path else f"{nothing} ({shown(picture)})"
            for path, picture in zip(paths, pictures, strict=True)
        )

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return the picture's file, and the tokens of the first reference caption."""
        return self.encode_rows(self._encode_batch, dataset, tokenizer, options)

    def _encode_batch(self, batch: dict[str, list[Any]], tokenizer: Any, max_length: int) -> dict[str, list[Any]]:
        return {IMAGE: batch[self.source_column], "labels": self._target_ids(batch, tokenizer, max_length)}

    def collator(self, tokenizer: Any, split: EncodedSplit, *, is_training: bool = False) -> Any:
        """Return a collator that reads the pictures."""
        return partial(_collate, size=self.image_size)

    def generate(self, model: Any, batch: Mapping[str, Tensor], options: TaskOptions) -> tuple[Tensor, ...]:
        """Return the generated tokens, `[B, n]`, and their log-probability, `[B]`."""
        generated: tuple[Tensor, Tensor] = model.generate(
            batch[IMAGE], num_beams=options.num_beams, max_length=options.max_length
        )
        return generated


def _collate(rows: Sequence[Mapping[str, Any]], size: int) -> dict[str, Tensor]:
    """Pictures `[B, 3, size, size]` with values from 0 to 1, and the tokens of their captions `[B, T]`."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from alignattn.tasks.vqa.images import WHITE, read_picture

    pictures = torch.stack([read_picture(row[IMAGE], size) for row in rows]).float() / WHITE
    labels = [torch.tensor(row["labels"]) for row in rows]
    return {IMAGE: pictures, "labels": pad_sequence(labels, batch_first=True, padding_value=NO_LABEL)}
