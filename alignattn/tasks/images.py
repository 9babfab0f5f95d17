"""Classification or regression of images."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForImageClassification

from alignattn.tasks.formats.file_rows import FileRows
from alignattn.tasks.labelled import LabelledProcessor
from alignattn.tasks.pictures import BITS_8, GREY, RGB, folder_pictures, open_picture, picture_problem
from alignattn.tasks.processor import EncodedSplit, by_row
from alignattn.tasks.task import TRAIN, VALIDATION, TaskOptions
from alignattn.tasks.task_types import ImageClassification
from alignattn.utils.errors import AlignAttnError, check_installed

PIXELS = "pixel_values"
"""The model's input. In encoded rows, the column of the images that the collator decodes."""

CHANNELS = 3
MODES = {CHANNELS: RGB, 1: GREY}
"""The mode of the pictures by the channels of the model's images, usually three."""


class ImageClassificationProcessor(LabelledProcessor[ImageClassification]):
    """One image per row, loaded by the collator."""

    auto_class = AutoModelForImageClassification
    reads_texts = False
    reads_images = True
    reads_only_texts = False
    has_lengths = False
    continuous_input = PIXELS

    def read_split(
        self, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return scikit-learn's digits; None if the rows are in files or on the Hub."""
        if self.task.collection != "digits" or data_dir is not None:
            return None
        return _digits(self.task, name), f"split {name!r} of scikit-learn's digits"

    def read_folder(self, folder: Path, encoding: str | None) -> FileRows:
        """Return the images of a folder's class folders; without class folders, its own images, unlabelled."""
        files, classes = folder_pictures(folder)
        columns = {self.task.image_column: files}
        if classes is not None:
            columns[self.task.label_column] = classes
        return FileRows(datasets.Dataset.from_dict(columns))

    @property
    def file_column(self) -> str:
        """The column of images, which are files unless the rows hold them encoded."""
        return self.task.image_column

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with class names and undecoded images."""
        return super().normalise(self.normalise_inputs(dataset))

    def normalise_inputs(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with undecoded images; the collator decodes them."""
        column = self.task.image_column
        if isinstance(dataset.features[column], datasets.Image):
            return dataset.cast_column(column, datasets.Image(decode=False))
        return dataset

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without a readable image; every image is read once."""
        column = self.task.image_column
        with ThreadPoolExecutor() as pool:
            # 256 at a time, because images that the rows hold are in memory.
            parts = dataset.select_columns([column]).iter(256)
            problems = by_row(problem for part in parts for problem in pool.map(picture_problem, part[column]))
        return {index: f"column {column!r}: {problem}" for index, problem in problems.items()}

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return `pixel_values`, the undecoded image, and `label`."""
        names = {self.task.image_column: PIXELS, self.task.label_column: "label"}
        return dataset.select_columns(list(names)).rename_columns(names)

    def collator(self, tokenizer: Any, split: EncodedSplit, *, is_training: bool = False) -> Any:
        """Return a collator that loads the images and applies the image processor."""
        return partial(_collate, image_processor=tokenizer)


def _collate(rows: Sequence[Mapping[str, Any]], image_processor: Any) -> dict[str, Tensor]:
    """Return the model's inputs, such as `pixel_values` `[B, 3, H, W]` (1 for 3 in grey), and `labels` `[B]`."""
    mode = MODES[getattr(image_processor, "num_channels", CHANNELS)]
    batch = dict(image_processor([open_picture(row[PIXELS], mode=mode) for row in rows], return_tensors="pt"))
    if "label" in rows[0]:
        batch["labels"] = torch.tensor([row["label"] for row in rows])
    return batch


def _digits(task: ImageClassification, split: str) -> datasets.Dataset:
    """Return scikit-learn's digits of 8 × 8 pixels as PNG files in memory."""
    check_installed("PIL", "images", f"task {task.name!r}")
    from PIL import Image
    from sklearn.datasets import load_digits

    if split not in (TRAIN, VALIDATION):
        raise AlignAttnError(f"digits have no split {split!r} (there: {TRAIN}, {VALIDATION})")
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels.reshape(-1, 8, 8) * (BITS_8 / 16)).astype(np.uint8)
    # One in four is in the validation split.
    chosen = (np.arange(len(labels)) % 4 == 0) == (split == VALIDATION)
    files = [BytesIO() for _ in pixels[chosen]]
    for picture, file in zip(pixels[chosen], files, strict=True):
        Image.fromarray(picture).save(file, "PNG")
    pictures = [file.getvalue() for file in files]
    return datasets.Dataset.from_dict({task.image_column: pictures, task.label_column: labels[chosen]})
