"""Classification or regression of images."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForImageClassification, PreTrainedConfig

from alignattn.tasks.formats.file_rows import FileRows
from alignattn.tasks.labelled import LabelledProcessor
from alignattn.tasks.pictures import BITS_8, folder_pictures, open_picture, picture_problem
from alignattn.tasks.processor import EncodedSplit, by_row, configure_classes
from alignattn.tasks.task import TRAIN, VALIDATION, TaskOptions
from alignattn.tasks.task_types import ImageClassification
from alignattn.utils.errors import AlignAttnError, check_installed

PIXELS = "pixel_values"
"""The model's input. Encoded rows hold the unread image under its name, for a collator to read."""

CHECKED_AT_ONCE = 256
"""Rows whose images are in memory while they are checked."""

DIGITS = "digits"
LARGEST_DIGIT_VALUE = 16
DIGITS_STEP = 4
"""Of scikit-learn's digits, one in so many is for validation."""


class ImageClassificationProcessor(LabelledProcessor[ImageClassification]):
    """One image per row, which is read when a batch is made."""

    auto_class = AutoModelForImageClassification
    reads_texts = False
    reads_images = True
    reads_only_texts = False
    has_lengths = False
    continuous_input = PIXELS

    def read_split(
        self, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return scikit-learn's digits; None for a task of files or of the Hub."""
        if self.task.collection != DIGITS or data_dir is not None:
            return None
        return _digits(self.task, name), f"split {name!r} of scikit-learn's digits"

    def read_folder(self, folder: Path, encoding: str | None) -> FileRows:
        """Return the images of a folder with a folder per class; of one without, the images in it, unlabelled."""
        files, classes = folder_pictures(folder)
        columns = {self.task.image_column: files}
        if classes is not None:
            columns[self.task.label_column] = classes
        return FileRows(datasets.Dataset.from_dict(columns))

    def locate(self, dataset: datasets.Dataset, folder: Path) -> datasets.Dataset:
        """Return the rows with paths relative to the current folder: a table has them relative to its own."""
        column = self.task.image_column
        feature = dataset.features.get(column)
        if not isinstance(feature, datasets.Value) or feature.dtype not in ("string", "large_string"):
            return dataset
        paths = [str(folder / path) if path else path for path in dataset[column][:]]
        located, others = datasets.Dataset.from_dict({column: paths}), dataset.remove_columns(column)
        # Without a column, a data set has no rows.
        return datasets.concatenate_datasets([others, located], axis=1) if others.column_names else located

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with the names of classes, and encoded images as bytes."""
        return super().normalise(self.normalise_inputs(dataset))

    def normalise_inputs(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with images that are not decoded before their batch is made."""
        column = self.task.image_column
        if isinstance(dataset.features[column], datasets.Image):
            return dataset.cast_column(column, datasets.Image(decode=False))
        return dataset

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without a readable image; every image is read once."""
        with ThreadPoolExecutor() as pool:
            return by_row(self._problems(dataset, pool))

    def _problems(self, dataset: datasets.Dataset, pool: ThreadPoolExecutor) -> Iterator[str | None]:
        column = self.task.image_column
        for part in dataset.select_columns([column]).iter(CHECKED_AT_ONCE):
            for problem in pool.map(picture_problem, part[column]):
                yield problem and f"column {column!r}: {problem}"

    def configure(self, config: PreTrainedConfig) -> None:
        """Set the number of outputs and the names of the classes."""
        configure_classes(config, self.task)

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return `pixel_values`, the unread image, and `label`."""
        names = {self.task.image_column: PIXELS, self.task.label_column: "label"}
        return dataset.select_columns(list(names)).rename_columns(names)

    def collator(self, tokenizer: Any, split: EncodedSplit, *, is_training: bool = False) -> Any:
        """Return a collator that reads the images and has the image processor make tensors of them."""
        return partial(_collate, image_processor=tokenizer)


def _collate(rows: Sequence[Mapping[str, Any]], image_processor: Any) -> dict[str, Tensor]:
    """Return what the model reads of the images, such as `pixel_values` `[B, 3, H, W]`, and `labels` `[B]`."""
    batch = dict(image_processor([open_picture(row[PIXELS]) for row in rows], return_tensors="pt"))
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
    pixels = (pixels.reshape(-1, 8, 8) * (BITS_8 / LARGEST_DIGIT_VALUE)).astype(np.uint8)
    chosen = np.arange(len(labels)) % DIGITS_STEP == 0
    chosen = chosen if split == VALIDATION else ~chosen
    return datasets.Dataset.from_dict(
        {task.image_column: [_png(Image.fromarray(one)) for one in pixels[chosen]], task.label_column: labels[chosen]}
    )


def _png(picture: Any) -> bytes:
    file = BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
